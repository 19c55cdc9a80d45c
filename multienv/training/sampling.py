"""Decides which rows TRL's data loader draws: those that the curriculum plans, batch by batch, also after a restart.

Flow: accelerate's data loader → `PlannedSampler` → `Curriculum.plan`; `FollowsCurriculum` → `Curriculum.observe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler

from multienv.curriculum import Curriculum


@dataclass(frozen=True, slots=True)
class Pace:
    """How TRL's data loader goes through the batches that are planned.

    A generation batch is drawn `num_repeats` times, for TRL generates for it once and trains on it in parts and in
    several iterations. A process reads one element of its data loader per repeat.

    Attributes:
        num_generations: Rollouts of a group: so often a row is drawn in a row.
        num_repeats: `steps_per_generation * num_iterations`.
        num_batches: Generation batches of an epoch.
        num_accumulated: Elements of the data loader that one training step takes.
    """

    num_generations: int
    num_repeats: int
    num_batches: int
    num_accumulated: int

    @property
    def elements_per_epoch(self) -> int:
        """How many elements a process's data loader has."""
        return self.num_batches * self.num_repeats

    @property
    def steps_per_epoch(self) -> int:
        """How many training steps an epoch has; the last one may take fewer elements."""
        return max(1, -(-self.elements_per_epoch // self.num_accumulated))

    def steps_before(self, batch: int) -> int:
        """Return how many training steps are done before a batch is trained on, epochs one after the other."""
        epoch, place = divmod(batch, self.num_batches)
        return epoch * self.steps_per_epoch + place * self.num_repeats // self.num_accumulated


class PlannedSampler(Sampler[int]):
    """The rows of the batches that a curriculum plans, laid out as TRL's own sampler lays them out.

    One stream over all epochs: an epoch is as many groups as there are rows, and the next one goes on where it ended.

    Args:
        curriculum: Plans the batches.
        rows: From an environment and a task's place to the row in the dataset.
        pace: How the data loader goes through them.

    Attributes:
        first: The batch that the current epoch begins with.
        next_generated: The batch that TRL will generate for next.

    Source:
        `GRPOTrainer._get_train_sampler` and `trl.trainer.utils.RepeatSampler`.
    """

    def __init__(self, curriculum: Curriculum, rows: dict[str, list[int]], pace: Pace) -> None:
        self.curriculum, self.rows, self.pace = curriculum, rows, pace
        self.first = 0
        self.next_generated = 0
        self._filler = next(iter(rows.values()))[0]

    def __iter__(self) -> Iterator[int]:
        """Yield the row indices of an epoch."""
        first = self.first
        for index in range(first, first + self.pace.num_batches):
            rows = self._rows(index)
            for _ in range(self.pace.num_repeats):
                for row in rows:
                    yield from [row] * self.pace.num_generations

    def __len__(self) -> int:
        """Return the number of indices of an epoch."""
        return self.pace.elements_per_epoch * self.curriculum.num_groups * self.pace.num_generations

    def _rows(self, index: int) -> list[int]:
        curriculum = self.curriculum
        if index not in curriculum.batches and index < curriculum.num_planned:
            return [self._filler] * curriculum.num_groups  # trained on before the restart: read, and skipped
        while index not in curriculum.batches:
            curriculum.plan()
        return [self.rows[pick.environment][pick.task] for pick in curriculum.batches[index].groups]
