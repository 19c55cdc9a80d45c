"""What may be declared of environments that know nothing of ORS, and what is refused; their rows, names and limits."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from datasets import Dataset, DatasetDict

from multienv import EnvSpec, ForeignSpec, MultiEnvSpec, errors
from tests.support.environments import EchoEnvironment
from tests.support.foreign import (
    GuessEnvironment,
    RatioEnvironment,
    forget_instances,
    guesses,
    harbor_suite,
    outcome,
    ratio_rows,
    ratios,
)


@pytest.fixture(autouse=True)
def _no_instances() -> Iterator[None]:
    yield
    forget_instances()


def test_nothing_of_an_object_is_read_before_it_is_needed(tmp_path: Path) -> None:
    harbor = harbor_suite(tmp_path)

    class Lazy:
        read: ClassVar[list[str]] = []

        @property
        def train_dataset(self) -> Dataset:
            self.read.append("train_dataset")
            return ratio_rows(0.5)

        @property
        def environment_factory(self) -> Any:
            self.read.append("environment_factory")
            return partial(RatioEnvironment, 1.0)

        @property
        def reward_funcs(self) -> Any:
            self.read.append("reward_funcs")
            return outcome

    with MultiEnvSpec({"lazy": Lazy(), "harbor": harbor}) as spec:
        assert not Lazy.read
        assert repr(spec) == "MultiEnvSpec(lazy, harbor)"
        assert [function.__name__ for function in spec.reward_funcs] == ["lazy", "harbor"]
        assert "train_dataset" not in Lazy.read
        _ = spec.trainer_kwargs(), spec.trainer_kwargs(), spec.environments["lazy"]
    assert sorted(Lazy.read) == ["environment_factory", "reward_funcs", "train_dataset"]
    assert not RatioEnvironment.made, "a partial of a class tells its tools by itself"


def test_reward_functions_are_named_after_their_environment() -> None:
    def other(**_: Any) -> list[float]:
        return []

    environments = {
        "one": ratios(0.5),
        "two": ForeignSpec(
            partial(RatioEnvironment, 1.0), train_dataset=ratio_rows(0.5), reward_funcs=[outcome, other]
        ),
        "own": ForeignSpec(GuessEnvironment, reward_funcs=other),
    }
    names = [function.__name__ for function in MultiEnvSpec(environments).reward_funcs]
    assert names == ["one", "two/outcome", "two/other", "own/other"], "get_reward has taken the name 'own'"


def test_rows_enter_the_dataset_as_far_as_they_fit() -> None:
    rows = [
        {"prompt": "Go.", "level": 1, "when": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
        {"prompt": "Stop.", "level": 2, "when": None},
    ]
    chat = [{"prompt": [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Hi"}], "level": 3}]
    environments = {
        "text": ForeignSpec(GuessEnvironment, train_dataset=Dataset.from_list(rows), system_prompt="Be quick."),
        "chat": ForeignSpec(GuessEnvironment, train_dataset=Dataset.from_list(chat)),
        "own": GuessEnvironment,
        "echo": EnvSpec(EchoEnvironment, indices=[0]),
    }
    with MultiEnvSpec(environments, system_prompt="Be brief.") as spec:
        table = spec.train_dataset.to_list()
        adapter: Any = spec.environment_factory["text"]()
        adapter.reset(task_index=0)
    brief, empty = {"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}
    assert [row["prompt"] for row in table] == [
        [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Go."}],
        [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Stop."}],
        chat[0]["prompt"],
        [brief, empty],
        [brief, empty],
    ]
    assert [row["level"] for row in table] == [1, 2, 3, None, None]
    assert [row["task_id"] for row in table][:3] == ["text/train/0", "text/train/1", "chat/train/0"]
    assert [json.loads(row["task"]) for row in table][:2] == [{"level": 1}, {"level": 2, "when": None}]
    assert adapter.rows == [rows[0]], "nothing is lost on the way through JSON"


class Clueless:
    """No environment."""


def make_clueless() -> Clueless:
    return Clueless()


class Awaited:
    async def reset(self, **row: Any) -> None: ...


class Narrow:
    def reset(self) -> None: ...


class Routed:
    def reset(self, **row: Any) -> None: ...
    def environment(self) -> str:
        """Look around."""
        return ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "is of type int; accepted: EnvSpec, .* ForeignSpec, .* HarborSpec, or a TRL environment class"),
        (Clueless, "accepted: EnvSpec"),
        (RatioEnvironment, "'x': environment_factory cannot be called without arguments .*functools.partial"),
        (SimpleNamespace(train_dataset=None, environment_factory={"a": 1}, reward_funcs=[]), "'x': .* one by one"),
    ],
)
def test_a_value_that_is_no_environment_is_explained(value: Any, words: str) -> None:
    with pytest.raises(errors.SpecError, match=words):
        MultiEnvSpec({"x": value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"environment_factory": 5}, "of type int; accepted: a TRL environment class"),
        ({"environment_factory": Clueless}, "class Clueless has no method 'reset'"),
        ({"environment_factory": EchoEnvironment}, "an ORS Environment class; give the class itself"),
        ({"environment_factory": {"a": GuessEnvironment}}, r"several environments \(a\); give its environments one by"),
        ({"train_dataset": ratio_rows(0.5).to_iterable_dataset()}, "streaming; accepted: a map-style dataset"),
        ({"train_dataset": ratio_rows(0.5).select([])}, "has no rows; give it one"),
        ({"train_dataset": [{"number": 3}]}, "of type list; accepted: a datasets.Dataset"),
        ({"train_dataset": DatasetDict(train=ratio_rows(0.5))}, "has the splits train; choose one"),
        ({"train_dataset": Dataset.from_list([{"image": 3}])}, "has the column 'image'"),
        ({"train_dataset": ratio_rows(0.5), "num_tasks": 2}, "num_tasks=2 and train_dataset exclude each other"),
        ({"num_tasks": 0}, "num_tasks=0; accepted: an int from 1"),
        ({"reward_funcs": "org/model"}, r"give it to MultiEnvSpec\(reward_funcs=...\)"),
        ({"reward_funcs": [type("Model", (), {"state_dict": 1, "__call__": 1})()]}, "holds a model, a Model; accepted"),
        ({"reward_weight": float("nan")}, "reward_weight=nan; accepted: a finite number"),
        ({"system_prompt": 5}, "system_prompt is of type int"),
    ],
)
def test_a_wrong_option_is_explained(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.SpecError, match=words):
        ForeignSpec(**{"environment_factory": GuessEnvironment, **options})


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (make_clueless, "Clueless has no method 'reset'"),
        (Awaited, "coroutine function 'reset', which TRL does not await"),
        (Narrow, "does not take its rows .*the columns are prompt.* add \\*\\*kwargs"),
        (Routed, "has a tool 'environment'"),
    ],
)
def test_a_class_that_trl_could_not_drive_is_refused_before_training(factory: Any, words: str) -> None:
    spec = MultiEnvSpec({"x": ForeignSpec(factory)})
    with pytest.raises(errors.SpecError, match=f"environment 'x': class .*{words}"):
        _ = spec.environment_factory


def test_an_object_that_turns_out_wrong_is_explained_when_it_is_read() -> None:
    nested = MultiEnvSpec({"x": MultiEnvSpec({"a": GuessEnvironment, "b": GuessEnvironment})})
    with pytest.raises(errors.SpecError, match=r"environment 'x': environment_factory holds several .*\(a, b\)"):
        _ = nested.environment_factory
    blocks = [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}]
    spec = MultiEnvSpec({"x": ForeignSpec(GuessEnvironment, train_dataset=Dataset.from_list(blocks))})
    with pytest.raises(errors.SpecError, match="row 0 of train_dataset has the prompt .* accepted: a string, or chat"):
        _ = spec.train_dataset


def test_one_factory_cannot_stand_for_foreign_environments() -> None:
    with pytest.raises(errors.SpecError, match="cannot stand for 'guess'"):
        _ = MultiEnvSpec({"echo": EchoEnvironment, "guess": guesses()}).meta_environment_factory


def test_limits_on_sessions_are_for_ors_environments_only() -> None:
    with MultiEnvSpec({"echo": EchoEnvironment, "guess": guesses()}, max_sessions=2) as spec:
        spec.live.share_among(1)
        spec.live.check_sessions({"echo": 2, "guess": 100})
        assert not spec.live.has_room_for({"echo": 3, "guess": 0})
        spec.live.open_ahead("guess", {"task_index": 0})


def test_a_mixture_with_foreign_environments_pickles() -> None:
    spec = MultiEnvSpec({"guess": guesses(), "ratio": ratios(0.5)})
    assert spec.train_dataset.num_rows == 3
    copy = pickle.loads(pickle.dumps(spec))
    adapter: Any = copy.environment_factory["guess"]()
    adapter.reset(task_index=1)
    assert adapter.rows == [{"number": 4}]
    assert [function.__name__ for function in copy.reward_funcs] == ["ratio"]


class Broken:
    """An object with TRL's three attributes, one of which cannot be had."""

    environment_factory = GuessEnvironment
    reward_funcs = ()

    @property
    def train_dataset(self) -> Any:
        raise OSError("the disk is gone")


def test_an_attribute_that_raises_says_whose_it_is() -> None:
    with MultiEnvSpec({"env": Broken()}) as spec, pytest.raises(OSError, match="the disk is gone") as raised:
        _ = spec.train_dataset
    assert raised.value.__notes__ == ["raised by 'train_dataset' of environment 'env', a Broken"]
