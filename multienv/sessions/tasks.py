"""Decides how a task list is read: by ranges, few requests, every declared index checked.

Flow: `Source.catalogue` → here → `EnvironmentClient.fetch_tasks` → `dataset`; the outline alone → `checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multienv.errors import EmptyTaskListError, ProtocolError, TaskIndexError, UnknownSplitError, nearest
from multienv.sessions.protocol import Catalogue
from multienv.types import Task

RANGE_LENGTH = 1_000
"""Most task specs asked for in one request."""
GAP_LENGTH = 32
"""Two declared indices closer than this are read with the range between them rather than by two requests."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What a few short requests say of the declared tasks.

    Attributes:
        split_size: Number of tasks of the split.
        num_rows: Number of declared tasks.
        first: The first declared task.
    """

    split_size: int
    num_rows: int
    first: Task


async def read_outline(
    catalogue: Catalogue, split: str, *, num_tasks: int | None, indices: Sequence[int] | None
) -> Outline:
    """Read how many tasks there are, and the first declared one.

    Args and errors are those of `read_tasks`.
    """
    wanted, split_size = await _choose(catalogue, split, num_tasks=num_tasks, indices=indices)
    specs = await _read_specs(catalogue, split, wanted[:1])
    return Outline(split_size, len(wanted), Task(wanted[0], specs[wanted[0]]))


async def read_tasks(
    catalogue: Catalogue, split: str, *, num_tasks: int | None, indices: Sequence[int] | None
) -> list[Task]:
    """Read the declared tasks of a split.

    Args:
        catalogue: Where to read from.
        split: Name of the split.
        num_tasks: The first so many; None for all, unless `indices` are given.
        indices: These, in this order, repetitions kept.

    Raises:
        UnknownSplitError: There is no such split.
        EmptyTaskListError: The split has no tasks.
        TaskIndexError: An index lies outside the split.
        ProtocolError: The server sends another number of tasks than it was asked for.
    """
    wanted, _ = await _choose(catalogue, split, num_tasks=num_tasks, indices=indices)
    specs = await _read_specs(catalogue, split, wanted)
    return [Task(index, specs[index]) for index in wanted]


async def _choose(
    catalogue: Catalogue, split: str, *, num_tasks: int | None, indices: Sequence[int] | None
) -> tuple[list[int], int]:
    """Return the declared indices, and how many the split has."""
    splits = await catalogue.list_splits()
    if split not in splits:
        raise UnknownSplitError(
            f"unknown split {split!r}{nearest(split, splits)}; known: {', '.join(splits) or 'none'}; set split="
        )
    total = await catalogue.num_tasks(split)
    if total < 1:
        raise EmptyTaskListError(f"split {split!r} has no tasks; known splits: {', '.join(splits)}; set split=")
    wanted = list(range(min(total, num_tasks or total))) if indices is None else list(indices)
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
