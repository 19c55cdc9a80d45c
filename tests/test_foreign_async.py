"""Environments that know nothing of ORS in TRL's AsyncGRPO: what travels, what does not, and its real rollout loop."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from multienv import EnvSpec, ForeignSpec, MultiEnvSpec, errors
from tests.support.fake_vllm import FakeVLLM
from tests.support.foreign import GuessEnvironment, RatioEnvironment, forget_instances, guesses, harbor_suite
from tests.support.servers import ORSServer
from tests.support.training import call, tokenizer
from tests.test_async_grpo import LOOPS, driven, first_groups, rewards


@pytest.fixture(autouse=True)
def _no_instances() -> Iterator[None]:
    yield
    forget_instances()


@pytest.mark.parametrize("loop_class", LOOPS)
def test_async_grpo_plays_them_beside_ors_ones(loop_class: type, echo_server: ORSServer) -> None:
    def policy(text: str, turn: int) -> str:
        if turn:
            return "done"
        return call("guess", number=3) if "Guess it." in text else call("echo", text="hello")

    environments = {"echo": EnvSpec(echo_server.url, indices=[0]), "guess": guesses()}
    with FakeVLLM(tokenizer(), policy) as vllm, MultiEnvSpec(environments) as spec:
        with driven(loop_class, vllm, spec.async_trainer_kwargs()) as driven_loop:
            groups = first_groups(driven_loop, 3)
    scored = sorted((rewards(sample) for sample in groups), key=str)
    assert scored == [{"echo": 1.0}, {"guess": 0.25}, {"guess": 1.0}]
    assert all(environment.num_closed == 1 for environment in GuessEnvironment.made)


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


def test_async_grpo_refuses_what_does_not_travel(tmp_path: Path) -> None:
    harbor = harbor_suite(tmp_path)

    with pytest.raises(errors.SpecError, match="'harbor': reward function '_outcome_reward_func' reads environments"):
        MultiEnvSpec({"harbor": harbor}).async_trainer_kwargs()
    with pytest.raises(errors.SpecError, match="environment 'x' cannot be sent"):
        MultiEnvSpec({"x": ForeignSpec(lambda: RatioEnvironment(1.0))}).async_trainer_kwargs()
