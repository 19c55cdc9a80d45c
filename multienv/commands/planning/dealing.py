"""Decides which batches a run would be dealt: by the real curriculum, or by TRL's own sampler where that has the rows.

Nothing is observed: a curriculum that learns is dealt as it would be if it learnt nothing.

Flow: `plan` → `deal` → `training.stream` → batch after batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multienv.curriculum import Pick
from multienv.meta import MultiEnvSpec
from multienv.training.stream import BatchSize, is_followed, set_up
from multienv.types import Column


@dataclass(frozen=True, slots=True)
class Dealt:
    """One generation batch.

    Attributes:
        groups: The environment of each group, in order.
        task_ids: The task of each group.
        asked: The share of each environment that the curriculum asked for; empty where TRL's own sampler draws.
    """

    groups: tuple[str, ...]
    task_ids: tuple[str, ...]
    asked: Mapping[str, float]


def deal(spec: MultiEnvSpec, table: Any, size: BatchSize, args: Any) -> Iterator[Dealt]:
    """Deal the batches of a run from its beginning, without end.

    Args:
        spec: The mixture.
        table: The rows of the run.
        size: How large the batches are.
        args: TRL's configuration.

    Raises:
        SpecError: The curriculum cannot be followed with these rows.
        SessionLimitError: The limits hold fewer groups than a batch has.
    """
    owners, ids = table[Column.ENVIRONMENT][:], table[Column.TASK_ID][:]
    if not is_followed(spec, table, is_shuffled=args.shuffle_dataset):
        for rows in _drawn_by_trl(table, size, args):
            yield Dealt(tuple(owners[row] for row in rows), tuple(ids[row] for row in rows), {})
        return
    stream = set_up(spec, table, size, seed=args.seed, is_shuffled=args.shuffle_dataset)
    curriculum, progress = stream.curriculum, stream.progress
    while True:
        if curriculum.num_planned - progress.first == progress.pace.num_batches:
            progress.begin_epoch(progress.first_step + progress.pace.steps_per_epoch)
        batch = curriculum.plan()
        del curriculum.batches[batch.index]  # nobody will observe it
        rows = [stream.rows[pick.environment][pick.task] for pick in batch.groups]
        yield Dealt(_names(batch.groups), tuple(ids[row] for row in rows), dict(batch.asked))


def _names(picks: Sequence[Pick]) -> tuple[str, ...]:
    return tuple(pick.environment for pick in picks)


def _drawn_by_trl(table: Any, size: BatchSize, args: Any) -> Iterator[list[int]]:
    """Draw batches as `GRPOTrainer._get_train_sampler` does; none where the rows do not fill one."""
    from trl.trainer.utils import RepeatSampler  # noqa: PLC0415 - imports torch

    sampler = RepeatSampler(
        table, mini_repeat_count=1, batch_size=size.num_groups, shuffle=args.shuffle_dataset, seed=args.seed
    )
    while len(table) >= size.num_groups:
        rows = list(sampler)
        yield from (rows[start : start + size.num_groups] for start in range(0, len(rows), size.num_groups))


def rollouts_by_rank(groups: Sequence[str], size: BatchSize) -> list[Counter[str]]:
    """Return how many rollouts of each environment each process plays of a batch.

    Args:
        groups: The environment of each group, in order.
        size: How large the batch is.

    Example:
        >>> [dict(rank) for rank in rollouts_by_rank(["a", "a", "b"], BatchSize(2, 3, 1, 1, num_ranks=2))]
        [{'a': 3}, {'a': 1, 'b': 2}]
    """
    rollouts = [name for name in groups for _ in range(size.num_generations)]
    share = len(rollouts) // size.num_ranks
    return [Counter(rollouts[rank * share : (rank + 1) * share]) for rank in range(size.num_ranks)]


def largest_need(size: BatchSize, most_groups: int | None, *, is_dealt: bool) -> int:
    """Return how many rollouts of one environment one process can be given at most.

    Args:
        size: How large a batch is.
        most_groups: Most groups of it in a batch: what its limit holds, or its rows; None for any number.
        is_dealt: True where the curriculum deals groups to processes evenly; TRL's own sampler does not.

    Example:
        >>> size = BatchSize(4, 8, 1, 1, num_ranks=2)
        >>> largest_need(size, 6, is_dealt=True), largest_need(size, 6, is_dealt=False)
        (12, 16)
    """
    groups = size.num_groups if most_groups is None else min(size.num_groups, most_groups)
    is_even = is_dealt and size.num_groups % size.num_ranks == 0
    of_one_rank = -(-groups // size.num_ranks) if is_even else groups
    return min(size.num_rollouts // size.num_ranks, of_one_rank * size.num_generations)
