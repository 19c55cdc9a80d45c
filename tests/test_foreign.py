"""Environments that know nothing of ORS beside those that do, in one mixture and one run of TRL's trainers."""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
from datasets import Dataset, DatasetDict
from transformers.utils import get_json_schema
from trl.experimental.harbor import HarborBashEnv, HarborSpec

from multienv import EnvSpec, ForeignSpec, MultiEnvGRPOTrainer, MultiEnvSpec, errors
from multienv.router.adapter import FAILED_OUTPUT, FAILED_PROMPT
from tests.support.environments import EchoEnvironment
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer


class GuessEnvironment:
    """A TRL environment that owns its reward."""

    made: ClassVar[list[GuessEnvironment]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.rows: list[dict[str, Any]] = []
        self.number = 0
        self.finished = False
        self.num_closed = 0

    def reset(self, **row: Any) -> str:
        self.rows.append(row)
        self.number, self.finished = row.get("number", 7), False
        return "Guess it."

    def guess(self, number: int, how: Literal["loud", "low"] = "low", more: dict[str, Any] | None = None) -> str:
        """Guess the number.

        Args:
            number: The guess.
            how: In which voice.
            more: Anything else.
        """
        self.finished = number == self.number
        return "right" if self.finished else "wrong"

    async def wait(self) -> list[dict[str, str]]:
        """Wait a little."""
        return [{"type": "text", "text": "waited"}]

    @staticmethod
    def hint(level: int) -> str:
        """Get a hint.

        Args:
            level: How much of one.
        """
        return "odd" * level

    async def get_reward(self) -> float:
        return 1.0 if self.finished else 0.25

    def close(self) -> None:
        self.num_closed += 1


class RatioEnvironment:
    """Its reward is an attribute that a reward function of its own reads; it cannot do anything with other columns."""

    made: ClassVar[list[RatioEnvironment]] = []

    def __init__(self, scale: float) -> None:
        self.made.append(self)
        self.scale = scale
        self.reward: float | None = None
        self.num_closed = 0

    def reset(self, prompt: str, task_index: int, answer: float) -> None:
        if answer < 0:
            raise ConnectionError("the sandbox is gone")
        assert (prompt, task_index) == (f"Reach {answer}.", int(answer * 10))
        self.reward = None

    def divide(self, by: float) -> str:
        """Divide one by something.

        Args:
            by: By what.
        """
        self.reward = self.scale / by
        return str(self.reward)

    async def _close(self) -> None:
        self.num_closed += 1


class StubHarbor(HarborBashEnv):
    """Harbor's environment without Harbor: a directory instead of a sandbox."""

    stopped: ClassVar[list[str]] = []
    loops: ClassVar[set[bool]] = set()

    def __del__(self) -> None:
        super().__del__()
        self._loop_thread.join()
        self._loop.close()  # Harbor leaves it open

    async def _start(self, task_dir: str) -> str:
        self._env, self._task_dir = object(), task_dir
        self._commands: list[str] = []
        return (Path(task_dir) / "instruction.md").read_text()

    def _exec(self, command: str, timeout: int = 180) -> str:
        self._commands.append(command)
        return "ran"

    async def _verify(self) -> float:
        return 0.75 if self._commands else 0.0

    async def _stop(self) -> None:
        import asyncio

        self.loops.add(asyncio.get_running_loop() is self._loop)
        if self._env is not None:
            self.stopped.append(self._task_dir)
            self._env = None


def outcome(environments: list[Any], answer: list[float], **columns: Any) -> list[float]:
    """Score every environment it is given, as Harbor's function does, and demand its own columns only."""
    assert set(columns) == {
        "prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "task_index"
    }  # fmt: skip
    assert all(isinstance(environment, RatioEnvironment) for environment in environments)
    columns["log_metric"]("seen", len(environments))
    return [float(environment.reward) for environment in environments]


def ratio_rows(*answers: float) -> Dataset:
    rows = [{"prompt": f"Reach {answer}.", "task_index": int(answer * 10), "answer": answer} for answer in answers]
    return Dataset.from_list(rows)


def ratios(*answers: float) -> Any:
    """An object with TRL's three attributes."""
    return SimpleNamespace(
        train_dataset=ratio_rows(*answers),
        environment_factory=partial(RatioEnvironment, 1.0),
        reward_funcs=[outcome],
    )


def guesses() -> ForeignSpec:
    return ForeignSpec(GuessEnvironment, train_dataset=Dataset.from_list([{"number": 3}, {"number": 4}]))


@pytest.fixture
def harbor(tmp_path: Path) -> HarborSpec:
    for name, level in (("one", "easy"), ("two", "hard")):
        task = tmp_path / "suite" / "tasks" / name
        task.mkdir(parents=True)
        (task / "instruction.md").write_text(f"Do {name}.")
        (task / "task.toml").write_text(f'[metadata]\ndifficulty_level = "{level}"\n')
    return HarborSpec(str(tmp_path / "suite"), agent=StubHarbor, indices=[1, 0])


@pytest.fixture(autouse=True)
def _no_instances() -> Iterator[None]:
    yield
    for made in (GuessEnvironment.made, RatioEnvironment.made, StubHarbor.stopped, StubHarbor.loops):
        made.clear()


def policy(text: str, turn: int) -> str:
    if turn:
        return "done"
    for tool, answer in (
        ("guess", call("guess", number=3) + call("wait")),
        ("divide", call("divide", by=2)),
        ("bash", call("bash", command="ls")),
    ):
        if f'"{tool}"' in text:
            return answer
    return call("echo", text="hello")


@pytest.mark.parametrize("trainer_class", [None, MultiEnvGRPOTrainer])
def test_foreign_environments_train_beside_ors_ones(
    tmp_path: Path, echo_server: ORSServer, harbor: HarborSpec, trainer_class: type | None
) -> None:
    environments = {
        "echo": EnvSpec(echo_server.url, indices=[0]),
        "guess": guesses(),
        "ratio": ratios(0.5, 0.25),
        "harbor": harbor,
    }
    with MultiEnvSpec(environments) as spec:
        options = {"per_device_train_batch_size": 14, "max_steps": 2}
        slots: dict[str, Any] = spec.trainer_kwargs() if trainer_class is None else {"spec": spec}
        trainer = scripted_trainer(policy, tmp_path, options, trainer_class, **slots)
        trainer.train()
        harbor_rows = [row for row in spec.train_dataset if row["environment"] == "harbor"]
    for log in trainer.state.log_history[:2]:
        assert log["rewards/echo/mean"] == 1.0
        assert log["rewards/guess/mean"] == pytest.approx((1.0 + 0.25) / 2), "3 is right for one of the two rows"
        assert log["rewards/ratio/mean"] == 0.5
        assert log["rewards/harbor/mean"] == 0.75
        assert log["ratio/seen"] == 4
        assert log["tools/failure_frequency"] == 0.0
    rows = [row for environment in GuessEnvironment.made for row in environment.rows]
    assert len(rows) == 8
    assert all(row in ({"number": 3}, {"number": 4}) for row in rows)
    assert [row["difficulty_level"] for row in harbor_rows] == ["hard", "easy"]
    assert [row["task_id"] for row in harbor_rows] == ["harbor/train/0", "harbor/train/1"]
    assert [environment.num_closed for environment in GuessEnvironment.made] == [1] * 4
    assert [environment.num_closed for environment in RatioEnvironment.made] == [1] * 4
    assert len(StubHarbor.stopped) == 4
    assert StubHarbor.loops == {True}, "Harbor's clients live on the environment's own loop"
    assert echo_server.open_sessions == []


def test_a_failing_reset_costs_its_own_rollouts_and_nothing_else(tmp_path: Path) -> None:
    class Fragile(GuessEnvironment):
        def reset(self, **row: Any) -> str:
            super().reset(**row)
            if row["number"] == 4:
                raise ConnectionError("no sandbox left")
            return "Guess it."

    rows = Dataset.from_list([{"number": 3}, {"number": 4}])
    environments = {"fragile": ForeignSpec(Fragile, train_dataset=rows), "ratio": ratios(0.5, -1.0)}
    seen: list[tuple[bool, str]] = []

    def note(environments: list[Any], prompts: list[Any], **_: Any) -> list[None]:
        for adapter, prompt in zip(environments, prompts, strict=True):
            if adapter.environment == "fragile":
                seen.append((adapter.finished, prompt[-1]["content"]))
        return [None] * len(environments)

    with MultiEnvSpec(environments, reward_funcs=note) as spec:
        trainer = scripted_trainer(policy, tmp_path, {"per_device_train_batch_size": 8}, **spec.trainer_kwargs())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train()
    log = trainer.state.log_history[0]
    assert log["rewards/fragile/mean"] == 1.0, "the failed rollouts go unscored"
    assert log["rewards/ratio/mean"] == 0.5
    assert set(seen) == {(True, "Guess it."), (False, FAILED_PROMPT)}
    words = [str(warning.message) for warning in caught if "goes unscored" in str(warning.message)]
    assert [("fragile" in text, "ratio" in text) for text in sorted(words)] == [(True, False), (False, True)]


def made(cls: Callable[[], Any]) -> Any:
    """An adapter of a class, reset."""
    adapter = MultiEnvSpec({"x": ForeignSpec(cls)}).environment_factory["x"]()
    adapter.reset(task_index=0)
    return adapter


def shown_tools(instance: Any) -> dict[str, Any]:
    """The tools as TRL collects them."""
    return {
        name: getattr(instance, name)
        for name, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }


def test_the_policy_is_shown_the_classes_own_tools() -> None:
    own, shown = shown_tools(GuessEnvironment()), shown_tools(made(GuessEnvironment))
    assert list(shown) == ["guess", "hint", "wait"]
    assert own.pop("close")
    for name, tool in own.items():
        assert get_json_schema(shown[name]) == get_json_schema(tool)
        assert inspect.signature(shown[name]) == inspect.signature(tool)
        assert inspect.iscoroutinefunction(shown[name]) == inspect.iscoroutinefunction(tool)
        assert shown[name].__name__ == tool.__name__
    assert shown["guess"](7) == "right"
    assert shown["hint"](level=2) == "oddodd"


def test_a_close_that_needs_arguments_is_a_tool() -> None:
    class Doors:
        def reset(self, **row: Any) -> None: ...
        def close(self, door: str) -> str:
            """Close a door."""
            return f"{door} is closed"

    assert shown_tools(made(Doors))["close"](door="the left one") == "the left one is closed"


def test_attributes_are_the_instances_own_and_what_reset_returns_passes_through() -> None:
    class Blocks:
        def reset(self, **row: Any) -> list[dict[str, str]]:
            self.row, self.reward = row, 0.5
            return [{"type": "text", "text": "look"}]

        @property
        def doubled(self) -> float:
            return 2 * self.reward

    spec = MultiEnvSpec({"x": ForeignSpec(Blocks, num_tasks=2)})
    adapter: Any = spec.environment_factory["x"]()
    with pytest.raises(AttributeError, match="before reset"):
        _ = adapter.reward
    row = dict(spec.train_dataset[1])
    assert row.pop("environment") == "x"
    assert adapter.reset(**row) == [{"type": "text", "text": "look"}]
    assert adapter.row == {"prompt": [{"role": "user", "content": ""}]}, "what TRL gives an environment with own data"
    assert (adapter.environment, adapter.reward, adapter.doubled) == ("x", 0.5, 1.0)
    assert spec.reward_func(environments=[adapter]) == [0.5]
    with pytest.raises(errors.RoutingError, match="task_index=2; accepted: an int from 0 to 1"):
        adapter.reset(task_index=2)


def test_after_a_failed_reset_nothing_is_called_and_nothing_is_scored() -> None:
    class Down:
        def __init__(self) -> None:
            raise ConnectionError("no sandbox left")

        def reset(self, **row: Any) -> None: ...
        def act(self) -> str:
            """Act."""
            raise AssertionError

        def get_reward(self) -> float:
            raise AssertionError

    adapter: Any = MultiEnvSpec({"x": Down}).environment_factory["x"]()
    with pytest.raises(errors.OrderError, match="before reset"):
        adapter.act()
    with pytest.warns(RuntimeWarning, match="no sandbox left"):
        assert adapter.reset(task_index=0) == FAILED_PROMPT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.reset(task_index=0)
    assert (adapter.act(), adapter.get_reward(), adapter.reward) == (FAILED_OUTPUT, None, None)
    assert repr(adapter) == "<x failed>"


def test_a_tools_exception_goes_to_trl_as_it_is() -> None:
    class Broken(GuessEnvironment):
        def guess(self, number: int) -> str:  # type: ignore[override]  # another tool
            """Guess."""
            raise KeyError(number)

    with pytest.raises(KeyError):
        made(Broken).guess(number=1)


def test_closing_happens_once_and_contains_failures(caplog: pytest.LogCaptureFixture) -> None:
    gone: list[str] = []

    class Breaks(GuessEnvironment):
        def close(self) -> None:
            super().close()
            raise RuntimeError("cannot close")

    class Leaves:
        def reset(self, **row: Any) -> None: ...
        def _stop(self, reason: str) -> None: ...
        def __del__(self) -> None:
            gone.append("left")

    spec = MultiEnvSpec({"breaks": Breaks, "leaves": Leaves, "idle": partial_factory(RatioEnvironment)})
    adapters = [spec.environment_factory[name]() for name in ("breaks", "leaves")]
    for adapter in adapters:
        adapter.reset(task_index=0)
    assert not gone
    spec.close()
    spec.close()
    assert gone == ["left"], "while the adapter still lives"
    assert ([one.num_closed for one in GuessEnvironment.made], [one.num_closed for one in RatioEnvironment.made]) == (
        [1],
        [1],
    )
    assert [record.message for record in caplog.records if "closing" in record.message] == [
        "environment 'breaks': closing an instance failed: RuntimeError('cannot close')"
    ]
    with pytest.raises(errors.OrderError, match="'breaks' is closed; make a new MultiEnvSpec"):
        adapters[0].reset(task_index=0)
    with pytest.raises(errors.OrderError, match="make a new MultiEnvSpec"), spec:
        pass


def partial_factory(cls: Any) -> ForeignSpec:
    """A factory that must be called to learn what it makes."""
    return ForeignSpec(lambda: cls(1.0), train_dataset=ratio_rows(0.5))


def test_instances_are_closed_at_the_interpreters_exit(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "from multienv import MultiEnvSpec\n"
        "class Room:\n"
        "    def reset(self, **row): pass\n"
        "    async def _stop(self): print('stopped')\n"
        "adapter = MultiEnvSpec({'room': Room}).environment_factory['room']()\n"
        "adapter.reset(task_index=0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


def test_nothing_of_an_object_is_read_before_it_is_needed(harbor: HarborSpec) -> None:
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
    import datetime as dt
    import json

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
        spec.share_among(1)
        spec.check_sessions({"echo": 2, "guess": 100})
        assert not spec.has_room_for({"echo": 3, "guess": 0})
        spec.open_ahead("guess", 0)


def test_a_mixture_with_foreign_environments_pickles() -> None:
    spec = MultiEnvSpec({"guess": guesses(), "ratio": ratios(0.5)})
    assert spec.train_dataset.num_rows == 3
    copy = pickle.loads(pickle.dumps(spec))
    adapter: Any = copy.environment_factory["guess"]()
    adapter.reset(task_index=1)
    assert adapter.rows == [{"number": 4}]
    assert [function.__name__ for function in copy.reward_funcs] == ["ratio"]


def length(completions: list[Any], number: list[int], **_: Any) -> list[float]:
    return [float(value) for value in number]


def test_async_grpo_gets_what_travels() -> None:
    rows = Dataset.from_list([{"number": 3}, {"number": 4}])
    spec = MultiEnvSpec({"guess": ForeignSpec(GuessEnvironment, train_dataset=rows, reward_funcs=length)})
    slots = pickle.loads(pickle.dumps(spec.async_trainer_kwargs()))
    adapter = slots["environment_factory"]["guess"]()
    assert adapter.reset(**slots["train_dataset"][1]) == "Guess it."
    assert type(adapter).__name__ == "guess"
    (function,) = slots["reward_funcs"]
    columns = {"environment": ["guess", "guess"], "task_index": [1, 0]}
    assert function(completions=[[], []], prompts=[[], []], **columns) == [4.0, 3.0]


def test_async_grpo_refuses_what_does_not_travel(harbor: HarborSpec) -> None:
    with pytest.raises(errors.SpecError, match="'harbor': reward function '_outcome_reward_func' reads environments"):
        MultiEnvSpec({"harbor": harbor}).async_trainer_kwargs()
    with pytest.raises(errors.SpecError, match="environment 'x' cannot be sent"):
        MultiEnvSpec({"x": ForeignSpec(lambda: RatioEnvironment(1.0))}).async_trainer_kwargs()


def test_a_reward_function_needs_the_row_numbers() -> None:
    (function,) = MultiEnvSpec({"ratio": ratios(0.5)}).reward_funcs
    with pytest.raises(errors.RoutingError, match="without the column 'task_index'"):
        function(environment=["ratio"], completions=[[]])
