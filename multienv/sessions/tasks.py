"""Decides how a task list is read: by ranges, few requests, every declared index checked.

Flow: `Source.catalogue` → here → `EnvironmentClient.fetch_tasks` → `dataset`; the outline alone → `checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from multienv.errors import (
    EmptyTaskListError,
    ProtocolError,
    ServerError,
    TaskIndexError,
    UnknownSplitError,
    nearest,
)
from multienv.sessions.protocol import Catalogue
from multienv.specs import TaskChoice, all_excluded, check_excluded_indices, left_over
from multienv.types import Task

RANGE_LENGTH = 1_000
"""Most task specs asked for in one request."""
GAP_LENGTH = 32
"""Two declared indices closer than this are read with the range between them rather than by two requests."""
_MOST_COUNTED: Final = 8


@dataclass(frozen=True, slots=True)
class Outline:
    """What a few short requests say of the chosen tasks.

    Attributes:
        split_size: Number of tasks of the split.
        chosen: Indices of the chosen tasks, in the chosen order.
        first: The first of them.
        served_name: What the environment is called on its server; empty for the server's default.
    """

    split_size: int
    chosen: Sequence[int]
    first: Task
    served_name: str = ""

    @property
    def num_rows(self) -> int:
        """Number of chosen tasks."""
        return len(self.chosen)


async def read_outline(catalogue: Catalogue, choice: TaskChoice, environment: str = "") -> Outline:
    """Read which tasks are chosen, and the first of them. All are read where some are excluded by a name.

    Args:
        catalogue: Where to read from.
        choice: Which tasks.
        environment: Name of the environment in the mixture, which is part of the names of its tasks.

    Raises:
        SpecError: What `read_tasks` raises, or something is excluded that is none of the tasks, or every task is.
        ProtocolError: The server sends another number of tasks than it was asked for.
    """
    wanted, split_size = await _choose(catalogue, choice)
    if any(isinstance(entry, str) for entry in choice.exclude):
        specs = await _read_specs(catalogue, choice.split, wanted)
        tasks = left_over(environment, choice, [Task(index, specs[index]) for index in wanted])
        return Outline(split_size, [task.index for task in tasks], tasks[0])
    check_excluded_indices(choice, set(wanted))
    left = [index for index in wanted if index not in choice.excluded_indices]
    if not left:
        raise all_excluded(choice, len(wanted))
    specs = await _read_specs(catalogue, choice.split, left[:1])
    return Outline(split_size, left, Task(left[0], specs[left[0]]))


async def read_splits(catalogue: Catalogue, _choice: TaskChoice) -> dict[str, int | None]:
    """Read how many tasks each split has; None for one that cannot say, and for those after the first few."""
    sizes: dict[str, int | None] = {}
    for split in await catalogue.list_splits():
        sizes[split] = None
        if len(sizes) <= _MOST_COUNTED:
            with suppress(ServerError):
                sizes[split] = await catalogue.num_tasks(split)
    return sizes


async def read_tasks(catalogue: Catalogue, choice: TaskChoice) -> list[Task]:
    """Read the chosen tasks of a split, in the chosen order, repetitions kept; excluded ones are read too.

    Args:
        catalogue: Where to read from.
        choice: Which tasks.

    Raises:
        UnknownSplitError: There is no such split.
        EmptyTaskListError: The split has no tasks.
        TaskIndexError: An index lies outside the split.
        ProtocolError: The server sends another number of tasks than it was asked for.
    """
    wanted, _ = await _choose(catalogue, choice)
    specs = await _read_specs(catalogue, choice.split, wanted)
    return [Task(index, specs[index]) for index in wanted]


async def _choose(catalogue: Catalogue, choice: TaskChoice) -> tuple[list[int], int]:
    """Return the chosen indices, and how many the split has."""
    split = choice.split
    splits = await catalogue.list_splits()
    if split not in splits:
        raise UnknownSplitError(
            f"unknown split {split!r}{nearest(split, splits)}; known: {', '.join(splits) or 'none'}; "
            f"set {choice.split_option} to one of them"
        )
    total = await catalogue.num_tasks(split)
    if total < 1:
        raise EmptyTaskListError(
            f"split {split!r} has no tasks; known splits: {', '.join(splits)}; set {choice.split_option} to another one"
        )
    wanted = list(choice.indices if choice.indices is not None else range(min(total, choice.num_tasks or total)))
    if (largest := max(wanted)) >= total:
        raise TaskIndexError(
            f"task index {largest} lies outside split {split!r}, which has {total} tasks; accepted: 0 to {total - 1}"
        )
    return wanted, total


async def _read_specs(catalogue: Catalogue, split: str, wanted: Sequence[int]) -> dict[int, object]:
    specs: dict[int, object] = {}
    for start, stop in _ranges(sorted(set(wanted))):
        answer = await catalogue.task_range(split, start, stop)
        if len(answer) != stop - start:
            raise ProtocolError(
                f"asked for tasks {start} to {stop - 1} of split {split!r}, the server sent {len(answer)} of "
                f"{stop - start}; the server must be mended, or choose other tasks with indices="
            )
        specs.update(zip(range(start, stop), answer, strict=True))
    return specs


def _ranges(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cover sorted indices by ranges that are not too long and waste little."""
    start = previous = indices[0]
    for index in indices[1:]:
        if index - previous > GAP_LENGTH or index - start >= RANGE_LENGTH:
            yield start, previous + 1
            start = index
        previous = index
    yield start, previous + 1
