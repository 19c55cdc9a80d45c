"""Decides what environments of one class share in this process: an event loop, as on a server, and the class's tasks.

The SDK keeps asyncio's locks on the class, and so do many environments; those belong to one loop.

Flow: `inprocess.InProcessSource` takes the class's loop when it connects, and gives it back when it is closed.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

from openreward.environments import Environment

from multienv.sessions.loop import EventLoopThread

TASKS: Final = "_tasks_cache"
"""Where the SDK keeps the tasks of a class by split; a contract test pins it."""
LOCKS: Final = "_tasks_cache_locks"
"""Where the SDK keeps the locks under which they are listed; a contract test pins it."""


@dataclass(slots=True)
class _Shared:
    loop: EventLoopThread
    num_users: int = 0


_guard = threading.Lock()
_shared: dict[type[Environment], _Shared] = {}


def take_loop(cls: type[Environment]) -> EventLoopThread:
    """Return the loop on which all environments of a class run, started for the first of them."""
    with _guard:
        if cls not in _shared:
            _set_own_caches(cls)
            _shared[cls] = _Shared(EventLoopThread(f"multienv-{cls.__name__}"))
        _shared[cls].num_users += 1
        return _shared[cls].loop


def give_back(cls: type[Environment], loop: EventLoopThread) -> None:
    """Stop a class's loop, unless others still use it."""
    with _guard:
        shared = _shared.get(cls)
        if shared is None or shared.loop is not loop:
            return  # of the process that this one was forked from
        shared.num_users -= 1
        if shared.num_users:
            return
        del _shared[cls]
    loop.stop()


def _set_own_caches(cls: type[Environment]) -> None:
    """Keep a class from taking its parent's tasks for its own, which the SDK finds on it by inheritance.

    The locks are made anew: those of an earlier loop cannot be waited for on this one.
    """
    if TASKS not in vars(cls):
        setattr(cls, TASKS, {})
    setattr(cls, LOCKS, {})


def _forget() -> None:
    """Forget the parent's loops, whose threads do not exist in a forked child; its lock may be held there for ever."""
    global _guard  # noqa: PLW0603 - one per process, by the nature of the thing
    _guard = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget)
