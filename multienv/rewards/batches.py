"""Decides when a batch's episodes are over, which of them count, and when all has been scored.

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
        is_scorable: Tells of one of the batch's environments whether its rollout may count; no function's number for
            another rollout does.
    """

    def __init__(
        self,
        on_begin: Callable[[Sequence[Any], Sequence[Any]], None],
        on_end: Callable[[Sequence[Any]], None],
        is_scorable: Callable[[Any], bool],
    ) -> None:
        self.tells_end = True
        self._on_begin = on_begin
        self._on_end = on_end
        self._is_scorable = is_scorable
        self._num_functions = 0
        self._environments: Sequence[Any] | None = None
        self._seen: set[int] = set()

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the same name and kind, its calls noted.

        Its results are the same but for rollouts that infrastructure ended, which are None: what a function makes of a
        prompt that says "could not be started" would be trained on beside rollouts that had a task.
        """
        number = self._num_functions
        self._num_functions += 1
        return self._wrapped(function, lambda batch: self._note(number, batch.get("environments")))

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is no part of the count, with the same name and kind, and results as in `watch`."""
        return self._wrapped(function, lambda _: None)

    def _wrapped(
        self, function: Callable[..., Any], on_done: Callable[[Mapping[str, Any]], None]
    ) -> Callable[..., Any]:
        if is_async(function):

            async def wrapped(**batch: Any) -> Any:
                self._begin(batch)
                try:
                    return self._scorable(batch, await function(**batch))
                finally:
                    on_done(batch)

        else:

            def wrapped(**batch: Any) -> Any:  # type: ignore[misc]  # the two kinds TRL knows
                self._begin(batch)
                try:
                    return self._scorable(batch, function(**batch))
                finally:
                    on_done(batch)

        wrapped.__name__ = wrapped.__qualname__ = callable_name(function)
        wrapped.__doc__ = function.__doc__
        return wrapped

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

    def _scorable(self, batch: Mapping[str, Any], rewards: Any) -> Any:
        """Return a function's results, None for rollouts that infrastructure ended."""
        is_scorable = [self._is_scorable(environment) for environment in batch.get("environments") or ()]
        if all(is_scorable) or not hasattr(rewards, "__len__") or len(rewards) != len(is_scorable):
            return rewards  # TRL says what is wrong
        return [reward if counts else None for reward, counts in zip(rewards, is_scorable, strict=True)]

    def _note(self, number: int, environments: Sequence[Any] | None) -> None:
        if environments is None or not self.tells_end:
            return
        if environments is not self._environments:
            self._environments, self._seen = environments, set()
        self._seen.add(number)
        if len(self._seen) == self._num_functions:
            self._on_end(environments)
            self._environments = None
