"""Decides how a session comes to be: when it may, how often it is tried, and that nothing is left of a failed try.

Flow: `EnvironmentClient.open` → `Opener.open` → `Ledger.open` → the source; the prompt is part of it.
"""

from __future__ import annotations

import asyncio
import logging
import time

from asyncio_throttle import Throttler

from multienv.errors import ServerError, SessionLimitError
from multienv.sessions.breaker import CircuitBreaker
from multienv.sessions.ledger import Ledger, LiveSession
from multienv.sessions.loop import retrieve
from multienv.sessions.protocol import Source
from multienv.sessions.retries import retrying
from multienv.sessions.slots import Slots, share
from multienv.sessions.toolsets import asks_sessions
from multienv.specs import EnvSpec
from multienv.types import TaskKey

logger = logging.getLogger(__name__)


class Opener:
    """Opens the sessions of one environment. Its coroutines run on the session loop.

    Attributes:
        takes_messages: True for prompts as conversations, where the environment has them.

    Args:
        name: Name of the environment in the mixture.
        spec: Its declaration.
        ledger: Where its sessions are entered.
        num_ranks: How many processes share the limits.
    """

    def __init__(self, name: str, spec: EnvSpec, ledger: Ledger, num_ranks: int = 1) -> None:
        self.name = name
        self.breaker = CircuitBreaker(name, spec.limits)
        self.takes_messages = False
        self._has_told = False
        self._spec = spec
        self._ledger = ledger
        limits = spec.limits
        self.max_sessions = share(limits.max_sessions, num_ranks)
        self._slots = Slots(self.max_sessions, f"limits.max_sessions of environment {name!r} (this process's share)")
        self._starts = asyncio.Semaphore(share(limits.max_concurrent_starts, num_ranks) or 1)
        # One start per period, rather than many at its beginning: what is limited is the rate.
        period_s = num_ranks / limits.starts_per_s if limits.starts_per_s else None
        self._throttle = None if period_s is None else Throttler(rate_limit=1, period=period_s)

    async def open(self, source: Source, key: TaskKey) -> LiveSession:
        """Open a session and fetch its prompt, trying again with a fresh session where that can help.

        Args:
            source: Where to open it.
            key: The task.

        Raises:
            CircuitOpenError: The environment is left alone for now.
            SessionLimitError: All sessions the limits allow are in use.
            ServerError: It could not be opened, or its prompt not be had; nothing is left behind.
        """
        self.breaker.check()
        slots = [self._slots, self._ledger.slots]
        await _take(slots)
        live: LiveSession | None = None
        tries = retrying(self._spec.limits.max_retries)
        try:
            opened: LiveSession = await tries(self._try, source, key)
            live = opened
        except ServerError as error:
            error.num_tries = tries.statistics["attempt_number"]
            self.breaker.record(is_success=False)
            raise
        finally:
            if live is None:
                for slot in slots:
                    slot.give_back_unused()
        opened.num_tries = tries.statistics["attempt_number"]
        self.breaker.record(is_success=True)
        opened.watch(self.breaker, slots)
        return opened

    async def _try(self, source: Source, key: TaskKey) -> LiveSession:
        async with self._starts:
            if self._throttle is not None:
                await self._throttle.acquire()  # before the mixture's own gate, where others would wait behind it
            async with self._ledger.starts:
                limits, started = self._spec.limits, time.monotonic()
                live = await self._ledger.open(self.name, source, limits, split=key.split, index=key.index)
                try:
                    await self._fetch(live)
                except BaseException:
                    await live.close()
                    raise
                live.open_s = time.monotonic() - started
                return live

    async def _fetch(self, live: LiveSession) -> None:
        """Fetch what an episode starts with: the prompt, and the tools of its task."""
        listing = asyncio.ensure_future(live.list_tools()) if asks_sessions(self._spec) else None
        if listing is not None:
            listing.add_done_callback(retrieve)  # where the prompt fails, nobody asks what became of it
        try:
            await live.fetch_prompt(as_messages=self.takes_messages)
            if listing is not None:
                await asyncio.wait({listing})
        finally:
            if listing is not None and not listing.done():
                listing.cancel()
        if listing is not None and not listing.cancelled() and (error := listing.exception()):
            if not isinstance(error, ServerError):
                raise error
            level = logging.DEBUG if self._has_told else logging.WARNING
            self._has_told = True
            logger.log(level, "environment %r: a task's tools are not known, the shared ones are: %s", self.name, error)


async def _take(slots: list[Slots]) -> None:
    """Take one of each, or none."""
    taken: list[Slots] = []
    try:
        for slot in slots:
            await slot.take()
            taken.append(slot)
    except (SessionLimitError, asyncio.CancelledError):
        for slot in taken:
            slot.give_back_unused()
        raise
