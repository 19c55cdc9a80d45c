"""What the data loader draws: the planned rows, in TRL's own layout, epoch after epoch."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader
from trl.trainer.utils import RepeatSampler

from multienv.curriculum import Curriculum, Entry, Outcome
from multienv.specs import CurriculumSpec
from multienv.training.sampling import Pace, PlannedSampler, Progress

ROWS = {"a": [4, 1, 3], "b": [0, 2]}
"""A dataset of five rows, by environment."""

paces = st.builds(
    Pace,
    num_generations=st.integers(1, 4),
    num_repeats=st.integers(1, 4),
    num_batches=st.integers(1, 5),
    num_accumulated=st.integers(1, 6),
    num_prefetched=st.integers(0, 4),
)
group_counts = st.integers(1, 4)


def sampler_of(pace: Pace, num_groups: int, lag: int = 1) -> PlannedSampler:
    progress = Progress(pace)
    curriculum = Curriculum(
        [Entry(name, len(rows)) for name, rows in ROWS.items()],
        CurriculumSpec(mixture="proportional"),
        num_groups,
        steps_before=progress.steps_before,
        lag=lag,
    )
    return PlannedSampler(curriculum, ROWS, progress)


def planned(sampler: PlannedSampler, first: int) -> list[int]:
    """The rows of an epoch's batches, one for each group."""
    batches = [sampler.curriculum.batches[index] for index in range(first, first + sampler.pace.num_batches)]
    return [ROWS[pick.environment][pick.task] for batch in batches for pick in batch.groups]


@given(paces, group_counts)
def test_planned_rows_are_laid_out_as_trls_own_sampler_lays_rows_out(pace: Pace, num_groups: int) -> None:
    sampler = sampler_of(pace, num_groups)
    drawn = list(sampler)
    rows = planned(sampler, 0)
    trls = RepeatSampler(rows, pace.num_generations, num_groups, pace.num_repeats, shuffle=False)
    assert drawn == [rows[place] for place in trls]
    assert len(sampler) == len(drawn) == len(trls)


@given(paces, group_counts)
def test_epochs_are_one_stream_in_which_each_epoch_goes_on_where_the_last_one_ended(
    pace: Pace, num_groups: int
) -> None:
    sampler, whole = sampler_of(pace, num_groups), sampler_of(pace, num_groups)
    drawn = []
    for epoch in range(3):
        drawn += list(sampler)
        sampler.progress.begin_epoch((epoch + 1) * pace.steps_per_epoch)
    stream = [whole.curriculum.plan().groups for _ in range(3 * pace.num_batches)]
    rows = [[ROWS[pick.environment][pick.task] for pick in groups] * pace.num_repeats for groups in stream]
    assert drawn[:: pace.num_generations] == [row for batch in rows for row in batch]


@given(paces, group_counts, st.data())
def test_batches_trained_on_before_a_restart_are_filler_and_the_others_are_as_planned(
    pace: Pace, num_groups: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, 3 * pace.steps_per_epoch))
    sampler = sampler_of(pace, num_groups)
    curriculum, progress = sampler.curriculum, sampler.progress
    whole = list(sampler)
    while step - progress.first_step >= pace.steps_per_epoch:
        progress.begin_epoch(progress.first_step + pace.steps_per_epoch)
        whole = list(sampler)
    position = progress.batch_at(step)
    for index in range(position):
        groups = curriculum.batches[index].groups
        outcomes = [Outcome(pick.environment, pick.task, pace.num_generations) for pick in groups]
        curriculum.observe(index, outcomes)
    curriculum.forget(position)

    num_skipped = step - progress.first_step
    resumed = PlannedSampler(curriculum, ROWS, Progress(pace))
    resumed.progress.go_on(position, step, num_skipped)
    assert resumed.progress == progress, "the epoch began where it began"
    drawn = list(resumed)
    num_each = num_groups * pace.num_generations
    start = num_skipped * pace.num_accumulated // pace.num_repeats * pace.num_repeats * num_each
    assert len(drawn) == len(whole)
    assert drawn[start:] == whole[start:], "what is trained on"
    assert set(drawn[:start]) <= {ROWS["a"][0]}, "what is skipped"


@given(paces, group_counts, st.integers(0, 30))
def test_a_batch_is_trained_on_after_the_steps_that_were_said_before_it(
    pace: Pace, num_groups: int, num_steps: int
) -> None:
    """Walk through the data loader as transformers does, and note at which step each batch is begun."""
    progress = sampler_of(pace, num_groups).progress
    step = 0
    while step <= num_steps:
        elements = range(pace.elements_per_epoch)
        for start in range(0, len(elements), pace.num_accumulated):
            assert progress.batch_at(step) == progress.first + start // pace.num_repeats
            for element in elements[start : start + pace.num_accumulated]:
                if element % pace.num_repeats == 0:
                    assert progress.steps_before(progress.first + element // pace.num_repeats) == step
            step += 1
        assert progress.batch_at(step) == progress.first + pace.num_batches, "the next epoch's first"
        progress.begin_epoch(step)


@given(paces, st.integers(0, 9), st.integers(0, 60), st.data())
def test_who_goes_on_with_other_figures_goes_on_with_its_batch_at_its_step(
    pace: Pace, batch: int, step: int, data: st.DataObject
) -> None:
    """A checkpoint without a curriculum, of another size, or one whose elements are not skipped."""
    num_skipped = data.draw(st.integers(0, min(step, pace.steps_per_epoch - 1)))
    progress = Progress(pace)
    progress.go_on(batch, step, num_skipped)
    assert progress.batch_at(step) == batch
    assert step - pace.num_repeats / pace.num_accumulated - 1 < progress.steps_before(batch) <= step
    progress.go_on(batch, step, 0)
    assert (progress.first, progress.steps_before(batch)) == (batch, step)


class Elements(list[int]):
    """A dataset whose batch sampler notes what it was asked for."""

    def __init__(self, num: int) -> None:
        super().__init__(range(num))
        self.read: list[int] = []

    def batches(self) -> BatchSampler:
        dataset = self

        class Noted(BatchSampler):
            def __iter__(self) -> Any:
                for batch in super().__iter__():
                    dataset.read.append(batch[0])
                    yield batch

        return Noted(range(len(dataset)), 1, drop_last=False)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("num_accumulated", "num_repeats"), [(1, 1), (4, 1), (1, 4), (3, 2), (2, 2)])
def test_no_batch_is_planned_earlier_than_its_lag_says(
    num_accumulated: int, num_repeats: int, num_workers: int
) -> None:
    """Read through accelerate as transformers does, and generate as TRL does: what is planned before what is known?"""
    num_prefetched = 2 * num_workers
    pace = Pace(1, num_repeats, 12, num_accumulated, num_prefetched)
    elements = Elements(pace.elements_per_epoch)
    dataset: Any = elements
    loader: Any = DataLoader(dataset, batch_sampler=elements.batches(), num_workers=num_workers)
    iterator = iter(Accelerator(cpu=True).prepare(loader))
    num_done, most = 0, 0
    while taken := list(islice(iterator, num_accumulated)):
        num_known = -(-num_done // num_repeats)  # a batch is generated for with its first element
        num_planned = elements.read[-1] // num_repeats + 1
        most = max(most, num_planned - 1 - num_known)
        num_done += len(taken)
    assert most == pace.lag


def test_planned_rows_are_data_for_torch() -> None:
    sampler = sampler_of(Pace(2, 1, 2, 1), 2)
    dataset: Any = [10, 11, 12, 13, 14]
    loader: Any = DataLoader(dataset, sampler=sampler, batch_size=4)
    drawn = [value for batch in loader for value in batch.tolist()]
    assert drawn == [10 + row for row in planned(sampler, 0) for _ in range(2)]
    assert isinstance(next(iter(loader)), torch.Tensor)
