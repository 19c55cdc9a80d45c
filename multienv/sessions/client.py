"""Decides what the synchronous rooms see of an environment: plain methods that block, and nothing of asyncio.

Flow: `dataset` reads tasks, `router` opens sessions; both through `EnvironmentClient`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from multienv.errors import MultiEnvError, OrderError
from multienv.sessions.ledger import Ledger, LiveSession, termination, time_is_up
from multienv.sessions.loop import session_loop, within
from multienv.sessions.opening import Opener
from multienv.sessions.protocol import Catalogue, Source
from multienv.sessions.tasks import Outline, read_outline, read_splits, read_tasks
from multienv.sessions.toolsets import asks_sessions
from multienv.specs import EnvSpec, TargetKind, TaskChoice, TaskSet, server_identity
from multienv.types import Task, TaskKey, ToolListing

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_PROBES = 8
"""Most sessions opened to learn the tools that only tasks have."""
_MOST_LISTINGS = 256


def make_source(name: str, spec: EnvSpec) -> Source:
    """Make the source a declaration asks for. Imports the SDK, which takes seconds the first time."""
    if spec.kind is TargetKind.IN_PROCESS:
        from multienv.sessions.inprocess import InProcessSource  # noqa: PLC0415 - imports the SDK

        return InProcessSource(name, spec)
    from multienv.sessions.openreward import HttpSource  # noqa: PLC0415 - imports the SDK

    return HttpSource(name, spec)


class EnvironmentClient:
    """The blocking face of one environment. Connects at first use, fetches each thing once.

    Attributes:
        takes_messages: True for prompts as conversations, where the environment has them.
        listings: What has been learnt about its tools: under None what all tasks share, and one task's listing for each
            other set of tools that was met: under its index, or `split/index` in another split than the first declared.

    Args:
        name: Name of the environment in the mixture.
        spec: Its declaration.
        ledger: Where its sessions are entered.
        source: Where it lives; None for what the declaration says.
        num_ranks: How many processes share its limits.
    """

    def __init__(
        self, name: str, spec: EnvSpec, ledger: Ledger, source: Source | None = None, num_ranks: int = 1
    ) -> None:
        self.name = name
        self.spec = spec
        self._ledger = ledger
        self.share_among(num_ranks)
        self.takes_messages = False
        self.listings: dict[int | str | None, ToolListing] = {}
        self._declared_source = source
        self._source: Source | None = None
        self._connected_source: Source | None = None
        self._connecting = asyncio.Lock()
        self._ahead: dict[TaskKey, deque[asyncio.Task[LiveSession]]] = {}
        self._is_closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def prepare(self) -> None:
        """Make the source, on the caller's thread: the first one imports the SDK, which takes seconds.

        Raises:
            OrderError: The mixture was closed.
        """
        self._start_anew_after_fork()
        with self._lock:
            self.check_open()
            if self._source is None:
                self._source = self._declared_source or make_source(self.name, self.spec)
                self._connecting = asyncio.Lock()

    def check_open(self) -> None:
        """Say so if the mixture was closed.

        Raises:
            OrderError: It was.
        """
        if self._is_closed:
            raise OrderError(
                f"environment {self.name!r} is used after close(); make a new MultiEnvSpec", environment=self.name
            )

    def connect(self) -> None:
        """Reach the environment; the first use does it by itself.

        Raises:
            ServerError: It cannot be reached.
            UnknownEnvironmentError: Its server does not hold the declared environment.
            OrderError: The mixture was closed.
        """
        self.prepare()
        session_loop().run(self._connected())

    async def _connected(self) -> Source:
        source = self._source
        if source is None:
            raise OrderError(f"environment {self.name!r} is used after close()", environment=self.name)
        async with self._connecting:
            if self._connected_source is not source:
                await self._ledger.connect(source)
                self._connected_source = source
        return source

    def _start_anew_after_fork(self) -> None:
        """In a forked child, leave the parent's connection and sessions to the parent and start with none."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._source, self._connected_source, self._ahead = None, None, {}
            self._ledger = self._ledger.after_fork()
            self.share_among(self._num_ranks)

    async def fetch_tasks(self, choice: TaskChoice) -> tuple[list[Task], TaskSet]:
        """Fetch chosen tasks, in the chosen order, and what they are called on their server.

        Args:
            choice: Which tasks; what is to be excluded of them is among them.

        Raises:
            SpecError: The declaration does not fit the server: split, index, empty list.
            ServerError: The server cannot be reached, or answers wrongly or not in time.
        """
        source = await self._connected()
        tasks = await self._in_time(self._read_catalogue(source, read_tasks, choice))
        indices = frozenset(task.index for task in tasks)
        server = server_identity(self.spec.target)
        return tasks, TaskSet(self.name, server, source.environment, choice.split, indices)

    async def fetch_outline(self, choice: TaskChoice) -> Outline:
        """Fetch which tasks are chosen, and the first of them.

        Raises:
            SpecError: The declaration does not fit the server: split, index, empty list.
            ServerError: The server cannot be reached, or answers wrongly or not in time.
        """
        source = await self._connected()
        read = functools.partial(read_outline, environment=self.name)
        outline = await self._in_time(self._read_catalogue(source, read, choice))
        return replace(outline, served_name=source.environment)

    async def _in_time(self, coroutine: Coroutine[Any, Any, T]) -> T:
        seconds = self.spec.limits.open_timeout_s
        try:
            return await within(seconds, coroutine)
        except TimeoutError:
            raise time_is_up(self.name, "no answer", seconds, "open_timeout_s") from None

    async def _read_catalogue(
        self, source: Source, read: Callable[[Catalogue, TaskChoice], Coroutine[Any, Any, T]], choice: TaskChoice
    ) -> T:
        try:
            async with source.catalogue() as catalogue:
                return await read(catalogue, choice)
        except MultiEnvError as error:
            if error.environment is not None:
                raise
            raise type(error)(f"environment {self.name!r}: {error}", environment=self.name) from error

    async def fetch_splits(self) -> dict[str, int | None]:
        """Fetch the splits with their numbers of tasks; None where that is not known. See `tasks.read_splits`.

        Raises:
            ServerError: The server cannot be reached, or answers wrongly or not in time.
        """
        source = await self._connected()
        return await self._in_time(self._read_catalogue(source, read_splits, self.spec.first_choice))

    async def fetch_shared_tools(self) -> ToolListing:
        """Fetch the tools that all tasks share; no session is opened.

        Raises:
            ServerError: The server cannot be reached, or answers wrongly or not in time.
        """
        source = await self._connected()
        return await self._in_time(source.list_tools())

    async def fetch_required_secrets(self) -> Sequence[str]:
        """Fetch the names of the secrets a session needs, where that is published anywhere.

        Raises:
            ServerError: Whoever publishes it cannot be reached, or answers wrongly or not in time.
        """
        source = await self._connected()
        return await self._in_time(source.list_required_secrets())

    async def fetch_tools(self) -> ToolListing:
        """Fetch the tools of the environment, those that only tasks have included.

        A few short sessions are opened for that, unless `discover_task_tools` is off and there is no toolset; where it
        fails, the shared tools must do.
        The tools of other tasks are learnt when their sessions open.

        Raises:
            ServerError: The server cannot be reached, or answers wrongly or not in time.
        """
        return await self._discover_tools(await self._connected())

    async def _discover_tools(self, source: Source) -> ToolListing:
        shared = await self._in_time(source.list_tools())
        self.listings = {None: shared}
        if not asks_sessions(self.spec):
            return shared
        indices = self._probe_indices()
        listings = await asyncio.gather(
            *(self._probe_tools(source, index) for index in indices), return_exceptions=True
        )
        found = self._keep_listings(indices, listings)
        # A toolset's tools take the place of the environment's own, which only a session's listing shows.
        first = found[0] if found and self.spec.toolset is not None else shared
        tools = {tool.name: tool for tool in first.tools}
        for tool in (tool for listing in found for tool in listing.tools):
            if tools.setdefault(tool.name, tool) != tool:
                logger.warning(
                    "environment %r: tool %r differs between tasks; MultiEnvGRPOTrainer shows each task its own form, "
                    "TRL's trainer the first one",
                    self.name,
                    tool.name,
                )
        terminal = next((listing.terminal_tool for listing in (first, *found) if listing.terminal_tool), None)
        return replace(shared, tools=tuple(tools.values()), terminal_tool=terminal)

    def _keep_listings(
        self, indices: Sequence[int], listings: Sequence[ToolListing | BaseException]
    ) -> list[ToolListing]:
        """Keep what was learnt from probed tasks; a probe that failed is logged."""
        found = []
        for index, listing in zip(indices, listings, strict=True):
            if isinstance(listing, BaseException):
                logger.warning(
                    "environment %r: a session to discover task tools failed, going on without: %s", self.name, listing
                )
            else:
                self.listings[index] = listing
                found.append(listing)
        return found

    def _probe_indices(self) -> Sequence[int]:
        if self.spec.task_tools_discovery_index is not None:
            return [self.spec.task_tools_discovery_index]
        choice = self.spec.first_choice
        distinct = sorted(set(choice.indices or ()) - choice.excluded_indices) or [choice.first]
        if len(distinct) <= MAX_PROBES:
            return distinct
        logger.warning(
            "environment %r: the tools of %d of its %d tasks were looked up; those of others are learnt at their "
            "reset, and only MultiEnvGRPOTrainer shows them",
            self.name,
            MAX_PROBES,
            len(distinct),
        )
        return [distinct[i * (len(distinct) - 1) // (MAX_PROBES - 1)] for i in range(MAX_PROBES)]

    async def _probe_tools(self, source: Source, index: int) -> ToolListing:
        split = self.spec.first_choice.split
        live = await self._ledger.open(self.name, source, self.spec.limits, split=split, index=index)
        try:
            return await live.list_tools()
        finally:
            await live.close()

    def open(self, task: TaskKey | int) -> Coroutine[Any, Any, LiveSession]:
        """Make the coroutine that opens a session for one task, its prompt fetched; it runs on the session loop.

        Args:
            task: The task; an index alone is one of the split that the environment trains on.

        Raises:
            OrderError: The mixture was closed. The coroutine raises what `connect` and `Opener.open` do.
        """
        self.prepare()
        termination.install()
        return self._open(self._key(task))

    def _key(self, task: TaskKey | int) -> TaskKey:
        return task if isinstance(task, TaskKey) else TaskKey(self.spec.first_choice.split, task)

    async def _open(self, key: TaskKey) -> LiveSession:
        if ahead := self._ahead.get(key):
            return await ahead.popleft()
        return await self._open_anew(key)

    async def _open_anew(self, key: TaskKey) -> LiveSession:
        self.opener.takes_messages = self.takes_messages and any(
            listing.has_messages for listing in self.listings.values()
        )
        live = await self.opener.open(await self._connected(), key)
        is_new = live.listing is not None and live.listing not in self.listings.values()
        if live.listing is not None and is_new and len(self.listings) < _MOST_LISTINGS:
            is_first_split = key.split == self.spec.first_choice.split
            self.listings[key.index if is_first_split else f"{key.split}/{key.index}"] = live.listing
        return live

    def open_ahead(self, task: TaskKey | int) -> None:
        """Start opening a session that the next `open` for this task will get."""
        self.prepare()
        session_loop().loop.call_soon_threadsafe(self._start_ahead, self._key(task))

    def _start_ahead(self, key: TaskKey) -> None:
        task = asyncio.get_running_loop().create_task(self._open_anew(key))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # told to whoever takes it, if anyone
        self._ahead.setdefault(key, deque()).append(task)

    def share_among(self, num_ranks: int) -> None:
        """Keep one process's share of the environment's limits; before the first session."""
        self._num_ranks = num_ranks
        self.opener = Opener(self.name, self.spec, self._ledger, num_ranks)

    def close(self) -> None:
        """Open no more sessions. The ledger closes those there are, and the connection."""
        with self._lock:
            self._is_closed = True
            self._source = None
        self.drop_ahead()

    def drop_ahead(self) -> None:
        """Close the sessions that were opened ahead and that nobody asked for."""
        session_loop().loop.call_soon_threadsafe(self._drop_ahead)

    def _drop_ahead(self) -> None:
        for tasks in self._ahead.values():
            for task in tasks:
                if not task.done():
                    task.cancel()
                elif not task.cancelled() and task.exception() is None:
                    task.result().start_closing()
        self._ahead.clear()
