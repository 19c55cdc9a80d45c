"""Decides where I/O happens: on one event loop, on one daemon thread, for the whole process.

Flow: `EnvironmentClient` → `run` → coroutines of the sources and sessions.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from multienv.errors import OrderError

T = TypeVar("T")

_guard = threading.Lock()
_loops: list[EventLoopThread] = []


class EventLoopThread:
    """An event loop that runs on a daemon thread of its own.

    Args:
        name: Name of the thread, as a debugger shows it.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result; blocks the calling thread.

        An exception in the caller, such as Ctrl-C, cancels the coroutine.

        Raises:
            OrderError: Called from the loop itself, where waiting would never end.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise OrderError("a blocking call was made from the session loop itself; await the coroutine there instead")
        return self.wait(self.submit(coroutine))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine and return at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait(self, future: Future[T]) -> T:
        """Wait for what `submit` returned; an exception in the caller, such as Ctrl-C, cancels it."""
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def await_here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop and await it from another one; cancelling the wait cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def stop(self) -> None:
        """Stop the loop; what still runs on it is abandoned."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self.loop.close()


def session_loop() -> EventLoopThread:
    """Return this process's session loop, started at first use; a forked child gets its own."""
    with _guard:
        if not _loops:
            _loops.append(EventLoopThread("multienv-sessions"))
        return _loops[0]


def _forget() -> None:
    """Forget the parent's loop, whose thread does not exist in a forked child; its lock may be held there for ever."""
    global _guard  # noqa: PLW0603 - one per process, by the nature of the thing
    _guard = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)
