"""Decides what a user's reward function for one environment sees: its own rows, in order, once, and nothing else.

Flow: TRL calls the routed function with the batch → the rows of the environment are cut out → the user's function → its
results are put back in place, None elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multienv.errors import RewardFunctionError
from multienv.rewards.rows import owners
from multienv.rewards.shape import LARGEST_REWARD


@dataclass(frozen=True, slots=True)
class Columns:
    """The metadata columns of a mixture's dataset.

    Attributes:
        own: From each environment to the columns its own task specs have.
    """

    own: Mapping[str, Collection[str]]

    def foreign_to(self, name: str) -> frozenset[str]:
        """Return the columns that only other environments have."""
        everything = frozenset(column for columns in self.own.values() for column in columns)
        return everything - frozenset(self.own.get(name, ()))


class LogColumns:
    """The columns that users' functions have logged; equal names of two functions are told apart.

    TRL appends what is logged to a column; two functions that log one name in one batch would make it too long.
    """

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}

    def claim(self, column: str, function: str, environment: str) -> str:
        """Return the column a function writes to: its own name for the first to use it, else with the environment."""
        if self._owner.setdefault(column, function) == function:
            return column
        return self.claim(f"{environment}/{column}", function, environment)


def callable_name(function: Callable[..., Any]) -> str:
    """Return the name TRL shows for a reward function.

    Source:
        `trl.trainer.utils.get_callable_name`.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def is_function(reward: Any) -> bool:
    """Tell a reward function from a reward model or the name of one, which TRL loads and calls in its own way."""
    return callable(reward) and not hasattr(reward, "state_dict")


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function gives a coroutine, as TRL does.

    Source:
        `trl.trainer.utils.is_async_callable`.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - whether it is async is asked, not whether it is callable


def routed(
    function: Callable[..., Any],
    environment: str,
    known: Sequence[str],
    columns: Callable[[], Columns],
    log_columns: LogColumns,
) -> Callable[..., Any]:
    """Wrap a user's function so that it sees one environment's rows only.

    Args:
        function: A TRL reward function, sync or async.
        environment: The environment it is for.
        known: All environments of the mixture.
        columns: Gives the dataset's metadata columns, when the first batch comes.
        log_columns: The mixture's logged columns.

    Returns:
        A TRL reward function of the same kind, named `<environment>/<function>`: one `float | None` per row of the
        whole batch.
    """
    return wrap_function(function, FunctionRoute(function, environment, known, columns, log_columns))


def wrap_function(function: Callable[..., Any], route: FunctionRoute) -> Callable[..., Any]:
    """Return a TRL reward function of the same kind that calls a function with its part of the batch only."""
    if is_async(function):

        async def reward(**batch: Any) -> list[float | None]:
            call = route.cut(batch)
            results = await function(**call.keywords) if call.rows else []
            return route.put_back(call, results)

    else:

        def reward(**batch: Any) -> list[float | None]:  # type: ignore[misc]  # the two kinds TRL knows
            call = route.cut(batch)
            results = function(**call.keywords) if call.rows else []
            return route.put_back(call, results)

    reward.__name__ = reward.__qualname__ = route.name
    reward.__doc__ = inspect.getdoc(function)
    return reward


class FunctionRoute:
    """What one routed function remembers from batch to batch."""

    def __init__(
        self,
        function: Callable[..., Any],
        environment: str,
        known: Sequence[str],
        columns: Callable[[], Columns],
        log_columns: LogColumns,
    ) -> None:
        self.name = f"{environment}/{callable_name(function)}"
        self.environment = environment
        self._known = known
        self._columns = columns
        self._log_columns = log_columns
        self._logged: set[str] = set()

    def cut(self, batch: Mapping[str, Any]) -> Call:
        """Cut a batch down to the environment's rows."""
        names = owners(self._known, batch)
        rows = [row for row, name in enumerate(names) if name == self.environment]
        left_out = self._columns().foreign_to(self.environment)
        keywords = {
            key: [value[row] for row in rows] if isinstance(value, list) and len(value) == len(names) else value
            for key, value in batch.items()
            if key not in left_out
        }
        return self.as_call(batch, rows, len(names), keywords)

    def as_call(self, batch: Mapping[str, Any], rows: list[int], num_rows: int, keywords: dict[str, Any]) -> Call:
        """Return the call of the function with its keywords, in which logging is routed too."""
        call = Call(self, rows, num_rows, keywords, log_extra=batch.get("log_extra"))
        if call.log_extra is not None:
            keywords["log_extra"] = functools.partial(self._log_extra, call)
        if "log_metric" in keywords:
            keywords["log_metric"] = functools.partial(self._log_metric, batch["log_metric"])
        return call

    def put_back(self, call: Call, results: Any) -> list[float | None]:
        """Put the function's results in place; columns it logged before and not now are None for the whole batch."""
        rewards = [self._number(value) for value in call.scatter(results, "the function")]
        for column in sorted(self._logged - call.logged):
            if call.log_extra is not None:
                call.log_extra(column, [None] * call.num_rows)
        return rewards

    def _number(self, value: Any) -> float | None:
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.inf
        if number is not None and abs(number) > LARGEST_REWARD:
            raise RewardFunctionError(
                f"reward function {self.name!r} gave {value!r} for a row; accepted: a finite number, or None for "
                "unscored",
                environment=self.environment,
            )
        return number

    def _log_extra(self, call: Call, column: str, values: Sequence[Any]) -> None:
        whole = call.scatter(values, f"log_extra({column!r})")
        name = self._log_columns.claim(column, self.name, self.environment)
        call.logged.add(name)
        self._logged.add(name)
        call.log_extra(name, whole)  # type: ignore[misc]  # given to the user only where there is one

    def _log_metric(self, log_metric: Callable[..., None], name: str, value: float) -> None:
        log_metric(f"{self.environment}/{name}", value)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a user's function: its rows of the batch, its keywords, and what it logged."""

    route: FunctionRoute
    rows: list[int]
    num_rows: int
    keywords: dict[str, Any]
    log_extra: Callable[..., None] | None = None
    logged: set[str] = field(default_factory=set)

    def scatter(self, values: Any, source: str) -> list[Any]:
        """Spread one value per own row over the whole batch.

        Raises:
            RewardFunctionError: Another number of values than own rows.
        """
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise RewardFunctionError(
                f"reward function {self.route.name!r}: {source} gave {values!r}; expected a list with one value per "
                f"row of environment {self.route.environment!r}",
                environment=self.route.environment,
            )
        values = list(values)
        if len(values) != len(self.rows):
            raise RewardFunctionError(
                f"reward function {self.route.name!r}: {source} gave {len(values)} values for {len(self.rows)} rows "
                f"of environment {self.route.environment!r} (the batch has {self.num_rows}); return one per row given",
                environment=self.route.environment,
            )
        whole: list[Any] = [None] * self.num_rows
        for row, value in zip(self.rows, values, strict=True):
            whole[row] = value
        return whole
