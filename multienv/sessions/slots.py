"""Decides whether one more session may be open: now, as soon as one that is closing is gone, or never.

Flow: `Opener` takes a slot before it opens a session; `LiveSession` gives it back in two steps.
"""

from __future__ import annotations

import asyncio

from multienv.errors import SessionLimitError


class Slots:
    """The sessions that may be open at once. Its methods run on the session loop.

    Invariant: `held + closing <= most`.

    Args:
        most: How many; None for no limit.
        limit: What sets the limit, for the error.
    """

    def __init__(self, most: int | None, limit: str) -> None:
        self._most = most
        self._limit = limit
        self.held = 0
        self.closing = 0
        self._freed = asyncio.Event()

    async def take(self) -> None:
        """Take a slot, waiting for sessions that are closing, but not for those that are in use.

        Raises:
            SessionLimitError: All slots are in use, by rollouts of the same batch: waiting would not end.
        """
        while self._most is not None and self.held + self.closing >= self._most:
            if not self.closing:
                raise SessionLimitError(
                    f"{self.held} sessions are open and one more is needed, but {self._limit} is {self._most}; a "
                    "batch's sessions are all open before its first token, so raise the limit, lower "
                    "per_device_train_batch_size or steps_per_generation, or mix in more of the other environments"
                )
            self._freed.clear()
            await self._freed.wait()
        self.held += 1

    def start_closing(self) -> None:
        """Note that a session is no longer in use, but not gone yet."""
        self.held -= 1
        self.closing += 1

    def give_back(self) -> None:
        """Note that a session that was closing is gone."""
        self.closing -= 1
        self._freed.set()

    def give_back_unused(self) -> None:
        """Note that the session was not opened after all."""
        self.held -= 1
        self._freed.set()


def share(limit: int | None, num_ranks: int) -> int | None:
    """Return one process's share of a limit, at least 1."""
    return None if limit is None else max(1, limit // num_ranks)
