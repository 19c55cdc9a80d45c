"""Decides how the stream of a training's batches is set up: what the curriculum is told of the rows and the run.

The trainer and `multienv plan` set it up here, so that what is planned is what is trained on.

Flow: `FollowsCurriculum`, `multienv plan` → `set_up` → `Curriculum`, the rows, and the pace of the data loader.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from multienv.curriculum import Curriculum, Entry
from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.sessions.slots import share
from multienv.specs import EnvSpec, TaskRules
from multienv.training.sampling import Pace, Progress
from multienv.types import Column


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How large a training's generation batches are, and how its data loader goes through them.

    Attributes:
        num_generations: Rollouts of a group.
        num_groups: Groups of a batch, of all processes.
        num_repeats: `steps_per_generation * num_iterations`.
        num_accumulated: Elements of the data loader that one training step takes.
        num_prefetched: Elements that the data loader's workers read ahead.
        num_ranks: Processes that train together.
    """

    num_generations: int
    num_groups: int
    num_repeats: int
    num_accumulated: int
    num_prefetched: int = 0
    num_ranks: int = 1

    @classmethod
    def of(cls, args: Any, num_rollouts: int, num_ranks: int) -> Self:
        """Read it off TRL's configuration.

        Args:
            args: A `GRPOConfig`.
            num_rollouts: Rollouts of a batch, of all processes.
            num_ranks: Processes that train together.
        """
        return cls(
            args.num_generations,
            num_rollouts // args.num_generations,
            args.num_iterations * args.steps_per_generation,
            args.gradient_accumulation_steps,
            args.dataloader_num_workers * (args.dataloader_prefetch_factor or 2),
            num_ranks,
        )

    @property
    def num_rollouts(self) -> int:
        """Rollouts of a batch, of all processes."""
        return self.num_groups * self.num_generations

    def pace(self, num_rows: int) -> Pace:
        """Return how the data loader goes through an epoch of so many rows."""
        num_batches = max(1, num_rows // self.num_groups)
        return Pace(self.num_generations, self.num_repeats, num_batches, self.num_accumulated, self.num_prefetched)

    def most_groups(self, max_sessions: int | None) -> int | None:
        """Return how many groups of an environment may be played at once on all ranks together; None for any number.

        Args:
            max_sessions: Most sessions of it at once on one rank; None for no limit.
        """
        # Groups that cannot be cut into equal slices are spread over ranks as they come: all may fall to one.
        num_ranks = 1 if self.num_groups % self.num_ranks else self.num_ranks
        return None if max_sessions is None else num_ranks * (max_sessions // self.num_generations)


@dataclass(frozen=True, slots=True)
class Stream:
    """What plans a training's batches.

    Attributes:
        curriculum: Plans them.
        rows: From an environment and a task's place to the row in the dataset.
        progress: Where the current epoch begins.
    """

    curriculum: Curriculum
    rows: Mapping[str, list[int]]
    progress: Progress


def rows_of(spec: MultiEnvSpec) -> Any:
    """Return what to draw from: each task once, unless the rows are left to TRL's own sampler."""
    return spec.train_dataset if spec.curriculum.is_left_to_trl else spec.task_dataset


def is_followed(spec: MultiEnvSpec, table: Any, *, is_shuffled: bool) -> bool:
    """Tell whether a training on some rows follows the spec's curriculum; otherwise the rows come as TRL draws them.

    Args:
        spec: The mixture.
        table: The rows.
        is_shuffled: As `shuffle_dataset` in `GRPOConfig`.

    Raises:
        SpecError: A mixture is declared, and these rows cannot follow it.
    """
    is_map_style = hasattr(table, "column_names") and hasattr(table, "__len__")
    has_names = is_map_style and Column.ENVIRONMENT in table.column_names
    if not spec.has_declared_mixture and not is_shuffled:
        return False  # whoever turns the shuffling off wants the rows as they are
    if spec.has_declared_mixture and not spec.curriculum.is_left_to_trl and not has_names:
        raise SpecError(
            "a curriculum needs a map-style training dataset with the column 'environment'; leave train_dataset "
            "out, give one made of the spec's, or say curriculum='dataset'"
        )
    return not spec.curriculum.is_left_to_trl and has_names


def set_up(spec: MultiEnvSpec, table: Any, size: BatchSize, *, seed: int, is_shuffled: bool) -> Stream:
    """Set up the stream of batches of a training from its beginning.

    Args:
        spec: The mixture.
        table: The rows.
        size: How large the batches are.
        seed: As in `GRPOConfig`.
        is_shuffled: As `shuffle_dataset` in `GRPOConfig`.

    Raises:
        SpecError: There is nothing to train on, now or in a later stage or at a later step.
        SessionLimitError: The limits hold fewer groups than a batch has.
    """
    progress = Progress(size.pace(len(table)))
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(table[Column.ENVIRONMENT]):
        rows[name].append(row)
    curriculum = Curriculum(
        [_entry(spec, name, table.select(own), size) for name, own in rows.items()],
        spec.curriculum,
        size.num_groups,
        seed=seed,
        steps_before=progress.steps_before,
        lag=progress.pace.lag,
        num_ranks=size.num_ranks,
        is_shuffled=is_shuffled,
    )
    return Stream(curriculum, dict(rows), progress)


def _entry(spec: MultiEnvSpec, name: str, own: Any, size: BatchSize) -> Entry:
    """Describe an environment to the curriculum.

    Args:
        spec: The mixture.
        name: The environment; it may be of another making, beside the mixture.
        own: Its rows.
        size: How large the batches are.
    """
    declared = spec.environments.get(name)
    rules = TaskRules() if declared is None else declared.task_rules
    ids: Sequence[str] = own[Column.TASK_ID][:] if Column.TASK_ID in own.column_names else ()
    expected: list[float | None] = []
    if rules.expected_success is not None and Column.TASK in own.column_names:
        expected = [_expected(name, rules, task) for task in own[Column.TASK]]
    limit = declared.limits.max_sessions if isinstance(declared, EnvSpec) else None
    return Entry(
        name,
        len(own),
        1.0 if declared is None or declared.sampling_weight is None else declared.sampling_weight,
        rules,
        expected,
        tuple(ids) if len(set(ids)) == len(own) else (),
        size.most_groups(share(limit, size.num_ranks)),
    )


def _expected(environment: str, rules: TaskRules, task: str) -> float | None:
    try:
        return rules.expected(json.loads(task))
    except SpecError as error:
        raise SpecError(f"environment {environment!r}: {error}", environment=environment) from None
