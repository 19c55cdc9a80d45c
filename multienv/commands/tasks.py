"""Decides which task a person means by an environment's name and an index or a task id.

Flow: `preview`, `play` → `named` → a row of the dataset.
"""

from __future__ import annotations

from typing import Any

from multienv.errors import SpecError, nearest
from multienv.meta import MultiEnvSpec
from multienv.specs import EnvSpec
from multienv.types import Column


def named(spec: MultiEnvSpec, environment: str | None, task: str) -> dict[str, Any]:
    """Return the row of a task.

    Args:
        spec: The mixture.
        environment: The environment; None where there is one only, or where `task` is a task id.
        task: Index of a task within its split, or a `task_id`.

    Raises:
        SpecError: There is no such environment, or no such task among the chosen ones.
    """
    known = list(spec.environments)
    if environment is None and "/" in task:
        environment = task.split("/", maxsplit=1)[0]
    if environment is None:
        if len(known) > 1:
            raise SpecError(f"there are several environments; choose one with --environment: {', '.join(known)}")
        environment = known[0]
    if environment not in known:
        hint = nearest(environment, known)
        raise SpecError(f"unknown environment {environment!r}{hint}; the file has {', '.join(known)}")
    if not isinstance(spec.environments[environment], EnvSpec):
        raise SpecError(f"environment {environment!r} knows nothing of ORS, so it has no session; choose another")
    rows = _rows(spec, environment)
    key = Column.TASK_ID if "/" in task else Column.TASK_INDEX
    found = next((row for row in rows if str(row[key]) == task), None)
    if found is None:
        indices = [row[Column.TASK_INDEX] for row in rows]
        raise SpecError(
            f"environment {environment!r} has no task {task!r} among the {len(rows)} that are chosen; accepted: an "
            f"index such as {indices[0]}, up to {max(indices)}, or a task_id such as {rows[0][Column.TASK_ID]}"
        )
    return found


def _rows(spec: MultiEnvSpec, environment: str) -> list[dict[str, Any]]:
    """Return the tasks that an environment trains on, and then those it is evaluated on."""
    declared: Any = spec.environments[environment]
    rows = [] if declared.evaluation_only else [row for row in spec.task_dataset if row["environment"] == environment]
    return [*rows, *spec.eval_dataset.get(environment, [])]
