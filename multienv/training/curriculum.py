"""Decides how a training follows its curriculum: batches as planned, outcomes told, all of it kept in checkpoints.

Flow: `MultiEnvGRPOTrainer` → `FollowsCurriculum` → `GRPOTrainer`; rows come from `sampling`, outcomes from `episodes`.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from transformers import TrainerCallback

from multienv.curriculum import Batch, Curriculum, Outcome, Pick
from multienv.errors import CheckpointError
from multienv.reporting import account_text
from multienv.training.metrics import STATUSES, Figures
from multienv.training.sampling import PlannedSampler
from multienv.training.stream import BatchSize, is_followed, set_up
from multienv.types import Column, EpisodeStatus

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Base
else:
    _Base = object

logger = logging.getLogger(__name__)

_STATE: Final = "multienv.Curriculum"


class FollowsCurriculum(_Base):  # type: ignore[misc]  # TRL is untyped
    """Draws rows as the curriculum plans them; mixed in before `GRPOTrainer`.

    Attributes:
        curriculum: Plans the batches; None before training, and where the rows are left to TRL.
    """

    curriculum: Curriculum | None = None
    _sampler: PlannedSampler | None = None
    _awaits_sampler = False
    _may_follow = True
    _learns = True
    _step: int
    _buffered_inputs: Any
    _renamed: Mapping[str, str]
    _follows = True

    def _start_curriculum(self, renamed: Mapping[str, str] | None) -> None:
        """Follow the spec's curriculum from now on."""
        self._renamed = dict(renamed or {})
        is_followed_there = is_followed(self.spec, self.train_dataset, is_shuffled=self.shuffle_dataset)
        self._follows = self._may_follow and is_followed_there
        self.add_callback(_Epochs(self))

    def train(self, *args: Any, **options: Any) -> Any:
        """Train, as `GRPOTrainer` does, on the first sampler that is asked for: others are the user's, to look at."""
        self._awaits_sampler = True
        try:
            return super().train(*args, **options)
        finally:
            self._awaits_sampler = False
            if self.curriculum is not None and self.accelerator.is_main_process:
                logger.info("the mixture of this training:\n%s", account_text(self.curriculum.account.lines))

    def _get_train_sampler(self, *args: Any, **options: Any) -> Any:
        if not self._follows:
            return super()._get_train_sampler(*args, **options)
        return self._planned_sampler(*args, **options)

    def _planned_sampler(self, dataset: Any = None) -> PlannedSampler:
        table = self.train_dataset
        if dataset is not None and (len(dataset) != len(table) or Column.ENVIRONMENT in dataset.column_names):
            table = dataset  # with remove_unused_columns there is no such column, which TRL complains of by itself
        size = BatchSize.of(self.args, self.args.generation_batch_size, self.accelerator.num_processes)
        stream = set_up(self.spec, table, size, seed=self.args.seed, is_shuffled=self.shuffle_dataset)
        curriculum = stream.curriculum
        sampler = PlannedSampler(curriculum, dict(stream.rows), stream.progress)
        if self._awaits_sampler:
            self.curriculum, self._sampler, self._learns, self._awaits_sampler = curriculum, sampler, True, False
        return sampler

    def _begin_batch(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        """Give the rollouts that are about to begin the horizons of their stage."""
        batch = self._batch_of(inputs) if self.model.training else None
        self.spec.live.max_tool_calls = {} if batch is None else dict(batch.max_tool_calls)

    def _batch_of(self, inputs: Sequence[Mapping[str, Any]]) -> Batch | None:
        """Return the plan of the batch that is being generated; None where it is not one of the curriculum's."""
        if self.curriculum is None or self._sampler is None or not self._learns:
            return None
        if any(Column.ENVIRONMENT not in row for row in inputs):
            return None  # TRL says what is wrong
        batch = self.curriculum.batches.get(self._sampler.next_generated)
        start = self.accelerator.process_index * len(inputs)
        places = [(start + place) // self.num_generations for place in range(len(inputs))]
        if batch is not None and places[-1] < len(batch.groups):
            planned = [batch.groups[place] for place in places]
            if all(self._is_of(pick, row) for pick, row in zip(planned, inputs, strict=True)):
                return batch
        warnings.warn(
            "a batch is not the one that was planned, so the curriculum no longer learns from what it sees; leave the "
            "order of the rows to the trainer (no data loader or sampler of your own), or say curriculum='dataset'",
            RuntimeWarning,
            stacklevel=2,
        )
        self._learns = False
        return None

    def _is_of(self, pick: Pick, row: Mapping[str, Any]) -> bool:
        """Tell whether a row is of the task that was planned, as far as rows say so."""
        ids = () if self.curriculum is None else self.curriculum.entries[pick.environment].ids
        is_task = not ids or row.get(Column.TASK_ID) == ids[pick.task]
        return is_task and row.get(Column.ENVIRONMENT) == pick.environment

    def _learn(self, inputs: Sequence[Mapping[str, Any]], everyones: Sequence[Figures]) -> None:
        """Tell the curriculum what became of a training batch, and log its figures."""
        batch = self._batch_of(inputs)
        if batch is None or self.curriculum is None or self._sampler is None:
            return
        outcomes = [
            outcome_of(pick.environment, pick.task, everyones[start : start + self.num_generations])
            for pick, start in zip(batch.groups, range(0, len(everyones), self.num_generations), strict=True)
        ]
        self.curriculum.observe(batch.index, outcomes)
        self.curriculum.forget(batch.index)
        self._sampler.next_generated += 1
        if self.spec.curriculum.stages:
            self._metrics["train"]["curriculum/stage"].append(float(batch.stage))
        for name, figures in self.curriculum.metrics(batch, outcomes).items():
            for what, value in figures.items():
                self._metrics["train"][f"env/{name}/{what}"].append(value)

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        if self.curriculum is not None:
            state = {"position": self._epochs.position, "curriculum": self.curriculum.state_dict()}
            self.state.stateful_callbacks[_STATE] = {"args": {}, "attributes": state}
        super()._save_checkpoint(*args, **options)

    @property
    def _epochs(self) -> _Epochs:
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, _Epochs))


class _Epochs(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Keeps track of where in the stream of batches an epoch begins, and goes on from a checkpoint."""

    def __init__(self, trainer: FollowsCurriculum) -> None:
        self._trainer = trainer
        self._is_first = True

    @property
    def position(self) -> int:
        """The batch that training goes on with."""
        sampler = self._trainer._sampler  # noqa: SLF001 - this callback is a part of it
        return 0 if sampler is None else sampler.progress.batch_at(self._trainer.state.global_step)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - theirs
        """Begin the stream of batches, or go on with that of a checkpoint."""
        sampler, curriculum = self._trainer._sampler, self._trainer.curriculum  # noqa: SLF001 - see above
        if sampler is None or curriculum is None:
            return
        position = self._restore(curriculum, state) if state.global_step else 0
        # What transformers reads and throws away before it goes on, in the epoch that it begins with.
        num_skipped = 0 if args.ignore_data_skip else state.global_step % sampler.pace.steps_per_epoch
        self._is_first = True
        sampler.progress.go_on(position, state.global_step, num_skipped)
        sampler.next_generated = position
        # TRL counts elements from 0 wherever it goes on, and keeps what an earlier training generated: in the middle of
        # a batch it would generate at other elements than before the restart.
        self._trainer._step = num_skipped * sampler.pace.num_accumulated  # noqa: SLF001 - see above
        self._trainer._buffered_inputs = None  # noqa: SLF001 - see above

    def _restore(self, curriculum: Curriculum, state: Any) -> int:
        kept = state.stateful_callbacks.get(_STATE)
        if kept is None:
            warnings.warn(
                "the checkpoint has no curriculum: it was saved by a trainer without one, so the tasks begin anew",
                UserWarning,
                stacklevel=2,
            )
            return 0
        attributes = kept.get("attributes") if isinstance(kept, Mapping) else None
        position = attributes.get("position") if isinstance(attributes, Mapping) else None
        if attributes is None or type(position) is not int or position < 0:
            raise CheckpointError(
                f"the checkpoint's curriculum is {kept!r:.200}; accepted: what was saved by this trainer. Resume from "
                "another checkpoint, or start anew"
            )
        differences = curriculum.load_state_dict(attributes.get("curriculum"), self._trainer._renamed)  # noqa: SLF001 - see above
        if differences and self._trainer.accelerator.is_main_process:
            listed = "; ".join(differences)
            warnings.warn(f"training goes on with another mixture: {listed}", UserWarning, stacklevel=2)
        # With other tasks what was planned ahead may be gone; a batch that nobody remembers is no batch to go on with.
        return position if position in curriculum.batches else curriculum.num_planned

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - theirs
        """Begin the next epoch where the last one ended."""
        sampler = self._trainer._sampler  # noqa: SLF001 - see above
        if sampler is not None and not self._is_first:
            sampler.progress.begin_epoch(state.global_step)
        self._is_first = False


def outcome_of(environment: str, task: int, group: Sequence[Figures]) -> Outcome:
    """Sum up a group for the curriculum.

    Args:
        environment: Its environment.
        task: The task's place in the environment's list.
        group: Its rollouts.
    """
    status = [STATUSES[int(rollout.status)] for rollout in group]
    sizes = [abs(rollout.advantage) for rollout in group if not math.isnan(rollout.total)]
    return Outcome(
        environment,
        task,
        num_rollouts=len(group),
        num_finished=status.count(EpisodeStatus.FINISHED),
        num_failed=status.count(EpisodeStatus.FAILED),
        num_refused=status.count(EpisodeStatus.REFUSED),
        num_scored=len(sizes),
        num_successes=sum(rollout.is_success == 1 for rollout in group if not math.isnan(rollout.total)),
        num_nonzero=sum(size > _NO_ADVANTAGE for size in sizes),
        sum_abs_advantage=math.fsum(sizes),
        num_tokens=int(sum(rollout.num_completion_tokens for rollout in group)),
    )


_NO_ADVANTAGE: Final = 1e-4
"""Below this an advantage is what rounding leaves of equal rewards."""
