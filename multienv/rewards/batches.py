"""Decides when a batch's episodes are over, and when it has been scored: before the first and after the last function.

Flow: `meta` wraps every reward function with `Batches.watch`; before the first, last messages are graded; after the
last, the batch's sessions are let go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multienv.rewards.functions import callable_name, is_async


class Batches:
    """Counts which reward functions have seen the current batch.

    A trainer that was given only some of the functions never comes to the end; sessions then close at the next `reset`.

    Attributes:
        tells_end: False where someone else sees to the end of a batch.

    Args:
        on_begin: Called with the batch's environments and completions, before each function; it may do nothing twice.
        on_end: Called with the batch's environments.
    """

    def __init__(
        self, on_begin: Callable[[Sequence[Any], Sequence[Any]], None], on_end: Callable[[Sequence[Any]], None]
    ) -> None:
        self.tells_end = True
        self._on_begin = on_begin
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
                self._begin(batch)
                try:
                    return await function(**batch)
                finally:
                    self._note(number, batch.get("environments"))

        else:

            def watched(**batch: Any) -> Any:  # type: ignore[misc]  # the two kinds TRL knows
                self._begin(batch)
                try:
                    return function(**batch)
                finally:
                    self._note(number, batch.get("environments"))

        watched.__name__ = watched.__qualname__ = callable_name(function)
        watched.__doc__ = function.__doc__
        return watched

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is no part of the count, called with a batch whose episodes are over."""

        def begun(**batch: Any) -> Any:
            self._begin(batch)
            return function(**batch)

        begun.__name__ = begun.__qualname__ = callable_name(function)
        begun.__doc__ = function.__doc__
        return begun

    def _begin(self, batch: Mapping[str, Any]) -> None:
        environments, completions = batch.get("environments"), batch.get("completions")
        if environments is not None and completions is not None:
            self._on_begin(environments, completions)

    def _note(self, number: int, environments: Sequence[Any] | None) -> None:
        if environments is None or not self.tells_end:
            return
        if environments is not self._environments:
            self._environments, self._seen = environments, set()
        self._seen.add(number)
        if len(self._seen) == self._num_functions:
            self._on_end(environments)
            self._environments = None
