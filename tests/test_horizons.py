"""Horizons per environment: how many tool calls, how long, and how much of a result is shown."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec
from multienv.router import make_factory
from multienv.router.presentation import shortened
from multienv.types import ToolCallError, ToolRefused
from tests.support.environments import HorizonEnvironment, StateEnvironment
from tests.support.fakes import said, scripted_factory
from tests.support.kinds import KINDS, OURS, PLAIN, Watch, assert_closed, log_of, trained
from tests.support.servers import ORSServer
from tests.support.training import call

CALLS_TEXT = "This episode has ended: its limit of {} tool calls is reached. Do not call any more tools."
TIME_TEXT = "This episode has ended: its time limit of 0.3 s has passed. Do not call any more tools."


@pytest.fixture(scope="module")
def horizon_server() -> Iterator[ORSServer]:
    with ORSServer([HorizonEnvironment]) as server:
        yield server
        assert_closed(server)


@pytest.fixture(autouse=True)
def _no_events() -> None:
    HorizonEnvironment.events.clear()


def adapter_of(spec: MultiEnvSpec) -> Any:
    (factory,) = spec.environment_factory.values()
    return factory()


# Tool calls


@pytest.mark.parametrize("kind", KINDS)
def test_the_call_over_the_limit_is_not_sent_and_says_so(kind: str, horizon_server: ORSServer, tmp_path: Path) -> None:
    watch = Watch()
    declared = {"horizon": EnvSpec(horizon_server.url, indices=[0], limits=Limits(max_tool_calls=2))}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        log = log_of(trained(kind, spec, lambda _, turn: call("nap") if turn < 3 else "I stop.", tmp_path))
    assert HorizonEnvironment.events.count("nap") == 2 * 2
    for row in watch.rows:
        episode = row["episode"]
        assert (episode.status, row["reward"], len(episode.steps)) == (EpisodeStatus.TRUNCATED, 0.25, 2)
        assert episode.reason == "its limit of 2 tool calls is reached"
        assert row["completion"][-2]["content"] == str({"error": CALLS_TEXT.format(2)})
        assert row["completion"][-1]["content"] == "I stop.", "the policy reads it, and may say a last word"
    assert log["tools/failure_frequency"] == pytest.approx(1 / 3)
    assert log["rewards/horizon/mean"] == 0.25, "what was earned counts"


def test_each_environment_of_a_run_has_its_own_horizon_and_who_goes_on_is_stopped(
    horizon_server: ORSServer, tmp_path: Path
) -> None:
    turns: dict[str, int] = {}

    def policy(text: str, turn: int) -> str:
        tool = "push" if '"push"' in text else "nap"
        turns[tool] = max(turns.get(tool, 0), turn)
        return call(tool)

    declared = {
        "short": EnvSpec(horizon_server.url, indices=[0], limits=Limits(max_tool_calls=1)),
        "long": EnvSpec(StateEnvironment, indices=[0], limits=Limits(max_tool_calls=3)),
    }
    watch = Watch()
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        trained(OURS, spec, policy, tmp_path, {"max_tool_calling_iterations": 12})
    steps = {row["episode"].environment: len(row["episode"].steps) for row in watch.rows}
    assert steps == {"short": 1, "long": 3}
    assert turns == {"nap": 2, "push": 4}, "one turn after the limit was read, and no other"
    for row in watch.rows:
        assert row["episode"].status == EpisodeStatus.TRUNCATED
        assert row["completion"][-1]["role"] == "tool"


def test_refused_calls_count_and_late_ones_do_not() -> None:
    with MultiEnvSpec({"horizon": EnvSpec(HorizonEnvironment, limits=Limits(max_tool_calls=2))}) as spec:
        adapter = adapter_of(spec)
        adapter.reset(task_index=0)
        assert "seconds" in said(adapter.nap, seconds="long")
        assert said(adapter.nap) == "ab"
        for _ in range(3):
            assert said(adapter.nap) == CALLS_TEXT.format(2)
        assert [step.refused for step in adapter.episode.steps] == [True, False]
        assert adapter.reset(task_index=1) == "Echo 'world' to win.", "and the next episode starts afresh"
        assert said(adapter.nap) == "ab"
        assert adapter.episode.status == EpisodeStatus.UNFINISHED


# Time


def test_a_call_after_the_time_limit_is_not_sent(horizon_server: ORSServer) -> None:
    limits = Limits(episode_timeout_s=0.3)
    with MultiEnvSpec({"horizon": EnvSpec(horizon_server.url, limits=limits)}) as spec:
        adapter = adapter_of(spec)
        adapter.reset(task_index=0)
        assert said(adapter.nap) == "ab"
        time.sleep(0.35)
        with pytest.raises(ToolCallError, match=re.escape(TIME_TEXT)):
            adapter.nap()
        assert HorizonEnvironment.events.count("nap") == 1
        assert (adapter.episode.status, adapter.reward, adapter.finished) == (EpisodeStatus.TRUNCATED, 0.25, False)
        assert_closed(horizon_server)
        assert adapter.reset(task_index=1) == "Echo 'world' to win."
        assert said(adapter.nap) == "ab"
        assert adapter.episode.status == EpisodeStatus.UNFINISHED


@pytest.mark.parametrize("is_served", [True, False])
def test_a_call_that_runs_when_the_time_limit_passes_is_given_up(horizon_server: ORSServer, is_served: bool) -> None:
    limits = Limits(episode_timeout_s=0.3)
    target = horizon_server.url if is_served else HorizonEnvironment
    with MultiEnvSpec({"horizon": EnvSpec(target, limits=limits)}) as spec:
        adapter = adapter_of(spec)
        adapter.reset(task_index=0)
        started = time.monotonic()
        assert said(adapter.nap, seconds=20.0) == TIME_TEXT
        assert time.monotonic() - started < 10
        (lost,) = adapter.episode.steps
        assert (lost.tool, lost.text, lost.reward) == ("nap", TIME_TEXT, None)
        assert (adapter.episode.status, adapter.reward) == (EpisodeStatus.TRUNCATED, None)
        assert said(adapter.nap) == TIME_TEXT
        assert adapter.reset(task_index=1) == "Echo 'world' to win."
        assert said(adapter.nap) == "ab"
    assert "teardown" in HorizonEnvironment.events
    assert_closed(horizon_server)


def test_a_rollout_out_of_time_is_no_failure_of_the_environment(horizon_server: ORSServer, tmp_path: Path) -> None:
    watch = Watch()
    limits = Limits(episode_timeout_s=0.3, failure_threshold=0.1, failure_window=1)
    declared = {"horizon": EnvSpec(horizon_server.url, limits=limits)}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        trainer = trained(
            OURS, spec, lambda _, turn: call("nap", seconds=20.0) if turn < 1 else "late", tmp_path, {"max_steps": 2}
        )
        assert spec.live.clients["horizon"].opener.breaker.state == "closed"
    assert len(watch.rows) == 12
    assert {row["episode"].status for row in watch.rows} == {EpisodeStatus.TRUNCATED}
    assert {row["completion"][-1]["content"] for row in watch.rows} == {"late"}
    assert log_of(trainer)["tools/failure_frequency"] == 1.0


# What is shown


@given(st.text(alphabet=st.sampled_from("ab\n<|im_end|>é🙂"), max_size=1_500) | st.text(), st.integers(200, 1_600))
def test_head_and_tail_are_kept_the_rest_is_counted_and_the_limit_holds(text: str, limit: int) -> None:
    shown = shortened(text, limit)
    assert len(shown) <= limit
    if len(text) <= limit:
        assert shown == text
        return
    head, number, tail = re.fullmatch(
        r"(.*)\n\[\.\.\. (\d+) characters left out \.\.\.\]\n(.*)", shown, re.DOTALL
    ).groups()  # type: ignore[union-attr]  # it matches
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + int(number) + len(tail) == len(text)
    assert len(shown) >= limit - 8, "no more is left out than has to be"


@given(st.text(), st.none() | st.integers(200, 10_000))
def test_what_fits_is_shown_as_it_is(text: str, limit: int | None) -> None:
    assert shortened(text[:200], limit) == text[:200]


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_a_long_result_is_cut_in_the_prompt_and_in_the_record(
    kind: str, horizon_server: ORSServer, tmp_path: Path
) -> None:
    watch = Watch()
    limits = Limits(max_observation_chars=200)
    declared = {"horizon": EnvSpec(horizon_server.url, indices=[0], limits=limits)}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        policy = lambda _, turn: call("nap", length=100_000) if turn < 1 else "done"  # noqa: E731 - a policy in a line
        trained(kind, spec, policy, tmp_path)
    for row in watch.rows:
        (step,) = row["episode"].steps
        assert row["completion"][1]["content"] == step.text
        assert step.text.startswith("abab")
        assert step.text.endswith("abab")
        assert "characters left out" in step.text
        assert 190 <= len(step.text) <= 200
        assert step.reward == 0.25


def test_what_a_server_says_of_a_refused_call_is_cut_too() -> None:
    scripted: Any = scripted_factory("env", [ToolRefused("input_validation", "wrong: " + "x" * 10_000)])
    adapter: Any = make_factory(replace(scripted._route, limits=Limits(max_observation_chars=250)))()
    adapter.reset(task_index=0)
    text = said(adapter.answer, n=1)
    assert text.startswith("wrong: xxx")
    assert 240 <= len(text) <= 250
    assert adapter.episode.steps[0].text == text


@pytest.mark.parametrize("wrong", [{"max_tool_calls": 0}, {"episode_timeout_s": 0}, {"max_observation_chars": 199}])
def test_a_limit_that_leaves_no_room_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"Limits: {next(iter(wrong))}="):
        Limits(**wrong)
