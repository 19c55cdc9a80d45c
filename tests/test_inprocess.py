"""Environment classes in this process: what several of them share, and what they keep to themselves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from openreward.environments import JSONObject, TextBlock, ToolOutput, tool

from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec
from multienv.sessions.quiet import LEVELS
from tests.support.environments import EchoEnvironment, EchoParams
from tests.support.fakes import said


def made_anew(cls: type) -> Any:
    """A subclass that nobody has used in this process."""
    return type(cls.__name__, (cls,), {})


class SlowToList(EchoEnvironment):
    """Takes a while to list its tasks, and keeps a semaphore on the class as many environments do."""

    seats: ClassVar[asyncio.Semaphore]

    def __init_subclass__(cls) -> None:
        cls.seats = asyncio.Semaphore(1)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        time.sleep(0.1)
        return super().list_tasks(split)

    async def setup(self) -> None:
        async with self.seats:
            await asyncio.sleep(0.05)


def rows(spec: MultiEnvSpec) -> list[str]:
    return list(spec.train_dataset["task_id"])


@pytest.mark.timeout(20)
def test_one_class_serves_two_environments_of_a_mixture() -> None:
    cls = made_anew(SlowToList)
    with MultiEnvSpec({"a": EnvSpec(cls, indices=[0]), "b": EnvSpec(cls, indices=[1, 2])}) as spec:
        assert rows(spec) == ["a/train/0", "b/train/1", "b/train/2"]
        rollouts: list[Any] = [spec.environment_factory[name]() for name in ("a", "b")]
        with ThreadPoolExecutor(2) as pool:
            prompts = list(pool.map(lambda rollout, row: rollout.reset(**row), rollouts, spec.train_dataset))
        assert prompts == ["Echo 'hello' to win.", "Echo 'world' to win."]
        assert [rollout.echo(text="world") and rollout.reward for rollout in rollouts] == [0.0, 1.0]


@pytest.mark.timeout(20)
def test_a_class_used_by_two_mixtures_outlives_the_one_that_is_closed_first() -> None:
    cls = made_anew(SlowToList)
    first, second = (MultiEnvSpec({"env": cls}) for _ in range(2))
    with ThreadPoolExecutor(2) as pool:
        assert [len(found) for found in pool.map(rows, (first, second))] == [3, 3]
    rollout: Any = second.environment_factory["env"]()
    rollout.reset(task_index=1)
    first.close()
    rollout.echo(text="world")
    assert rollout.reward == 1.0
    second.close()
    with MultiEnvSpec({"env": cls}) as third:
        assert len(rows(third)) == 3


@pytest.mark.timeout(20)
def test_a_listing_that_failed_for_one_mixture_works_for_the_next() -> None:
    class Flaky(made_anew(SlowToList)):  # type: ignore[misc]  # made here
        is_down = True

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            found: list[JSONObject] = super().list_tasks(split)
            if cls.is_down:
                raise OSError("the disk is away")
            return found

    names = {"a": EnvSpec(Flaky, indices=[0]), "b": EnvSpec(Flaky, indices=[1])}
    with MultiEnvSpec(names) as spec, pytest.raises(ConnectionError, match="the disk is away"):
        rows(spec)
    Flaky.is_down = False
    with MultiEnvSpec(names) as spec:
        assert rows(spec) == ["a/train/0", "b/train/1"]


def test_a_subclass_trains_on_its_own_tasks_after_its_parents_were_read() -> None:
    parent = made_anew(EchoEnvironment)

    class Child(parent):  # type: ignore[misc, valid-type]  # made here
        tasks: ClassVar[list[dict[str, Any]]] = [{"target": "sun"}]

    with MultiEnvSpec({"parent": parent}) as spec:
        assert len(rows(spec)) == 3
    with MultiEnvSpec({"child": Child}) as spec:
        assert rows(spec) == ["child/train/0"]
        rollout: Any = spec.environment_factory["child"]()
        assert rollout.reset(task_index=0) == "Echo 'sun' to win."


@pytest.mark.parametrize("reward", ["nan", "inf"])
def test_a_reward_that_is_no_finite_number_fails_the_episode(reward: str) -> None:
    class Unsound(EchoEnvironment):
        @tool
        async def earn(self, params: EchoParams) -> ToolOutput:
            """Earn what is named."""
            return ToolOutput(blocks=[TextBlock(text="earned")], reward=float(params.text), finished=True)

    with MultiEnvSpec({"env": Unsound}) as spec:
        rollout: Any = spec.environment_factory["env"]()
        rollout.reset(task_index=0)
        with pytest.warns(RuntimeWarning, match=f"a step reward of {reward}"):
            told = said(rollout.earn, text=reward)
        assert told.startswith("The environment failed")
        assert (rollout.episode.status, rollout.reward, rollout.finished) == (EpisodeStatus.FAILED, None, False)
        rollout.reset(task_index=0)
        rollout.earn(text="0.5")
        assert (rollout.episode.status, rollout.reward) == (EpisodeStatus.FINISHED, 0.5)


PLAYS_ONE_EPISODE = """
from multienv import MultiEnvSpec
from multienv.sessions.quiet import LEVELS
from tests.support.environments import EchoEnvironment

with MultiEnvSpec({"env": EchoEnvironment}) as spec:
    rollout = spec.environment_factory["env"]()
    rollout.reset(task_index=0)
    print(rollout.echo(text="hello"), rollout.reward)
if IS_SERVED:
    from tests.support.servers import ORSServer

    with ORSServer([EchoEnvironment]) as server, MultiEnvSpec({"env": server.url}) as spec:
        rollout = spec.environment_factory["env"]()
        rollout.reset(task_index=0)
        rollout.echo(text="hello")
"""


def printed(*, is_served: bool, **levels: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name not in LEVELS} | levels
    script = f"IS_SERVED = {is_served}\n{PLAYS_ONE_EPISODE}"
    if is_served:  # the support module for servers silences the SDK where nothing is set
        variables["OPENREWARD_LOG_LEVEL"] = ""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50, env=variables
    )
    return done.stdout


@pytest.mark.parametrize(
    ("is_served", "levels", "num_lines"),
    [(False, {}, 0), (False, {"OPENREWARD_LOG_LEVEL": "INFO"}, 1), (False, {"LOG_LEVEL": "info"}, 1), (True, {}, 1)],
)
def test_only_a_user_who_asks_or_a_server_has_tool_calls_printed(
    is_served: bool, levels: dict[str, str], num_lines: int
) -> None:
    text = printed(is_served=is_served, **levels)
    assert text.count("tool_call_completed") == num_lines
    assert num_lines or text == "match 1.0\n"
