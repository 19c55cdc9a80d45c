"""Decides when a batch has been scored: when the last of the mixture's reward functions has seen it.

Flow: `meta` wraps every reward function with `BatchEnd.watch`; at the end the batch's sessions are let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multienv.rewards.functions import callable_name, is_async


class BatchEnd:
    """Counts which reward functions have seen the current batch.

    A trainer that was given only some of the functions never comes to the end; sessions then close at the next `reset`.

    Args:
        on_end: Called with the batch's environments, unless `is_on` is False.
    """

    def __init__(self, on_end: Callable[[Sequence[Any]], None]) -> None:
        self.is_on = True
        self._on_end = on_end
        self._num_functions = 0
        self._environments: Sequence[Any] | None = None
        self._seen: set[int] = set()

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the same name, kind and results, its calls noted."""
        number = self._num_functions
        self._num_functions += 1
        if is_async(function):

            async def watched(**batch: Any) -> Any:
                try:
                    return await function(**batch)
                finally:
                    self._note(number, batch.get("environments"))

        else:

            def watched(**batch: Any) -> Any:  # type: ignore[misc]  # the two kinds TRL knows
                try:
                    return function(**batch)
                finally:
                    self._note(number, batch.get("environments"))

        watched.__name__ = watched.__qualname__ = callable_name(function)
        watched.__doc__ = function.__doc__
        return watched

    def _note(self, number: int, environments: Sequence[Any] | None) -> None:
        if environments is None or not self.is_on:
            return
        if environments is not self._environments:
            self._environments, self._seen = environments, set()
        self._seen.add(number)
        if len(self._seen) == self._num_functions:
            self._on_end(environments)
            self._environments = None
