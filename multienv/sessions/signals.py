"""Decides what a SIGTERM does while sessions are open: they are closed first, then what would have happened happens.

Ctrl-C needs nothing of the kind: it raises, and sessions are closed by `with`, or when the interpreter exits.

Flow: `EnvironmentClient.open` installs the handler from the main thread; `Ledger` restores what was there before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class TerminationHandler:
    """A handler of SIGTERM that chains to the one before it. Installed and restored on the main thread only.

    Args:
        close: Closes every session; called from the handler.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._previous: Any = None
        self.is_installed = False

    def install(self) -> None:
        """Put the handler in place, once; elsewhere than on the main thread it cannot be done, and is not."""
        if self.is_installed or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None:  # one that was not installed from Python, and so cannot be put back
            return
        if previous == signal.SIG_IGN:  # the process is meant to live on
            return
        self._previous = previous
        signal.signal(signal.SIGTERM, self._handle)
        self.is_installed = True

    def restore(self) -> None:
        """Put back what was there before, unless someone else has put their own in the meantime."""
        if not self.is_installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
        self.is_installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous
        self.restore()
        self._close()
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.raise_signal(number)
