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
        num_accumulated: Elements of the data loader that one training step takes, all of them before it begins.
        num_prefetched: Elements that the data loader's workers read ahead.
    """

    num_generations: int
    num_repeats: int
    num_batches: int
    num_accumulated: int
    num_prefetched: int = 0

    @property
    def elements_per_epoch(self) -> int:
        """How many elements a process's data loader has."""
        return self.num_batches * self.num_repeats

    @property
    def steps_per_epoch(self) -> int:
        """How many training steps an epoch has; the last one may take fewer elements."""
        return max(1, -(-self.elements_per_epoch // self.num_accumulated))

    @property
    def lag(self) -> int:
        """How many batches are planned, at most, before the outcome of one is there.

        When the first element of a batch is read, all steps are done but those of the elements that one step takes,
        of the one that accelerate reads ahead, and of those that workers do.
        """
        return (self.num_accumulated + self.num_prefetched) // self.num_repeats


@dataclass(slots=True)
class Progress:
    """Where in the stream of batches, and at which training step, the current epoch begins.

    Attributes:
        pace: How the data loader goes through an epoch.
        first: The batch that the epoch begins with; below 0 where it is read but not trained on.
        first_step: The training steps done before it.
    """

    pace: Pace
    first: int = 0
    first_step: int = 0

    def steps_before(self, batch: int) -> int:
        """Return how many training steps are done before a batch of this epoch is trained on."""
        return self.first_step + (batch - self.first) * self.pace.num_repeats // self.pace.num_accumulated

    def batch_at(self, step: int) -> int:
        """Return the batch that training goes on with after a step of this epoch."""
        num_elements = (step - self.first_step) * self.pace.num_accumulated
        return self.first + min(num_elements // self.pace.num_repeats, self.pace.num_batches)

    def begin_epoch(self, step: int) -> None:
        """Go on to the next epoch."""
        self.first, self.first_step = self.first + self.pace.num_batches, step

    def go_on(self, batch: int, step: int, num_skipped: int) -> None:
        """Go on in the middle of an epoch.

        Args:
            batch: The batch that training goes on with.
            step: The training steps done.
            num_skipped: Those of them whose elements are read and skipped.
        """
        num_elements = num_skipped * self.pace.num_accumulated
        self.first, self.first_step = batch - num_elements // self.pace.num_repeats, step - num_skipped


class PlannedSampler(Sampler[int]):
    """The rows of the batches that a curriculum plans, laid out as TRL's own sampler lays them out.

    One stream over all epochs: an epoch is as many groups as there are rows, and the next one goes on where it ended.

    Args:
        curriculum: Plans the batches.
        rows: From an environment and a task's place to the row in the dataset.
        progress: Where the current epoch begins.

    Attributes:
        next_generated: The batch that TRL will generate for next.

    Source:
        `GRPOTrainer._get_train_sampler` and `trl.trainer.utils.RepeatSampler`.
    """

    def __init__(self, curriculum: Curriculum, rows: dict[str, list[int]], progress: Progress) -> None:
        self.curriculum, self.rows, self.progress, self.pace = curriculum, rows, progress, progress.pace
        self.next_generated = 0
        self._filler = next(iter(rows.values()))[0]

    def __iter__(self) -> Iterator[int]:
        """Yield the row indices of an epoch."""
        first = self.progress.first
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
