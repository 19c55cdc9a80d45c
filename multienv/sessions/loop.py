"""Decides where I/O happens: on one event loop, on one daemon thread, for the whole process.

Flow: `EnvironmentClient` → `run` → coroutines of the sources and sessions.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from multienv.errors import OrderError

T = TypeVar("T")

_guard = threading.Lock()
_loops: list[EventLoopThread] = []


class _Workers:
    """Daemon threads that run blocking functions. Unlike an executor's they are not waited for at exit.

    Args:
        most: Most threads; functions beyond that wait for one.
    """

    def __init__(self, most: int) -> None:
        self._idle = threading.Semaphore(0)
        self._most = most
        self._num_threads = 0
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function on a thread; called from one loop only."""
        future: Future[Any] = Future()
        self._work.put((future, function))
        if not self._idle.acquire(blocking=False) and self._num_threads < self._most:
            self._num_threads += 1
            threading.Thread(target=self._run, name="multienv-worker", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, function = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
                    future.set_exception(error)
            self._idle.release()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose default executor does not hold up the interpreter's exit."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = _Workers(most=32)

    def run_in_executor(  # type: ignore[override]  # named as the rest of the file names things
        self, executor: Any, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Run a blocking function; on a daemon thread unless an executor is given."""
        if executor is not None:
            return super().run_in_executor(executor, function, *arguments)
        return asyncio.wrap_future(self._workers.submit(functools.partial(function, *arguments)), loop=self)


class EventLoopThread:
    """An event loop that runs on a daemon thread of its own.

    Args:
        name: Name of the thread, as a debugger shows it.
    """

    def __init__(self, name: str) -> None:
        self.loop = _Loop()
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
        """Cancel what still runs on the loop and stop it."""
        asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self.loop.close()


async def within(seconds: float | None, awaitable: Awaitable[T]) -> T:
    """Await something for so long, None for ever; past that it is cancelled, and not waited for even if it lingers.

    Raises:
        TimeoutError: The time is up.
    """
    task = asyncio.ensure_future(awaitable)
    task.add_done_callback(retrieve)  # past the time, and where the wait is cancelled, nobody asks what became of it
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not task.done():
        task.cancel()
        raise TimeoutError
    return task.result()


def retrieve(done: asyncio.Future[Any]) -> None:
    """Take note of how a future ended, so that asyncio does not print that nobody did."""
    if not done.cancelled():
        done.exception()


async def all_or_first_error(coroutines: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Run coroutines at once; the first error cancels the others and is raised without waiting for them."""
    tasks = {name: asyncio.ensure_future(coroutine) for name, coroutine in coroutines.items()}
    try:
        await asyncio.gather(*tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
        raise
    return {name: task.result() for name, task in tasks.items()}


async def _cancel_all() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=2)
    asyncio.get_running_loop().stop()


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
