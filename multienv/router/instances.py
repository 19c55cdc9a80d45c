"""Decides who makes the instances of a foreign environment, and that each is closed once.

Flow: `foreign.ForeignAdapter` takes instances here → `ForeignInstances.close` at `MultiEnvSpec.close`, or at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import util
from typing import Any, Final

from multienv.errors import OrderError, SpecError
from multienv.sessions import session_loop

logger = logging.getLogger(__name__)

_CLOSERS: Final = ("close", "_close", "_stop")
_EXIT_PATIENCE_S: Final = 30.0


@dataclass(slots=True, eq=False)
class Held:
    """An instance in use.

    Attributes:
        instance: The instance; None once it has been closed and let go of.
        loop: The event loop that last ran one of its coroutines, or None.
        pid: The process that made it; a forked child leaves its parent's alone.
    """

    instance: Any
    loop: asyncio.AbstractEventLoop | None = None
    pid: int = field(default_factory=os.getpid)


class ForeignInstances:
    """Makes the instances of one foreign environment, and knows those it made until they are closed.

    They are kept for as long as the mixture is open: TRL resets an instance for the next batch, and closes none.

    Args:
        name: Name of the environment.
        factory: Makes an instance.
    """

    def __init__(self, name: str, factory: Callable[[], Any]) -> None:
        self.name = name
        self._factory = factory
        self._held: list[Held] = []
        self._spare: list[Held] = []
        self._is_closed = False
        self._lock = threading.Lock()

    @cached_property
    def environment_class(self) -> type:
        """The class of the instances, whose functions are the tools. Only an opaque factory is called for it."""
        made = self._factory
        while isinstance(made, functools.partial):
            made = made.func
        if isinstance(made, type):
            return made
        self._spare.append(self._make())
        return type(self._spare[0].instance)

    def hold(self) -> Held:
        """Make an instance, to be closed when the mixture is.

        Raises:
            OrderError: The mixture is closed.
            SpecError: The factory gave an instance that is in use already.
        """
        self.check_open()
        held = self._spare.pop() if self._spare else self._make()
        with self._lock:
            if any(other.instance is held.instance for other in self._held):
                raise SpecError(
                    f"environment {self.name!r}: environment_factory returned the same object twice, so that rollouts "
                    "would play in each other's episode; make a new instance in every call",
                    environment=self.name,
                )
            self._held.append(held)
        return held

    def check_open(self) -> None:
        """Check that instances may still be used.

        Raises:
            OrderError: The mixture is closed.
        """
        if self._is_closed:
            raise OrderError(f"environment {self.name!r} is closed; make a new MultiEnvSpec", environment=self.name)

    def close(self, patience_s: float) -> None:
        """Close every instance; failures are logged. Safe to call twice.

        Plain functions are called here, one after the other, for they may be bound to this thread; coroutines run at
        once.

        Args:
            patience_s: How long coroutines are waited for.
        """
        self._is_closed = True
        _in_use.discard(self)
        with self._lock:
            held = [one for one in (*self._held, *self._spare) if one.pid == os.getpid()]
            self._held, self._spare = [], []
        running = [thread for one in held if (thread := self._start_closing(one, patience_s)) is not None]
        deadline = time.monotonic() + patience_s
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        if late := sum(thread.is_alive() for thread in running):
            logger.warning("environment %r: %d instances were not closed within %g s", self.name, late, patience_s)
        for one in held:
            if hasattr(type(one.instance), "__del__"):
                one.instance = None  # now, while its threads still run, and not in the middle of the interpreter's end

    def _make(self) -> Held:
        _close_at_exit(self)
        return Held(self._factory())

    def _start_closing(self, held: Held, patience_s: float) -> threading.Thread | None:
        """Call an instance's closer; return the thread that runs it if it is a coroutine function."""
        closer = closer_name(type(held.instance))
        if closer is None:
            return None
        close = getattr(held.instance, closer)
        if not inspect.iscoroutinefunction(close):
            self._contain(close)
            return None
        run = functools.partial(_run_coroutine, held.instance, _not_here(held.loop), close, patience_s)
        thread = threading.Thread(target=self._contain, args=(run,), name="multienv-closing", daemon=True)
        thread.start()
        return thread

    def _contain(self, close: Callable[[], object]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - nobody is left who could act on it
            logger.warning("environment %r: closing an instance failed: %r", self.name, error)


def closer_name(cls: type) -> str | None:
    """Return the method that closes an instance: the first of `close`, `_close`, `_stop` that needs no arguments."""
    return next((name for name in _CLOSERS if _needs_nothing(getattr(cls, name, None))), None)


def _needs_nothing(function: Any) -> bool:
    if not inspect.isfunction(function):
        return False
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def _not_here(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop | None:
    """Return a loop, unless it is this thread's: that one runs nothing while this thread closes."""
    try:
        return None if loop is asyncio.get_running_loop() else loop
    except RuntimeError:
        return loop


def _run_coroutine(
    instance: Any,
    loop: asyncio.AbstractEventLoop | None,
    close: Callable[[], Coroutine[Any, Any, object]],
    patience_s: float,
) -> None:
    """Run a closer where the instance's other coroutines ran: through its own `_run`, or on the loop last seen."""
    run = getattr(instance, "_run", None)
    if inspect.ismethod(run) and not inspect.iscoroutinefunction(run):
        run(close())  # as TRL's HarborEnv has it, whose clients live on a loop of their own
    elif loop is not None and loop.is_running():
        asyncio.run_coroutine_threadsafe(close(), loop).result(patience_s)
    else:
        session_loop().submit(close()).result(patience_s)


_in_use: set[ForeignInstances] = set()


def _close_at_exit(instances: ForeignInstances) -> None:
    """Have instances closed at the interpreter's exit; a process of `multiprocessing` has exit hooks of its own."""
    if not _in_use:
        if multiprocessing.parent_process() is None:
            atexit.unregister(_close_all)
            atexit.register(_close_all)
        else:
            util.Finalize(None, _close_all, exitpriority=10)
    _in_use.add(instances)


def _close_all() -> None:
    for instances in list(_in_use):
        instances.close(_EXIT_PATIENCE_S)
