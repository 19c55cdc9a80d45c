"""One suite over both ways an environment can live: on a server over HTTP, and as a class in this process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec, errors
from tests.support.environments import (
    BrokenSetupEnvironment,
    ClimbEnvironment,
    EmptyEnvironment,
    LargeEnvironment,
    SlowEnvironment,
    TaskToolsEnvironment,
)
from tests.support.fakes import said
from tests.support.servers import ORSServer

Target = Callable[[type], Any]


@pytest.fixture(scope="module", params=["http", "in-process"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """From an `Environment` class to a target that leads to it."""
    if request.param == "in-process":
        yield lambda cls: cls
        return
    servers: dict[type, ORSServer] = {}

    def serve(cls: type) -> str:
        if cls not in servers:
            servers[cls] = ORSServer([cls]).start()
        return servers[cls].url

    yield serve
    for server in servers.values():
        server.stop()
        assert server.open_sessions == []


@pytest.fixture
def climb(target: Target) -> Iterator[Any]:
    spec = EnvSpec(target(ClimbEnvironment), secrets={"KEY": "value"}, limits=Limits(tool_timeout_s=1.5))
    with MultiEnvSpec({"climb": spec}) as mixture, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        adapter = mixture.environment_factory["climb"]()
        ClimbEnvironment.events.clear()  # the session that discovered the tools was set up and torn down
        yield adapter


def test_an_episode_from_setup_to_teardown(climb: Any) -> None:
    assert climb.reset(task_index=1) == "Echo 'world' to win."
    assert (climb.up(n=3), climb.reward, climb.finished) == ("3", 0.75, False)
    assert (climb.up(), climb.reward, climb.finished) == ("4", 1.0, True)
    assert climb.rewards == [0.75, 1.0]
    assert climb.metadata == [{"height": 3}, {"height": 4}]
    assert climb.last_output == "4"
    assert climb.episode.status is EpisodeStatus.FINISHED
    assert [(step.tool, step.arguments) for step in climb.episode.steps] == [("up", {"n": 3}), ("up", {})]
    climb.reset(task_index=0)
    assert ClimbEnvironment.events == ["setup", "teardown", "setup"]
    assert (climb.reward, climb.rewards, climb.finished, climb.last_output) == (None, [], False, "")


def test_calls_after_the_end_are_answered_here_and_change_nothing(climb: Any) -> None:
    climb.reset(task_index=0)
    climb.up(n=4)
    before = climb.episode
    assert "has finished" in said(climb.up, n=-4)
    assert climb.episode == replace(before, num_late_calls=1)


def test_a_bad_argument_goes_back_to_the_policy_and_the_session_lives(climb: Any) -> None:
    climb.reset(task_index=0)
    assert said(climb.up, n="high") == "argument 'n': \"high\" is not accepted; accepted: an integer"
    assert climb.up(n=1) == "1"
    assert climb.rewards == [None, 0.25]


def test_a_tool_that_raises_fails_the_episode_even_after_a_reward(climb: Any) -> None:
    climb.reset(task_index=0)
    climb.up()
    assert climb.reward == 0.25
    assert said(climb.breaks).startswith("The environment failed")
    assert (climb.reward, climb.episode.status) == (None, EpisodeStatus.FAILED)
    assert "the tool broke" in climb.episode.reason
    assert said(climb.up).startswith("The environment failed")
    climb.reset(task_index=0)
    assert climb.up() == "1", "the next episode has a session of its own"


@pytest.mark.parametrize("tool", ["hangs", "cancels"])
def test_a_tool_that_never_answers_costs_its_time_limit_and_its_session(climb: Any, tool: str) -> None:
    climb.reset(task_index=0)
    started = time.monotonic()
    said(getattr(climb, tool))
    assert time.monotonic() - started < 6
    assert climb.episode.status is EpisodeStatus.FAILED


def test_white_space_in_long_results_is_kept(climb: Any) -> None:
    climb.reset(task_index=0)
    assert climb.indented() == " " * 5_000 + "x" + "\n        y" * 2_000


def test_secrets_reach_the_environment(climb: Any) -> None:
    climb.reset(task_index=0)
    assert climb.secret(word="KEY") == "value"


def test_a_failed_setup_fails_the_episode_and_the_next_task_works(target: Target) -> None:
    with MultiEnvSpec({"broken": EnvSpec(target(BrokenSetupEnvironment), discover_task_tools=False)}) as spec:
        adapter: Any = spec.environment_factory["broken"]()
        with pytest.warns(RuntimeWarning, match="no sandbox left"):
            prompt = adapter.reset(task_index=0)
        assert "could not be started" in prompt
        assert (adapter.episode.status, adapter.reward) == (EpisodeStatus.FAILED, None)
        assert said(adapter.win).startswith("The environment failed")
        adapter.reset(task_index=1)
        assert (adapter.win(), adapter.reward) == ("won", 1.0)


def test_a_tool_that_blocks_its_loop_stalls_no_other_environment(target: Target) -> None:
    slow = EnvSpec(SlowEnvironment, discover_task_tools=False)
    other = EnvSpec(target(ClimbEnvironment), discover_task_tools=False)
    with MultiEnvSpec({"slow": slow, "climb": other}) as spec, ThreadPoolExecutor(1) as pool:
        blocking: Any = spec.environment_factory["slow"]()
        quick: Any = spec.environment_factory["climb"]()
        blocking.reset(task_index=0)
        running = pool.submit(blocking.block)
        time.sleep(0.1)  # the tool is in its two seconds now
        started = time.monotonic()
        quick.reset(task_index=0)
        quick.up()
        assert not running.done()
        assert time.monotonic() - started < 1.5
        assert running.result() == "done"


def test_an_environment_too_large_to_list_is_read_by_range(target: Target) -> None:
    spec = EnvSpec(target(LargeEnvironment), indices=[999_999, 5, 6], discover_task_tools=False)
    with MultiEnvSpec({"large": spec}) as mixture:
        rows = mixture.train_dataset
        assert rows["target"] == ["999999", "5", "6"]
        assert rows["task_id"] == ["large/train/999999", "large/train/5", "large/train/6"]


def test_tools_that_only_tasks_have_are_discovered_or_not(target: Target) -> None:
    def tools(**options: Any) -> set[str]:
        with MultiEnvSpec({"env": EnvSpec(target(TaskToolsEnvironment), **options)}) as spec:
            members = vars(spec.environment_factory["env"])
            return {name for name in members if not name.startswith("_") and name != "environment"}

    assert tools() == {"shared"}, "task 0 has no tool of its own"
    assert tools(task_tools_discovery_index=1) == {"shared", "special"}
    assert tools(indices=[0, 1]) == {"shared", "special"}
    assert tools(indices=[0, 1], discover_task_tools=False) == {"shared"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"split": "tarin"}, errors.UnknownSplitError, "'tarin' \\(did you mean 'train'\\?\\); known: train, test"),
        ({"indices": [0, 3]}, errors.TaskIndexError, "index 3 lies outside split 'train', which has 3 tasks"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_before_training(
    target: Target, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with MultiEnvSpec({"climb": EnvSpec(target(ClimbEnvironment), **options)}) as spec:
        with pytest.raises(error, match=f"environment 'climb': .*{words}"):
            _ = spec.train_dataset


def test_an_empty_task_list_is_refused(target: Target) -> None:
    with MultiEnvSpec({"empty": target(EmptyEnvironment)}) as spec:
        with pytest.raises(errors.EmptyTaskListError, match="environment 'empty': split 'train' has no tasks"):
            _ = spec.train_dataset


def test_a_closed_mixture_says_so(target: Target) -> None:
    with MultiEnvSpec({"climb": EnvSpec(target(ClimbEnvironment), discover_task_tools=False)}) as spec:
        adapter = spec.environment_factory["climb"]()
    spec.close()
    with pytest.raises(errors.OrderError, match="'climb' is used after close"):
        adapter.reset(task_index=0)


def test_a_tool_before_reset_says_so(climb: Any) -> None:
    with pytest.raises(errors.OrderError, match="'up' was called before reset"):
        climb.up()


@pytest.mark.parametrize(
    "row", [{}, {"task_index": None}, {"task_index": "0"}, {"task_index": True}, {"task_index": -1}]
)
def test_a_row_without_a_task_says_so(climb: Any, row: dict[str, Any]) -> None:
    with pytest.raises(errors.RoutingError, match="has task_index="):
        climb.reset(**row)


def test_a_row_of_another_environment_says_so(climb: Any) -> None:
    with pytest.raises(errors.RoutingError, match="a row of environment 'echo' reached the adapter of 'climb'"):
        climb.reset(environment="echo", task_index=0)


def test_no_column_of_a_row_collides_with_reset(climb: Any) -> None:
    assert climb.reset(task_index=0, self=1, row=2, task_spec={"target": "x"}, prompt=[]) == "Echo 'hello' to win."


def test_the_repr_is_short_and_says_where_the_episode_stands(climb: Any) -> None:
    assert repr(climb) == "<climb before reset unfinished steps=0 reward=None>"
    climb.reset(task_index=2)
    climb.up()
    assert repr(climb) == "<climb/train/2 unfinished steps=1 reward=0.25>"
