"""Limits on sessions, retries and the circuit breaker, with injected time or against sources in memory."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multienv import EnvSpec, Limits, MultiEnvSpec, errors
from multienv.sessions import EnvironmentClient, Ledger, LiveSession, session_loop
from multienv.sessions.breaker import Circuit, CircuitBreaker
from multienv.types import Message, ToolOutput
from tests.support.fakes import FakeSession, FakeSource
from tests.support.servers import ORSServer

T = TypeVar("T")


class SlowSource(FakeSource):
    """Opening takes a while; counts how many openings run at once, and when they began."""

    def __init__(self, open_s: float = 0.02) -> None:
        super().__init__()
        self.open_s = open_s
        self.num_opening = 0
        self.most_opening = 0
        self.started: list[float] = []
        self.failures: list[errors.ServerError] = []

    async def open(self, split: str, index: int) -> FakeSession:
        self.started.append(time.monotonic())
        self.num_opening += 1
        self.most_opening = max(self.most_opening, self.num_opening)
        try:
            await asyncio.sleep(self.open_s)
            if self.failures:
                raise self.failures.pop(0)
            return await super().open(split, index)
        finally:
            self.num_opening -= 1


def client_of(source: FakeSource, ledger: Ledger | None = None, **limits: Any) -> EnvironmentClient:
    return EnvironmentClient("env", EnvSpec("owner/name", limits=Limits(**limits)), ledger or Ledger(), source)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return session_loop().run(coroutine)


async def all_of(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.gather(*coroutines, return_exceptions=True)


def test_no_more_sessions_start_at_once_than_allowed() -> None:
    source = SlowSource()
    client = client_of(source, max_concurrent_starts=3)
    sessions = run(all_of(*(client.open(0) for _ in range(10))))
    assert all(isinstance(session, LiveSession) for session in sessions)
    assert source.most_opening == 3


def test_starts_keep_their_rate() -> None:
    source = SlowSource(open_s=0.0)
    client = client_of(source, starts_per_s=20)
    run(all_of(*(client.open(0) for _ in range(6))))
    assert source.started[-1] - source.started[0] >= 4 * 0.05, "six starts at 20 per second take five pauses of 50 ms"


def test_the_mixtures_caps_hold_over_all_environments() -> None:
    ledger = Ledger(max_sessions=3, max_concurrent_starts=2)
    sources = SlowSource(), SlowSource()
    clients = [client_of(source, ledger) for source in sources]
    opened = run(all_of(*(client.open(0) for client in clients for _ in range(2))))
    refused = [result for result in opened if isinstance(result, errors.SessionLimitError)]
    assert len(refused) == 1
    assert "the mixture's max_sessions" in str(refused[0])
    assert max(source.most_opening for source in sources) <= 2


def test_a_session_over_the_cap_is_an_error_but_one_that_is_closing_is_waited_for() -> None:
    source = FakeSource()
    client = client_of(source, max_sessions=1)
    first = run(client.open(0))
    with pytest.raises(
        errors.SessionLimitError, match="1 sessions are open and one more is needed, but limits.max_ses"
    ):
        run(client.open(0))

    async def close_and_open() -> LiveSession:
        first.start_closing()
        return await client.open(1)

    assert run(close_and_open()).prompt == (Message("user", ("Task 1.",)),)
    assert source.most_live == 1


@pytest.mark.parametrize(
    ("failures", "num_tries", "is_opened"),
    [
        ([errors.SessionError("busy")], 2, True),
        ([errors.SessionError("busy")] * 2, 3, True),
        ([errors.SessionError("busy")] * 3, 3, False),
        ([errors.AuthenticationError("no")], 1, False),
        ([errors.ProtocolError("nonsense")], 1, False),
        ([errors.ServerUnreachableError("nobody")], 1, False),
    ],
)
def test_opening_is_tried_again_where_that_can_help(
    failures: list[errors.ServerError], num_tries: int, is_opened: bool
) -> None:
    source = SlowSource(open_s=0.0)
    source.failures = list(failures)
    client = client_of(source, max_retries=2)
    (result,) = run(all_of(client.open(0)))
    assert isinstance(result, LiveSession) is is_opened
    assert len(source.started) == num_tries
    if not is_opened:
        assert result is failures[-1]


def test_a_server_that_asks_for_time_gets_it() -> None:
    source = SlowSource(open_s=0.0)
    busy = errors.SessionError("too many requests")
    busy.retry_after_s = 1.0
    source.failures = [busy]
    run(client_of(source).open(0))
    assert source.started[1] - source.started[0] >= 1.0


def test_an_opening_that_takes_too_long_is_not_tried_again_and_its_session_is_closed_when_it_comes() -> None:
    source = SlowSource(open_s=0.3)
    client = client_of(source, open_timeout_s=0.05)
    (result,) = run(all_of(client.open(0)))
    assert isinstance(result, errors.SessionError)
    assert "no session within 0.05 s (limits.open_timeout_s)" in str(result)
    run(asyncio.sleep(0.5))
    assert (len(source.opened), source.live) == (1, set())


def test_an_environment_that_keeps_failing_is_refused_and_used_again_when_it_is_back() -> None:
    source = FakeSource()
    client = client_of(source, max_retries=0, cool_down_s=0.2)
    source.is_down = True
    results = run(all_of(*(client.open(0) for _ in range(5))))
    assert [type(result) for result in results] == [errors.SessionError] * 5
    (refused,) = run(all_of(client.open(0)))
    assert isinstance(refused, errors.CircuitOpenError)
    assert "5 of the last 5 sessions or calls failed" in str(refused)
    source.is_down = False
    run(asyncio.sleep(0.25))
    results = run(all_of(*(client.open(0) for _ in range(2))))
    assert isinstance(results[0], LiveSession)
    assert isinstance(results[1], errors.CircuitOpenError), "one session is tried, not all"
    assert isinstance(run(client.open(0)), LiveSession)


class BreakerMachine(RuleBasedStateMachine):
    """The circuit breaker against its invariants, time injected."""

    LIMITS = Limits(failure_window=8, failure_threshold=0.5, cool_down_s=10)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = CircuitBreaker("env", self.LIMITS, clock=lambda: self.now)
        self.outcomes: list[bool] = []
        self.let_through = 0

    def try_one(self) -> bool:
        try:
            self.breaker.check()
        except errors.CircuitOpenError:
            return False
        return True

    @rule(is_success=st.booleans())
    def use(self, is_success: bool) -> None:
        was = self.breaker.state
        if not self.try_one():
            assert was is not Circuit.CLOSED
            return
        self.breaker.record(is_success=is_success)
        if was is Circuit.CLOSED:
            self.outcomes = [*self.outcomes, is_success][-8:]
        else:
            assert was is Circuit.HALF_OPEN
            self.outcomes = []
            assert self.breaker.state is (Circuit.CLOSED if is_success else Circuit.OPEN)

    @rule(seconds=st.floats(0, 15))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.state is Circuit.HALF_OPEN)
    @rule()
    def only_one_is_let_through(self) -> None:
        if self.try_one():
            assert not self.try_one()
            self.breaker.record(is_success=False)
            assert self.breaker.state is Circuit.OPEN

    @invariant()
    def it_opens_for_reason_only(self) -> None:
        if self.breaker.state is Circuit.CLOSED:
            assert len(self.outcomes) < 5 or self.outcomes.count(False) < 0.5 * len(self.outcomes)
        elif self.outcomes:
            assert self.outcomes.count(False) >= 0.5 * len(self.outcomes)
            assert len(self.outcomes) >= 5


BreakerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestBreakerMachine = BreakerMachine.TestCase


def test_ranks_share_the_limits() -> None:
    with MultiEnvSpec({"env": EnvSpec("owner/name", limits=Limits(max_sessions=9))}, max_sessions=20) as spec:
        spec.live.share_among(4)
        assert spec.live.has_room_for({"env": 2})
        with pytest.raises(errors.SessionLimitError, match="needs 3 sessions of environment 'env' .* share .* is 2"):
            spec.live.check_sessions({"env": 3})


def reward_of_its_own(environments: list[Any], **_: Any) -> list[float]:
    return [0.0 for _ in environments]


def test_a_spec_pickles_without_its_sessions_and_works_where_it_arrives(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, reward_funcs=[reward_of_its_own])}) as spec:
        adapter: Any = spec.environment_factory["echo"]()
        adapter.reset(task_index=0)
        with pickle.loads(pickle.dumps(spec)) as copy:
            assert [function.__name__ for function in copy.reward_funcs] == ["echo", "echo/reward_of_its_own"]
            assert copy.train_dataset["target"] == spec.train_dataset["target"]
            other: Any = copy.environment_factory["echo"]()
            other.reset(task_index=1)
            assert (other.echo(text="world"), adapter.echo(text="hello")) == ("match", "match")


def test_a_forked_child_has_sessions_of_its_own_and_leaves_its_parents_alone(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, discover_task_tools=False)}) as spec:
        adapter: Any = spec.environment_factory["echo"]()
        adapter.reset(task_index=0)
        num_open = len(echo_server.open_sessions)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine: Any = spec.environment_factory["echo"]()
                mine.reset(task_index=1)
                code = 0 if mine.echo(text="world") == "match" else 2
                spec.close()
            finally:
                os._exit(code)
        deadline = time.monotonic() + 60
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.02)
        if done == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(done[1]) == 0
        assert len(echo_server.open_sessions) == num_open
        assert adapter.echo(text="hello") == "match"


def test_a_call_that_fails_counts_as_a_failure_of_the_environment() -> None:
    source = FakeSource()
    client = client_of(source, failure_threshold=0.5)
    client.connect()

    async def play() -> None:
        while client.opener.breaker.state is Circuit.CLOSED:
            session = await client.open(0)
            source.outcomes = [errors.SessionError("lost")]
            with pytest.raises(errors.SessionError):
                await session.call("answer", {"n": 1})

    run(asyncio.wait_for(play(), 10))
    assert len(source.opened) == 3, "three calls of six openings and calls"


def test_refusals_of_the_environment_are_no_failures() -> None:
    from multienv.types import ToolRefused

    source = FakeSource()
    client = client_of(source, max_sessions=None)
    client.connect()

    async def play() -> None:
        session = await client.open(0)
        for _ in range(20):
            source.outcomes = [ToolRefused("not_found", "no such tool"), ToolOutput("fine")]
            with pytest.raises(ToolRefused):
                await session.call("answer", {"n": 1})
            await session.call("answer", {"n": 1})

    run(play())
    assert client.opener.breaker.state is Circuit.CLOSED


class HangingSession(FakeSession):
    async def call(self, tool: str, arguments: Any) -> ToolOutput:
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits that long")


def test_closing_a_session_that_is_in_use_is_no_failure_of_the_environment() -> None:
    class HangingSource(FakeSource):
        async def open(self, split: str, index: int) -> FakeSession:
            session = HangingSession(self, index)
            self.live.add(session)
            return session

    client = client_of(HangingSource())
    client.connect()

    async def play() -> list[Any]:
        sessions = [await client.open(0) for _ in range(8)]
        calls = [asyncio.ensure_future(session.call("answer", {"n": 1})) for session in sessions]
        await asyncio.sleep(0)
        for session in sessions:
            session.start_closing()
        return await asyncio.gather(*calls, return_exceptions=True)

    results = run(asyncio.wait_for(play(), 10))
    assert all("the session is closed" in str(result) for result in results)
    assert client.opener.breaker.state is Circuit.CLOSED


def test_a_throttled_environment_does_not_hold_the_mixtures_gate() -> None:
    ledger = Ledger(max_concurrent_starts=1)
    throttled, free = SlowSource(open_s=0.0), SlowSource(open_s=0.0)
    slow = client_of(throttled, ledger, starts_per_s=2)
    quick = client_of(free, ledger)
    run(all_of(slow.open(0), slow.open(0), quick.open(0)))
    assert free.started[0] < throttled.started[1]


def test_an_ignored_sigterm_stays_ignored() -> None:
    from multienv.sessions.signals import TerminationHandler

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        handler = TerminationHandler(lambda: None)
        handler.install()
        assert not handler.is_installed
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_was_opened_ahead_and_not_asked_for_is_closed() -> None:
    source = FakeSource()
    client = client_of(source)
    client.open_ahead(0)
    run(asyncio.sleep(0.05))
    assert len(source.live) == 1
    client.drop_ahead()
    run(asyncio.sleep(0.05))
    assert (source.live, client.opener.breaker.state) == (set(), Circuit.CLOSED)
