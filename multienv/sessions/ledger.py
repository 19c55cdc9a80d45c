"""Decides that no session is left open: every one is entered here before it exists and struck out after it is gone.

Flow: `EnvironmentClient.open` → `Ledger.open` → `LiveSession`; `shut_down` at `MultiEnvSpec.close` and at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from multienv.errors import ServerError, SessionError
from multienv.sessions.breaker import CircuitBreaker
from multienv.sessions.loop import session_loop, within
from multienv.sessions.protocol import Session, Source
from multienv.sessions.retries import retrying
from multienv.sessions.signals import TerminationHandler
from multienv.sessions.slots import Slots, share
from multienv.specs import Limits
from multienv.types import JSONObject, Prompt, ToolListing, ToolOutput

logger = logging.getLogger(__name__)
T = TypeVar("T")
_NO_LIMIT = 1_000_000
_CANCEL_PATIENCE_S = 5.0
_MIXTURE_LIMIT = "the mixture's max_sessions (this process's share)"


class _ClosedError(SessionError):
    """The session was closed from this side while it was in use."""


class LiveSession:
    """A session with its time limits. After a `ServerError` of its prompt or a call it is of no more use and closes.

    Attributes:
        prompt: The prompt; empty until it has been fetched.
        listing: What the session says about its tools; None until it has been asked.
        num_tries: How often opening it was tried, the last time included.
        open_s: Seconds from the request for it until prompt and tools were there, the waiting for its turn left out.
    """

    def __init__(self, ledger: Ledger, name: str, session: Session, limits: Limits) -> None:
        self._ledger = ledger
        self._name = name
        self._session = session
        self._limits = limits
        self._closing: asyncio.Task[None] | None = None
        self._breaker: CircuitBreaker | None = None
        self._slots: Sequence[Slots] = ()
        self._running: set[asyncio.Future[Any]] = set()
        self.prompt: Prompt = ()
        self.listing: ToolListing | None = None
        self.num_tries = 1
        self.open_s = 0.0

    def watch(self, breaker: CircuitBreaker, slots: Sequence[Slots]) -> None:
        """Report how calls fare to a breaker, and give slots back when the session closes."""
        self._breaker = breaker
        self._slots = slots

    @property
    def id(self) -> str:
        """The session id, as the server logs it."""
        return self._session.id

    async def fetch_prompt(self, *, as_messages: bool = False) -> None:
        """Fetch the prompt; see `Session.prompt` and `Session.messages`."""
        prompt = self._session.messages() if as_messages else self._session.prompt()
        self.prompt = await self._within(self._limits.prompt_timeout_s, "prompt_timeout_s", prompt)

    async def list_tools(self) -> ToolListing:
        """Fetch the task's tools; see `Session.list_tools`. The session lives on where that fails."""
        tools = self._session.list_tools()
        self.listing = await self._within(
            self._limits.prompt_timeout_s, "prompt_timeout_s", tools, closes_on_failure=False
        )
        return self.listing

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        """Call a tool; see `Session.call`."""
        if self._closing is not None:
            raise self._closed_error()
        try:
            output = await self._within(
                self._limits.tool_timeout_s, "tool_timeout_s", self._session.call(tool, arguments)
            )
        except _ClosedError:
            raise  # our own doing, and no fault of the environment's
        except ServerError:
            self._report(is_success=False)
            raise
        self._report(is_success=True)
        return output

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        """Score a group of candidates; see `Session.score_group`."""
        if self._closing is not None:
            raise self._closed_error()
        scoring = self._session.score_group(candidates)
        return await self._within(self._limits.tool_timeout_s, "tool_timeout_s", scoring)

    @property
    def is_closing(self) -> bool:
        """True once the session is of no more use."""
        return self._closing is not None

    def _report(self, *, is_success: bool) -> None:
        if self._breaker is not None:
            self._breaker.record(is_success=is_success)

    async def close(self) -> None:
        """Close the session and wait until it is closed, or its limit has passed; never raises."""
        await asyncio.shield(self.start_closing())

    def start_closing(self) -> asyncio.Task[None]:
        """Start closing in the background; once only."""
        if self._closing is None:
            for slots in self._slots:
                slots.start_closing()
            for running in self._running:
                running.cancel()
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        try:
            await within(self._limits.close_timeout_s, retrying(self._limits.max_retries)(self._session.close))
        except Exception as error:  # noqa: BLE001 - the episode is over, whatever the server says
            logger.warning("environment %r: closing session %s failed: %r", self._name, self.id, error)
        finally:
            self._ledger.strike_out(self)
            for slots in self._slots:
                slots.give_back()

    async def _within(
        self, seconds: float, limit: str, coroutine: Coroutine[Any, Any, T], *, closes_on_failure: bool = True
    ) -> T:
        running = asyncio.ensure_future(coroutine)
        self._running.add(running)
        try:
            return await within(seconds, running)
        except TimeoutError:
            if closes_on_failure:
                self.start_closing()
            raise time_is_up(self._name, "no answer", seconds, limit) from None
        except asyncio.CancelledError:
            if self._closing is not None and running.cancelled():
                raise self._closed_error() from None
            self.start_closing()
            raise
        except ConnectionError:
            if closes_on_failure:
                self.start_closing()
            raise
        finally:
            self._running.discard(running)

    def _closed_error(self) -> SessionError:
        return _ClosedError(f"environment {self._name!r}: the session is closed", environment=self._name)


def time_is_up(name: str, what: str, seconds: float, limit: str) -> SessionError:
    """Return the error of a phase that exceeded its limit. Trying again would take as long."""
    error = SessionError(f"environment {name!r}: {what} within {seconds:g} s (limits.{limit})", environment=name)
    error.is_transient = False
    return error


class Ledger:
    """The sources and open sessions of one mixture. Its coroutines run on the session loop.

    Invariant: a session that exists on a server is in `_live`, or its opening is in `_opening`; and a ledger with a
    connected source is in `_in_use` until it is shut down, whether or not anyone else still refers to it.

    Args:
        max_sessions: Most sessions of all environments at once; None for no limit.
        max_concurrent_starts: Most sessions of all environments being opened at once; None for no limit.
    """

    def __init__(self, *, max_sessions: int | None = None, max_concurrent_starts: int | None = None) -> None:
        self._sources: list[Source] = []
        self._max_sessions = max_sessions
        self._max_concurrent_starts = max_concurrent_starts
        self.share_among(1)
        self._live: set[LiveSession] = set()
        self._opening: set[asyncio.Future[Session]] = set()
        self._pid = os.getpid()
        self._child: Ledger | None = None

    @property
    def num_open(self) -> int:
        """Number of sessions that are open, being opened or being closed."""
        return len(self._live) + len(self._opening)

    @property
    def is_ours(self) -> bool:
        """False in a forked child, whose sessions are its parent's to close."""
        return self._pid == os.getpid()

    def after_fork(self) -> Ledger:
        """Return the ledger of a forked child: the same for all environments of a mixture, and empty at first."""
        if self.is_ours:
            return self
        if self._child is None or not self._child.is_ours:
            self._child = Ledger(max_sessions=self._max_sessions, max_concurrent_starts=self._max_concurrent_starts)
        return self._child

    async def connect(self, source: Source) -> None:
        """Connect a source and enter it, to be closed when the ledger is shut down."""
        await source.connect()
        self._sources.append(source)
        _shut_down_at_exit(self)

    async def open(self, name: str, source: Source, limits: Limits, *, split: str, index: int) -> LiveSession:
        """Open a session within its time limit.

        The opening itself is never cut short, only no longer waited for: a session whose constructor is still running
        cannot be deleted. It is closed as soon as it is there.

        Raises:
            SessionError: The session could not be opened, or not in time.
        """
        opening = asyncio.ensure_future(source.open(split, index))
        self._opening.add(opening)
        try:
            session = await asyncio.wait_for(asyncio.shield(opening), limits.open_timeout_s)
        except (TimeoutError, asyncio.CancelledError) as error:
            opening.add_done_callback(lambda late: self._admit_late(name, late, limits))
            task = asyncio.current_task()
            if opening.cancelled() and not (task is not None and task.cancelling()):
                raise SessionError(
                    f"environment {name!r}: closed while a session was being opened", environment=name
                ) from None
            if isinstance(error, TimeoutError):
                raise time_is_up(name, "no session", limits.open_timeout_s, "open_timeout_s") from None
            raise
        except BaseException:
            self._opening.discard(opening)
            raise
        return self._admit(name, opening, session, limits)

    def _admit(self, name: str, opening: asyncio.Future[Session], session: Session, limits: Limits) -> LiveSession:
        live = LiveSession(self, name, session, limits)
        self._live.add(live)
        self._opening.discard(opening)
        return live

    def _admit_late(self, name: str, opening: asyncio.Future[Session], limits: Limits) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._opening.discard(opening)
            return
        self._admit(name, opening, opening.result(), limits).start_closing()

    def strike_out(self, session: LiveSession) -> None:
        """Forget a session that is closed."""
        self._live.discard(session)

    async def shut_down(self, patience_s: float) -> None:
        """Close every session, those still being opened included, and then every source.

        Args:
            patience_s: How long openings are waited for; after that they are cancelled.
        """
        await self.close_sessions(patience_s)
        sources, self._sources = self._sources, []
        for source in sources:
            await source.aclose()
        _in_use.discard(self)

    def share_among(self, num_ranks: int) -> None:
        """Keep one process's share of the mixture's limits."""
        self.max_sessions = share(self._max_sessions, num_ranks)
        self.max_concurrent_starts = share(self._max_concurrent_starts, num_ranks)
        self.slots = Slots(self.max_sessions, _MIXTURE_LIMIT)
        self.starts = asyncio.Semaphore(self.max_concurrent_starts or _NO_LIMIT)

    async def close_sessions(self, patience_s: float) -> None:
        """Close every session; the sources stay connected."""
        if self._opening:
            await asyncio.wait(set(self._opening), timeout=patience_s)
        for opening in self._opening:
            opening.cancel()  # once: what it has begun on the server is being deleted
        while self.num_open:
            if self._live:
                await asyncio.gather(*(session.close() for session in list(self._live)))
            else:
                await asyncio.wait(set(self._opening), timeout=_CANCEL_PATIENCE_S)
                if not self._live and not any(opening.done() for opening in self._opening):
                    break  # the server answers nothing; its reaper has the rest
            await asyncio.sleep(0)  # lets whoever waited for an opening enter its session


_in_use: set[Ledger] = set()
_EXIT_PATIENCE_S = 30.0


def _shut_down_at_exit(ledger: Ledger) -> None:
    """Have a ledger shut down at the interpreter's exit, before the SDK takes its own threads down."""
    if ledger not in _in_use:
        _in_use.add(ledger)
        atexit.unregister(_shut_down_all)
        atexit.register(_shut_down_all)  # exit hooks run last in, first out; the SDK has registered its own by now


def shut_down(ledger: Ledger, patience_s: float) -> None:
    """Shut a ledger down from the outside, and give SIGTERM back once none is in use."""
    session_loop().run(ledger.after_fork().shut_down(patience_s))
    if not _in_use:
        termination.restore()


def _close_all_sessions() -> None:
    """Close every session, and nothing else: the process may live on."""
    for ledger in list(_in_use):
        if ledger.is_ours:
            session_loop().run(ledger.close_sessions(_EXIT_PATIENCE_S))


def _shut_down_all() -> None:
    for ledger in list(_in_use):
        if ledger.is_ours:
            shut_down(ledger, _EXIT_PATIENCE_S)


termination = TerminationHandler(_close_all_sessions)
"""Closes sessions before SIGTERM does what it would do."""
