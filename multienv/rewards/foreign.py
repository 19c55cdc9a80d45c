"""Decides what a foreign environment's reward function sees: its own rows, its own columns, its own instances.

Flow: `foreign` wraps each function here; TRL calls it with the whole batch, the function is called with its part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multienv.errors import RoutingError
from multienv.rewards.functions import Call, Columns, FunctionRoute, LogColumns, wrap_function
from multienv.rewards.rows import owners
from multienv.types import Column

_TRL_KEYWORDS: Final = frozenset(
    {"prompts", "completions", "completion_ids", "environments", "trainer_state", "log_extra", "log_metric"}
)
_NOT_PASSED: Final = frozenset({"prompt", "completion", "completion_ids"})
"""Columns that TRL keeps from reward functions."""


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """Where a foreign environment's reward functions find what is theirs.

    Attributes:
        environment: Name of the environment.
        known: All environments of the mixture.
        row: Gives the environment's own row of a task index and a `task_id`, which may be None.
        instance_of: Gives the instance behind one of TRL's `environments`; None where the episode failed.
    """

    environment: str
    known: Sequence[str]
    row: Callable[[int, str | None], Mapping[str, Any]]
    instance_of: Callable[[Any], Any | None]


def foreign_reward(
    function: Callable[..., Any], rows: ForeignRows, log_columns: LogColumns, *, is_alone: bool
) -> Callable[..., Any]:
    """Wrap a reward function of a foreign environment.

    Args:
        function: A TRL reward function, sync or async.
        rows: What is the environment's own.
        log_columns: The mixture's logged columns.
        is_alone: Whether the function alone is the environment's reward, and so carries its name.

    Returns:
        A TRL reward function of the same kind: one `float | None` per row of the whole batch. None for other
        environments' rows and for failed episodes.
    """
    return wrap_function(function, _ForeignRoute(function, rows, log_columns, is_alone=is_alone))


class _ForeignRoute(FunctionRoute):
    """A route that takes the columns from the environment's own rows."""

    def __init__(
        self, function: Callable[..., Any], rows: ForeignRows, log_columns: LogColumns, *, is_alone: bool
    ) -> None:
        super().__init__(function, rows.environment, rows.known, lambda: Columns({}), log_columns)
        self._rows = rows
        if is_alone:
            self.name = rows.environment

    def cut(self, batch: Mapping[str, Any]) -> Call:
        """Cut a batch down to the environment's rows, failed ones left out."""
        names = owners(self._rows.known, batch)
        rows = [row for row, name in enumerate(names) if name == self.environment]
        batch = dict(batch)
        if batch.get("environments") is not None:
            batch["environments"] = [self._rows.instance_of(adapter) for adapter in batch["environments"]]
            rows = [row for row in rows if batch["environments"][row] is not None]
        keywords = {
            key: [value[row] for row in rows] if isinstance(value, list) and len(value) == len(names) else value
            for key, value in batch.items()
            if key in _TRL_KEYWORDS
        }
        return self.as_call(batch, rows, len(names), self._own_columns(batch, rows) | keywords)

    def _own_columns(self, batch: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
        indices = batch.get(Column.TASK_INDEX)
        if indices is None:
            raise RoutingError(
                f"reward function {self.name!r} was called without the column 'task_index', so its rows are not known; "
                "train on the spec's own train_dataset, or give your rows its columns",
                environment=self.environment,
            )
        identities = batch.get(Column.TASK_ID) or [None] * len(indices)
        own = [self._rows.row(int(indices[row]), identities[row]) for row in rows]
        return {key: [row[key] for row in own] for key in (own[0] if own else ()) if key not in _NOT_PASSED}
