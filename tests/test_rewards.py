from __future__ import annotations

import asyncio
import functools
import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openreward.environments import ToolOutput, tool

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.errors import RewardFunctionError, RoutingError
from multienv.rewards import (
    Columns,
    LogColumns,
    environment_reward,
    episode_reward,
    mixture_reward,
    routed,
    weights_notice,
)
from multienv.specs import RewardSpec
from multienv.types import EpisodeStatus
from tests.strategies import rollouts
from tests.support.environments import Base, ClimbEnvironment, output
from tests.support.fakes import batch, played, said
from tests.support.training import call, scripted_trainer

Rollouts = tuple[list[str], list[tuple[str, list[Any]]]]
routing_law = settings(max_examples=300)
RULE = RewardSpec(reduction="last")


class DroppedEnvironment(Base):
    """Reports an outage in the metadata of an ordinary result."""

    @tool
    def drop(self) -> ToolOutput:
        """Lose the sandbox."""
        return output("no result", 0.0, dropped=True)


def make_routed(function: Any, name: str, known: list[str], own: dict[str, set[str]] | None = None) -> Any:
    return routed(function, name, known, lambda: Columns(own or {}), LogColumns())


@pytest.mark.filterwarnings("ignore:an episode failed:RuntimeWarning")
@routing_law
@given(rollouts())
def test_a_reward_comes_only_from_the_rows_own_environment_and_is_its_episodes(case: Rollouts) -> None:
    names, rows = case
    adapters = [played(name, outcomes) for name, outcomes in rows]
    rewards = {name: environment_reward(name, names, RULE)(**batch(adapters)) for name in names}
    worth = [episode_reward(adapter.episode, RULE) for adapter in adapters]
    for name in names:
        assert rewards[name] == [
            reward if owner == name else None for reward, (owner, _) in zip(worth, rows, strict=True)
        ]
    assert mixture_reward(names, dict.fromkeys(names, RULE))(environments=adapters) == worth
    assert mixture_reward(names, {})(environments=adapters) == [adapter.reward for adapter in adapters]


@pytest.mark.filterwarnings("ignore:an episode failed:RuntimeWarning")
@settings(max_examples=150)
@given(rollouts())
def test_a_failed_episode_is_never_a_number_and_nothing_after_the_end_counts(case: Rollouts) -> None:
    for name, outcomes in case[1]:
        adapter = played(name, outcomes)
        if adapter.episode.status is EpisodeStatus.FAILED:
            assert adapter.reward is None
        before = adapter.reward, adapter.episode
        if adapter.finished or adapter.episode.status is EpisodeStatus.FAILED:
            said(adapter.answer, n=2)  # type: ignore[attr-defined]  # the tool
            counted = replace(before[1], num_late_calls=before[1].num_late_calls + 1)
            assert (adapter.reward, adapter.episode) == (before[0], counted)


@pytest.mark.filterwarnings("ignore:an episode failed:RuntimeWarning")
@routing_law
@given(rollouts(), st.booleans())
def test_a_users_function_sees_exactly_its_own_rows_in_order_once(case: Rollouts, is_async: bool) -> None:
    names, rows = case
    adapters = [played(name, outcomes) for name, outcomes in rows]
    for name in names:
        seen: list[Any] = []

        def reward(row: list[int], environments: list[Any], prompts: list[Any], **_: Any) -> list[float]:
            seen.append((row, environments, prompts))  # noqa: B023 - called in this turn of the loop only
            return [float(number) for number in row]

        async def async_reward(**keywords: Any) -> list[float]:
            return reward(**keywords)

        function = make_routed(async_reward if is_async else reward, name, names)
        result = function(**batch(adapters))
        result = asyncio.run(result) if is_async else result
        own = [row for row, (owner, _) in enumerate(rows) if owner == name]
        assert result == [float(row) if row in own else None for row in range(len(rows))]
        prompts = batch(adapters)["prompts"]
        expected = [(own, [adapters[row] for row in own], [prompts[row] for row in own])] if own else []
        assert seen == expected


@pytest.mark.filterwarnings("ignore:an episode failed:RuntimeWarning")
@routing_law
@given(rollouts(), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_rewards_and_nothing_else(case: Rollouts, rng: random.Random) -> None:
    names, rows = case
    adapters = [played(name, outcomes) for name, outcomes in rows]
    order = list(range(len(rows)))
    rng.shuffle(order)
    whole = batch(adapters)
    shuffled = {key: [value[i] for i in order] if isinstance(value, list) else value for key, value in whole.items()}
    functions = [environment_reward(name, names, RULE) for name in names]
    functions.append(mixture_reward(names, dict.fromkeys(names, RULE)))
    functions += [make_routed(lambda row, **_: [n / 2 for n in row], name, names) for name in names]
    for function in functions:
        rewards = function(**whole)
        assert function(**shuffled) == [rewards[i] for i in order]


def test_a_column_that_only_other_environments_have_is_left_out() -> None:
    seen: dict[str, Any] = {}

    def reward(**keywords: Any) -> list[float]:
        seen.update(keywords)
        return [1.0]

    own = {"a": {"level", "both"}, "b": {"target", "both"}}
    adapters = [played("a", []), played("b", [])]
    columns = {"level": [1, None], "target": [None, "x"], "both": [1, 2], "added_by_the_user": [3, 4]}
    make_routed(reward, "a", ["a", "b"], own)(**batch(adapters, **columns))
    assert (seen["level"], seen["both"], seen["added_by_the_user"]) == ([1], [1], [3])
    assert "target" not in seen


def test_what_a_function_logs_is_put_in_place_and_named_per_environment() -> None:
    extra: dict[str, list[Any]] = {}
    metrics: dict[str, float] = {}

    def log_extra(column: str, values: list[Any]) -> None:
        extra.setdefault(column, []).extend(values)

    def reward(environments: list[Any], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
        log_extra("note", [f"n{i}" for i in range(len(environments))])
        log_metric("mean", 0.5)
        return [0.0] * len(environments)

    def other(**keywords: Any) -> list[float]:
        return reward(**keywords)

    adapters = [played(name, []) for name in ("a", "b", "a")]
    known, log_columns = ["a", "b"], LogColumns()
    functions = [
        routed(function, name, known, lambda: Columns({}), log_columns)
        for function, name in ((reward, "a"), (other, "b"))
    ]
    for function in functions:
        function(**batch(adapters, log_extra=log_extra, log_metric=metrics.__setitem__))
    assert extra == {"note": ["n0", None, "n1"], "b/note": [None, "n0", None]}
    assert metrics == {"a/mean": 0.5, "b/mean": 0.5}
    functions[1](**batch(adapters[:1], log_extra=log_extra, log_metric=metrics.__setitem__))
    assert extra["b/note"] == [None, "n0", None, None], (
        "a batch without rows of b keeps the column as long as the batch"
    )


@pytest.mark.parametrize("result", [["x", "x"], "11", {0: 1.0, 1: 1.0}])
def test_a_result_that_is_no_list_of_numbers_names_function_and_environment(result: Any) -> None:
    adapters = [played(name, []) for name in ("a", "b", "a")]

    def judge(**_: Any) -> Any:
        return result

    with pytest.raises(RewardFunctionError, match=r"reward function 'a/judge'.* gave "):
        make_routed(judge, "a", ["a", "b"])(**batch(adapters))


@pytest.mark.parametrize("result", [[1.0], [1.0, 2.0, 3.0], 7.0, None])
def test_a_result_of_the_wrong_length_names_function_environment_and_both_lengths(result: Any) -> None:
    adapters = [played(name, []) for name in ("a", "b", "a")]

    def judge(**_: Any) -> Any:
        return result

    with pytest.raises(RewardFunctionError, match=r"'a/judge'") as caught:
        make_routed(judge, "a", ["a", "b"])(**batch(adapters))
    if isinstance(result, list):
        assert f"{len(result)} values for 2 rows of environment 'a' (the batch has 3)" in str(caught.value)


def test_names_of_callables_are_read_as_trl_reads_them() -> None:
    from trl.trainer.utils import get_callable_name, is_async_callable

    from multienv.rewards.functions import callable_name, is_async

    class Judge:
        async def __call__(self, **_: Any) -> list[float]:
            return []

    def plain(**_: Any) -> list[float]:
        return []

    for function in (Judge(), plain, functools.partial(plain, x=1), functools.partial(Judge(), x=1), lambda **_: []):
        assert callable_name(function) == get_callable_name(function)
        assert is_async(function) == is_async_callable(function)


def test_a_row_of_no_environment_is_an_error_that_names_the_known_ones() -> None:
    reward = environment_reward("wordle", ["seta", "wordle"], RULE)
    with pytest.raises(RoutingError, match=r"unknown environment 'wrodle' \(did you mean 'wordle'\?\); known: seta"):
        reward(environments=[played("wrodle", [])])
    with pytest.raises(RoutingError, match="must be in the same order"):
        reward(environments=[played("wordle", [])], environment=["seta"])
    with pytest.raises(RoutingError, match="2 rows came with 1 environments"):
        reward(environments=[played("wordle", [])], environment=["wordle", "wordle"])
    with pytest.raises(RoutingError, match=r"without environments="):
        reward(environment=["seta"])


def test_a_weight_that_does_nothing_by_default_is_announced() -> None:
    assert weights_notice({"a": 1.0, "b": 1.0}) is None
    notice = weights_notice({"a": 1.0, "b": 2.0})
    assert notice is not None
    assert "b=2" in notice
    assert 'scale_rewards="batch"' in notice


@pytest.mark.filterwarnings("ignore:an episode failed:RuntimeWarning")
@pytest.mark.parametrize("is_async", [False, True])
def test_no_function_gives_a_number_to_a_rollout_that_infrastructure_ended(is_async: bool) -> None:
    def polite(completions: list[Any], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    async def politely(completions: list[Any], **_: Any) -> list[float]:
        return polite(completions)

    function: Any = politely if is_async else polite
    rule = RewardSpec(is_failure=lambda metadata: "dropped" in metadata)
    declared = {"a": EnvSpec(ClimbEnvironment, reward_funcs=function), "b": EnvSpec(DroppedEnvironment, reward=rule)}
    with MultiEnvSpec(declared, reward_funcs=function) as spec:
        adapters: list[Any] = [spec.environment_factory[name]() for name in "aabb"]
        for adapter in adapters:
            adapter.reset(task_index=0)
        said(adapters[0].breaks)
        said(adapters[2].drop)
        columns = {}
        for one in spec.reward_funcs:
            rewards = one(**batch(adapters))
            columns[one.__name__] = asyncio.run(rewards) if is_async and function.__name__ in one.__name__ else rewards
    assert adapters[0].episode.status is EpisodeStatus.FAILED
    assert columns[f"a/{function.__name__}"] == [None, 1.0, None, None]
    assert columns[function.__name__] == [None, 1.0, None, 1.0]
    beside = spec.guard(function)(**batch(adapters))
    assert (asyncio.run(beside) if is_async else beside) == [None, 1.0, None, 1.0]
    assert spec.guard("a/reward-model") == "a/reward-model"


def test_a_function_given_to_the_trainer_is_none_for_them_too(tmp_path: Path) -> None:
    def polite(completions: list[Any], **_: Any) -> list[float]:
        return [float(row % 2) for row in range(len(completions))]

    rule = RewardSpec(is_failure=lambda metadata: metadata.get("height") == 1)
    declared = {"a": EnvSpec(ClimbEnvironment, indices=[0], reward=rule, discover_task_tools=False)}
    numbers = itertools.cycle((1, 2))
    with MultiEnvSpec(declared) as spec:
        slots: dict[str, Any] = {"spec": spec, "reward_funcs": polite}
        options = {"per_device_train_batch_size": 2}
        policy = lambda _, turn: "done" if turn else call("up", n=next(numbers))  # noqa: E731 - a policy in a line
        trainer = scripted_trainer(policy, tmp_path, options, MultiEnvGRPOTrainer, **slots)
        trainer.train()
    log = trainer.state.log_history[0]
    assert log["env/a/status/failed"] == 0.5
    assert log["rewards/polite/mean"] == 1.0
    assert log["env/a/zero_signal_groups"] == 1.0
