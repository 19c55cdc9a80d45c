"""Decides how the tasks of an environment are chosen: for training, for evaluation, and left out of either.

Flow: part of an `EnvSpec`; `sessions` reads what is chosen, `catalogue` leaves out what is excluded.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multienv.errors import EmptyTaskListError, SpecError, nearest
from multienv.types import Task, task_id

ID_KEYS: Final = ("id", "task_id", "instance_id", "name")
"""The keys by which environments name their own tasks."""

_ACCEPTED: Final = "accepted: task indices and task ids, such as [3, 'seta/train/3', 'django__django-11099']"


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """Some tasks of one split.

    Attributes:
        split: Name of the split.
        num_tasks: The first so many; None for all, unless `indices` are given.
        indices: These, in this order; None for no choice.
        exclude: Those of them that are left out.
        split_option: The option that names the split, for errors.
    """

    split: str
    num_tasks: int | None = None
    indices: tuple[int, ...] | None = None
    exclude: tuple[int | str, ...] = ()
    split_option: str = "split"

    @property
    def excluded_indices(self) -> frozenset[int]:
        """Those left out that are known without asking anybody."""
        return frozenset(entry for entry in self.exclude if isinstance(entry, int))

    @property
    def first(self) -> int:
        """The first chosen index, as far as it is known without asking anybody."""
        chosen = itertools.count() if self.indices is None else self.indices
        return next((index for index in chosen if index not in self.excluded_indices), 0)


def exclusions(value: Any) -> tuple[int | str, ...]:
    """Check what a user excludes.

    Raises:
        SpecError: It is no sequence, or holds something that is neither an index nor an id, or is there twice.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise SpecError(f"exclude={value!r} is no sequence; {_ACCEPTED}")
    entries: list[int | str] = []
    for item in value:
        if isinstance(item, str):
            if not item:
                raise SpecError(f"exclude holds an empty string; {_ACCEPTED}")
            entry: int | str = item
        elif isinstance(item, bool) or not hasattr(item, "__index__"):
            raise SpecError(f"exclude holds {item!r}, which is neither an int nor a string; {_ACCEPTED}")
        elif (entry := operator.index(item)) < 0:
            raise SpecError(f"exclude holds {entry}; a task index starts at 0, count from the end yourself")
        if entry in entries:
            raise SpecError(f"exclude holds {entry!r} twice; name each task once")
        entries.append(entry)
    return tuple(entries)


def check_choices(spec: Any) -> None:
    """Check that the options by which an `EnvSpec` chooses tasks go together.

    Raises:
        ValueError: They do not.
    """
    if spec.eval_num_tasks is not None and spec.eval_indices is not None:
        raise ValueError(
            f"eval_num_tasks={spec.eval_num_tasks} and eval_indices exclude each other; give eval_num_tasks for the "
            "first tasks of the split, or eval_indices for chosen ones"
        )
    if spec.eval_num_tasks is not None and spec.eval_split is None and not spec.evaluation_only:
        raise ValueError(
            f"eval_num_tasks={spec.eval_num_tasks} without eval_split would evaluate on the first training tasks; name "
            "another split with eval_split, or held-out tasks with eval_indices"
        )
    if spec.evaluation_only and spec.exclude:
        raise ValueError(
            "exclude leaves tasks out of the training, and with evaluation_only=True there is none; choose what is "
            "evaluated with eval_indices, or leave one of the two out"
        )


def left_over(environment: str, choice: TaskChoice, tasks: Sequence[Task]) -> list[Task]:
    """Return the chosen tasks without the excluded ones.

    Args:
        environment: Name of the environment in the mixture.
        choice: How the tasks were chosen, and what is excluded.
        tasks: The chosen tasks.

    Raises:
        SpecError: Something is excluded that is none of the tasks.
        EmptyTaskListError: Every task is.
    """
    if not choice.exclude:
        return list(tasks)
    known = {task.index for task in tasks}
    check_excluded_indices(choice, known)
    named: dict[str, set[int]] = {}
    if any(isinstance(entry, str) for entry in choice.exclude):
        for task in tasks:
            for name in names_of(environment, choice.split, task):
                named.setdefault(name, set()).add(task.index)
    excluded = set(choice.excluded_indices)
    for entry in choice.exclude:
        if isinstance(entry, str):
            if entry not in named:
                raise _unknown(entry, nearest(entry, named), tasks[0], environment, choice)
            excluded |= named[entry]
    if not known - excluded:
        raise all_excluded(choice, len(known))
    return [task for task in tasks if task.index not in excluded]


def all_excluded(choice: TaskChoice, num_tasks: int) -> EmptyTaskListError:
    """Return the error that says that nothing is left to train on."""
    return EmptyTaskListError(
        f"exclude leaves out all {num_tasks} chosen tasks of split {choice.split!r}, so there is nothing to train on; "
        "exclude fewer, choose more with num_tasks or indices, or leave the environment out of the mixture"
    )


def is_excluded(environment: str, choice: TaskChoice, task: Task) -> bool:
    """Tell whether one task is among the excluded ones, chosen or not."""
    return task.index in choice.excluded_indices or any(
        name in choice.exclude for name in names_of(environment, choice.split, task)
    )


def names_of(environment: str, split: str, task: Task) -> list[str]:
    """Return the names by which a task can be excluded: its `task_id`, and what its own spec calls it.

    Example:
        >>> names_of("swe", "train", Task(3, {"instance_id": "django-11099", "task_id": 7}))
        ['swe/train/3', '7', 'django-11099']
    """
    spec = task.spec if isinstance(task.spec, Mapping) else {}
    own = [spec[key] for key in ID_KEYS if key in spec]
    named = [str(name) for name in own if isinstance(name, str | int) and not isinstance(name, bool)]
    return [task_id(environment, split, task.index), *named]


def check_excluded_indices(choice: TaskChoice, known: Collection[int]) -> None:
    """Check that every excluded index is one of the chosen tasks.

    Raises:
        SpecError: One is not.
    """
    for index in sorted(choice.excluded_indices):
        if index not in known:
            near = min(known, key=lambda other: abs(other - index))
            raise SpecError(
                f"exclude holds {index}, which is none of the {len(known)} chosen tasks of split {choice.split!r} (the "
                f"nearest is {near}); accepted: their indices, or leave it out"
            )


def _unknown(entry: str, hint: str, example: Task, environment: str, choice: TaskChoice) -> SpecError:
    identity, *own = names_of(environment, choice.split, example)
    such = f", or the value of a task's own {', '.join(ID_KEYS)}" + (f" such as {own[0]!r}" if own else "")
    return SpecError(
        f"exclude holds {entry!r}, which names none of the chosen tasks of split {choice.split!r}{hint}; accepted: a "
        f"task index, a task id such as {identity!r}{such}"
    )
