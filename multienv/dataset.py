"""Decides what a row of the training dataset is: five columns everywhere, and metadata where it cannot clash.

Flow: `sessions` reads the tasks → `build_dataset` → TRL, which routes on `environment` and hands the row to `reset`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from multienv.types import RESERVED_NAMES, Column, Task, task_id

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

Messages: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks of one environment, with what its rows need.

    Attributes:
        environment: Name of the environment.
        split: The split the tasks come from.
        tasks: The tasks, in order.
        system_prompt: System message of its prompts, or None.
        include_metadata: Whether keys of its task specs may become columns.
        prompts: The messages of each task, for an environment that has prompts of its own; None for empty ones.
    """

    environment: str
    split: str
    tasks: Sequence[Task]
    system_prompt: str | None = None
    include_metadata: bool = True
    prompts: Sequence[Messages] | None = None


def build_dataset(lists: Sequence[TaskList]) -> tuple[Dataset, dict[str, frozenset[str]]]:
    """Concatenate the tasks of all environments into one dataset.

    Args:
        lists: One task list per environment.

    Returns:
        The dataset, with the columns of `types.Column` and the promoted metadata; and for each environment the metadata
        columns that its own task specs have.
    """
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only needed here
    from datasets import Dataset  # noqa: PLC0415 - heavy, and only needed here

    rows = [(tasks, task) for tasks in lists for task in tasks.tasks]
    columns: dict[str, Any] = {
        Column.PROMPT: [prompt for tasks in lists for prompt in _prompts(tasks)],
        Column.ENVIRONMENT: [tasks.environment for tasks, _ in rows],
        Column.TASK_INDEX: [task.index for _, task in rows],
        Column.TASK_ID: [task_id(tasks.environment, tasks.split, task.index) for tasks, task in rows],
        Column.TASK: [json.dumps(task.spec) for _, task in rows],
    }
    metadata, own = _metadata(lists)
    columns |= metadata
    return Dataset(pa.table({str(name): pa.array(values) for name, values in columns.items()})), own


def _prompts(tasks: TaskList) -> list[Messages]:
    """Return the messages of each row; TRL appends the environment's own prompt to the last one."""
    own = tasks.prompts if tasks.prompts is not None else [[] for _ in tasks.tasks]
    system = [{"role": "system", "content": tasks.system_prompt}] if tasks.system_prompt is not None else []
    return [
        [*(system if not messages or messages[0].get("role") != "system" else []), *(messages or _EMPTY)]
        for messages in own
    ]


_EMPTY = [{"role": "user", "content": ""}]


def _metadata(lists: Sequence[TaskList]) -> tuple[dict[str, list[Any]], dict[str, frozenset[str]]]:
    """Promote the keys of the task specs to columns, where their types agree and their names are free."""
    own: dict[str, set[str]] = {tasks.environment: set() for tasks in lists}
    columns: dict[str, list[Any]] = {}
    num_rows = sum(len(tasks.tasks) for tasks in lists)
    row = -1
    for tasks in lists:
        for task in tasks.tasks:
            row += 1
            if tasks.include_metadata and isinstance(task.spec, Mapping):
                for key, value in task.spec.items():
                    columns.setdefault(key, [None] * num_rows)[row] = value
                    own[tasks.environment].add(key)
    kept = {key: values for key, values in sorted(columns.items()) if can_be_column(key, values)}
    if dropped := sorted(columns.keys() - kept.keys()):
        logger.info("metadata kept in column 'task' only, for a reserved name or types that differ: %s", dropped)
    return kept, {name: frozenset(keys & kept.keys()) for name, keys in own.items()}


def is_column_name(key: str) -> bool:
    """Tell whether a key of a task spec may be a column's name."""
    return key not in RESERVED_NAMES and key.isidentifier() and key != "self"


def can_be_column(key: str, values: Sequence[Any]) -> bool:
    """Tell whether values of one key of the task specs can stand in a column of their own; None goes with any type."""
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only needed here

    if not is_column_name(key):
        return False
    shape: Any = None
    for value in values:
        shape = merge_shapes(shape, json_shape(value))
        if shape is _CLASH:
            return False
    if shape is None:
        return False
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):  # 2**70, a lone surrogate
        return False
    return True


_CLASH = object()


def json_shape(value: Any) -> Any:
    """Return the type of a JSON value as nested plain data; None for null, which goes with every type.

    Example:
        >>> json_shape({"a": [1, 2], "b": None})
        {'a': ['int'], 'b': None}
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        shapes = {str(key): json_shape(member) for key, member in value.items()}
        if not shapes or _CLASH in shapes.values() or any("\0" in key for key in shapes):
            return _CLASH  # Arrow has no objects without members, and cuts a member's name at a NUL
        return shapes
    if isinstance(value, list):
        shape: Any = None
        for member in value:
            shape = merge_shapes(shape, json_shape(member))
        return _CLASH if shape is _CLASH else [shape]
    return type(value).__name__


def merge_shapes(one: Any, other: Any) -> Any:
    """Return the shape that both fit, or the clash: a column has one type, and objects the same keys."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        inner = merge_shapes(one[0], other[0])
        return _CLASH if inner is _CLASH else [inner]
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return _CLASH
        merged = {key: merge_shapes(one[key], other[key]) for key in one}
        return _CLASH if _CLASH in merged.values() else merged
    return one if one == other else _CLASH
