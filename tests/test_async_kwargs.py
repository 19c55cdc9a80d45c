"""What `spec.async_trainer_kwargs()` gives TRL's `AsyncGRPOTrainer`, and what it refuses to give it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.experimental.async_grpo import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from multienv import EnvSpec, MultiEnvSpec, errors
from multienv.training.async_kwargs import interleaved
from multienv.training.async_loop import complete
from tests.support.servers import ORSServer


def test_the_slots_are_trls_and_adapters_show_only_reset_get_reward_and_tools(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": echo_server.url, "mute": EnvSpec(echo_server.url, split="test",
                       use_environment_reward=False)}) as spec:  # fmt: skip
        kwargs = spec.async_trainer_kwargs()
        assert kwargs.keys() <= inspect.signature(AsyncGRPOTrainer).parameters.keys()
        factories = kwargs["environment_factory"]
        assert isinstance(factories, dict)
        public = {
            name: {
                member
                for member, _ in inspect.getmembers(type(factory()), inspect.isfunction)
                if not member.startswith("_")
            }
            for name, factory in factories.items()
        }
        assert public == {"echo": {"reset", "get_reward", "echo"}, "mute": {"reset", "echo"}}
        assert type(factories["echo"]()) is type(factories["echo"]())
        assert type(factories["echo"]()).__name__ == "echo"


@given(st.lists(st.sampled_from("abcd"), max_size=60))
def test_every_stretch_from_the_beginning_is_mixed_like_the_whole(names: list[str]) -> None:
    order = interleaved(names)
    assert sorted(order) == list(range(len(names)))
    for name in set(names):
        rows = [row for row in order if names[row] == name]
        assert rows == sorted(rows), "an environment's tasks keep their order"
        share = len(rows) / len(names)
        for stop in range(len(names) + 1):
            count = sum(names[row] == name for row in order[:stop])
            assert abs(count - share * stop) <= 1 + share * len(set(names)) / 2


def needs_environments(environments: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(environments)


def test_what_could_not_work_in_the_rollout_process_is_refused_with_the_reason(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"e": EnvSpec(echo_server.url, reward_funcs=needs_environments)}) as spec:
        with pytest.raises(errors.SpecError, match="'needs_environments' of environment 'e' needs environments, which"):
            spec.async_trainer_kwargs()
    with MultiEnvSpec({"e": echo_server.url}, reward_funcs=functools.partial(needs_environments, log_metric=1)) as spec:
        with pytest.raises(errors.SpecError, match="for all environments needs environments, which"):
            spec.async_trainer_kwargs()
    with MultiEnvSpec({"e": echo_server.url}, reward_funcs=lambda **_: [0.0]) as spec:
        with pytest.raises(errors.SpecError, match="'<lambda>' for all environments cannot be sent to AsyncGRPO"):
            spec.async_trainer_kwargs()
    with MultiEnvSpec({"e": echo_server.url}, reward_funcs=["a-reward-model"]) as spec:
        with pytest.raises(errors.SpecError, match="is of type str; AsyncGRPOTrainer takes functions only"):
            spec.async_trainer_kwargs()
    spec = MultiEnvSpec({"e": EnvSpec(echo_server.url, reward_weight=2.0)})
    with spec, pytest.warns(UserWarning, match=r"reward_weight \(e=2\) is not used"):
        spec.async_trainer_kwargs()


def test_an_evaluation_that_the_trainer_does_not_make_is_said(echo_server: ORSServer) -> None:
    specs = {"e": EnvSpec(echo_server.url, num_tasks=1, eval_split="test"), "o": EnvSpec(echo_server.url, indices=[2])}
    with MultiEnvSpec(specs) as spec, pytest.warns(UserWarning, match="the evaluation of e is not made") as caught:
        slots = spec.async_trainer_kwargs()
    assert slots.keys() == {"train_dataset", "environment_factory", "reward_funcs"}
    assert len(caught) == 1


def test_a_prompt_of_blocks_is_completed_like_a_string() -> None:
    prompt: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ""}]}]
    complete(prompt, "Look.")
    assert prompt[0]["content"] == [{"type": "image"}, {"type": "text", "text": "Look."}]


def test_an_adapter_whose_session_was_never_opened_says_so(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        adapter = spec.async_trainer_kwargs()["environment_factory"]["echo"]()
        adapter._deferred = []
        assert adapter.reset(**spec.train_dataset[0]) == ""
        with pytest.raises(errors.OrderError, match="was played without its session"):
            asyncio.run(adapter.get_reward())
        with pytest.raises(errors.RoutingError, match="has task_index=None"):
            adapter.reset()


def test_trl_scores_with_prompts_completions_and_columns_and_names_functions_by_name() -> None:
    text = inspect.getsource(_AsyncRolloutLoop._score_group)
    for keyword in ("completions=", "prompts=", "completion_ids=", "**group.reward_kwargs"):
        assert keyword in text
    for keyword in ("environments", "trainer_state", "log_extra", "log_metric"):
        assert keyword not in text
    assert "is_async_callable(reward_func)" in text
    assert "get_callable_name(f)" in inspect.getsource(_AsyncRolloutLoop.__init__)
