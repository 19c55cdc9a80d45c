"""A session's life as a state machine: over any order of calls, no session too many and no reward from the past."""

from __future__ import annotations

import warnings

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multienv import EnvSpec, Limits
from multienv.errors import OrderError, SessionError
from multienv.router import Route, make_factory
from multienv.sessions import EnvironmentClient, Ledger, session_loop
from multienv.types import EpisodeStatus, ToolListing, ToolOutput, ToolRefused
from tests.support.fakes import ANSWER, FakeSource, said


class SessionMachine(RuleBasedStateMachine):
    """One adapter over a real ledger and a source in memory, beside a model of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        warnings.simplefilter("ignore", RuntimeWarning)
        self.source = FakeSource()
        self.ledger = Ledger()
        limits = Limits(max_sessions=1, max_retries=0, failure_threshold=None)
        client = EnvironmentClient("env", EnvSpec("owner/name", limits=limits), self.ledger, self.source)
        self.adapter = make_factory(Route("env", "train", ToolListing((ANSWER,)), client.open))()
        self.reward: float | None = None
        self.status = EpisodeStatus.UNFINISHED
        self.num_steps = 0
        self.has_reset = False

    @property
    def is_over(self) -> bool:
        return self.status is not EpisodeStatus.UNFINISHED

    def answer(self, outcome: ToolOutput | SessionError | ToolRefused) -> str:
        self.source.outcomes = [outcome]
        if not self.is_over:
            self.num_steps += 1
        return said(self.adapter.answer, n=1)  # type: ignore[attr-defined]  # the tool

    @rule(index=st.integers(0, 2))
    def reset(self, index: int) -> None:
        self.source.is_down = False
        assert self.adapter.reset(task_index=index) == f"Task {index}."
        self.reward, self.status, self.num_steps, self.has_reset = None, EpisodeStatus.UNFINISHED, 0, True

    @rule()
    def reset_while_the_server_is_down(self) -> None:
        self.source.is_down = True
        self.adapter.reset(task_index=0)
        self.reward, self.status, self.num_steps, self.has_reset = None, EpisodeStatus.FAILED, 0, True

    @precondition(lambda self: not self.has_reset)
    @rule()
    def call_before_reset(self) -> None:
        try:
            self.adapter.answer(n=1)  # type: ignore[attr-defined]  # the tool
        except OrderError:
            return
        raise AssertionError("a tool ran before reset")

    @precondition(lambda self: self.has_reset)
    @rule(reward=st.none() | st.floats(0, 1))
    def call(self, reward: float | None) -> None:
        was_over = self.is_over
        text = self.answer(ToolOutput("fine", reward))
        assert (text == "fine") is not was_over
        if not was_over and reward is not None:
            self.reward = reward

    @precondition(lambda self: self.has_reset)
    @rule(reward=st.none() | st.floats(0, 1))
    def finish(self, reward: float | None) -> None:
        was_over = self.is_over
        self.answer(ToolOutput("done", reward, finished=True))
        if not was_over:
            self.status = EpisodeStatus.FINISHED
            self.reward = reward if reward is not None else self.reward

    @precondition(lambda self: self.has_reset)
    @rule()
    def be_refused(self) -> None:
        was_over = self.is_over
        assert self.answer(ToolRefused("not_found", "no such tool")).startswith("no such") is not was_over

    @precondition(lambda self: self.has_reset)
    @rule()
    def fail(self) -> None:
        was_over = self.is_over
        self.answer(SessionError("lost"))
        if not was_over:
            self.status, self.reward = EpisodeStatus.FAILED, None

    @invariant()
    def the_episode_is_the_models(self) -> None:
        assert self.adapter.reward == self.reward
        assert self.adapter.finished == (self.status is EpisodeStatus.FINISHED)
        assert len(self.adapter.rewards) == len(self.adapter.metadata) == self.num_steps
        if self.has_reset:
            assert self.adapter.episode.status is self.status

    @invariant()
    def no_session_is_open_too_many(self) -> None:
        assert self.source.most_live <= 1
        session_loop().run(_settle())
        assert len(self.source.live) == (1 if self.has_reset and not self.is_over else 0)

    def teardown(self) -> None:
        session_loop().run(self.ledger.shut_down(1.0))
        assert not self.source.live
        assert self.ledger.num_open == 0


async def _settle() -> None:
    """Let closings that were started in the background run."""
    import asyncio

    for _ in range(5):
        await asyncio.sleep(0)


SessionMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
TestSessionMachine = SessionMachine.TestCase
