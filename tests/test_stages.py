"""Stages that end with success, and schedules that follow the step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum import Curriculum, Entry, Outcome
from multienv.curriculum.shares import normalised, scheduled
from multienv.curriculum.stages import Stages
from multienv.errors import CheckpointError, SessionLimitError, SpecError
from multienv.specs import CurriculumSpec, Schedule, Stage

THREE = (
    Stage(weights={"a": 1.0}, until={"a": 0.5}, min_groups=2, max_tool_calls={"a": 2}),
    Stage(weights={"a": 1.0, "b": 1.0}, until={"a": 0.5, "b": 0.75}, min_groups=2, max_tool_calls={"a": 4}),
    Stage(),
)


def group(name: str, num_successes: int, num_scored: int = 4) -> Outcome:
    return Outcome(name, 0, num_rollouts=4, num_scored=num_scored, num_successes=num_successes)


def test_a_stage_ends_when_all_its_goals_are_met_by_groups_enough() -> None:
    stages = Stages(THREE)
    stages.observe(0, [group("a", 4)], 1)
    assert stages.place == 0, "one group is not enough"
    stages.observe(1, [group("a", 4)], 2)
    assert stages.place == 1
    stages.observe(2, [group("a", 4)] * 5, 3)
    assert stages.place == 1, "another goal is not met"
    stages.observe(3, [group("b", 3)] * 2, 4)
    assert stages.place == 2
    stages.observe(4, [group("a", 4)] * 9, 5)
    assert stages.place == 2, "the last one does not end"
    assert stages.current == THREE[2]


def test_what_infrastructure_ended_says_nothing_about_success() -> None:
    stages = Stages(THREE)
    for index in range(9):
        stages.observe(index, [group("a", 0, num_scored=0)], index + 1)
    assert stages.state_dict()["counts"] == {}
    stages.observe(9, [group("a", 4)] * 2, 10)
    assert stages.place == 1


def test_batches_planned_in_an_earlier_stage_do_not_count_in_the_next() -> None:
    stages = Stages([Stage(until={"a": 0.5}, min_groups=1), Stage(until={"a": 0.5}, min_groups=1), Stage()])
    stages.observe(0, [group("a", 4)], 3)
    for index in (1, 2):
        stages.observe(index, [group("a", 4)], 3)
        assert stages.place == 1, "planned with the horizons of the stage before"
    stages.observe(3, [group("a", 4)], 4)
    assert stages.place == 2


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=4), max_size=20))
def test_stages_only_go_on_and_resume_where_they_were(history: list[list[tuple[str, int]]]) -> None:
    one, other = Stages(THREE), Stages(THREE)
    for index, batch in enumerate(history):
        before = one.place
        outcomes = [group(*each) for each in batch]
        one.observe(index, outcomes, index + 1)
        other.observe(index, outcomes, index + 1)
        assert before <= one.place <= before + 1
        state = json.loads(json.dumps(one.state_dict()))
        assert other.state_dict() == state
        other = Stages(THREE)
        other.load_state_dict(state)


def test_with_fewer_stages_training_goes_on_in_the_last_and_with_more_where_it_was() -> None:
    stages = Stages(THREE)
    stages.observe(0, [group("a", 4)] * 2, 1)
    stages.observe(1, [group("a", 4)] * 2 + [group("b", 4)] * 2, 2)
    fewer, none, more = Stages(THREE[2:]), Stages(), Stages((*THREE[:2], THREE[0], THREE[2]))
    for each, place in ((fewer, 0), (none, 0), (more, 2)):
        each.load_state_dict(stages.state_dict())
        assert each.place == place
    assert none.current is None
    assert more.current == THREE[0]
    assert fewer.current == THREE[2]


SOUND: dict[str, Any] = {"num_stages": 3, "place": 1, "begins": 4, "rates": {"a": 0.5}, "counts": {"a": 1}}


@pytest.mark.parametrize(
    "change",
    [
        {"place": 3},
        {"place": -1},
        {"place": True},
        {"begins": None},
        {"rates": {"a": 2.0}},
        {"rates": {}},
        {"counts": {"a": 0.5}},
        {"more": 1},
        {"num_stages": 1},
    ],
)
def test_what_is_no_state_of_stages_is_refused(change: Mapping[str, Any]) -> None:
    stages = Stages(THREE)
    stages.load_state_dict(SOUND)
    with pytest.raises(CheckpointError, match="the state of the stages"):
        stages.load_state_dict({**SOUND, **change})
    assert stages.state_dict() == SOUND


weights = st.dictionaries(st.sampled_from("abc"), st.floats(0, 10), min_size=1).filter(lambda w: any(w.values()))
schedules = st.dictionaries(st.integers(0, 30), weights, min_size=1, max_size=5)


@given(schedules, st.integers(0, 40))
def test_a_piecewise_schedule_keeps_the_weights_until_the_next_point(
    points: dict[int, dict[str, float]], step: int
) -> None:
    last = max((point for point in points if point <= step), default=min(points))
    assert scheduled(Schedule(points=points), step) == normalised(points[last])


@given(schedules, st.integers(0, 40))
def test_a_linear_schedule_meets_its_points_and_lies_between_them(
    points: dict[int, dict[str, float]], step: int
) -> None:
    made = scheduled(Schedule(points=points, interpolation="linear"), step)
    assert math.isclose(math.fsum(made.values()), 1.0, rel_tol=1e-9)
    before = max((point for point in points if point <= step), default=min(points))
    after = min((point for point in points if point >= step), default=max(points))
    for name in "abc":
        ends = [normalised(points[point]).get(name, 0.0) for point in (before, after)]
        assert min(ends) - 1e-9 <= made.get(name, 0.0) <= max(ends) + 1e-9
        if step in points:
            assert made.get(name, 0.0) == pytest.approx(ends[0])


def test_a_curriculum_follows_its_schedule_by_the_training_step() -> None:
    spec = CurriculumSpec(schedule=Schedule(points={0: {"a": 1}, 4: {"b": 1}}))
    curriculum = Curriculum([Entry("a", 3), Entry("b", 3)], spec, 2, steps_before=lambda batch: 2 * batch)
    planned = [{pick.environment for pick in curriculum.plan().groups} for _ in range(4)]
    assert planned == [{"a"}, {"a"}, {"b"}, {"b"}]


def test_a_curriculum_goes_through_its_stages_with_their_horizons() -> None:
    curriculum = Curriculum([Entry("a", 3), Entry("b", 3)], CurriculumSpec(stages=THREE), 4, lag=1)
    seen = []
    for index in range(8):
        batch = curriculum.plan()
        seen.append((batch.max_tool_calls.get("a"), dict(batch.asked)))
        if index:
            before = curriculum.batches[index - 1]
            curriculum.observe(
                index - 1, [Outcome(*_of(pick), 4, num_scored=4, num_successes=4) for pick in before.groups]
            )
    assert [horizon for horizon, _ in seen] == [2, 2, 4, 4, None, None, None, None]
    assert seen[0][1] == {"a": 1.0, "b": 0.0}
    assert seen[2][1] == {"a": 0.5, "b": 0.5}


def _of(pick: Any) -> tuple[str, int]:
    return pick.environment, pick.task


EMPTY = [Entry("a", 3), Entry("b", 0)]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            CurriculumSpec(schedule=Schedule(points={0: {"a": 1}, 9: {"b": 1}})),
            "step 9 of the schedule trains on 'b' only, which have no task to train on; give them tasks",
        ),
        (CurriculumSpec(stages=[Stage(until={"a": 1}), Stage(weights={"b": 1})]), "stage 1 trains on 'b' only, which"),
        (
            CurriculumSpec(stages=[Stage(until={"b": 0.5}), Stage()]),
            "stage 0 waits for 'b', which has no task to train",
        ),
    ],
)
def test_what_would_end_the_training_later_is_said_at_once(spec: CurriculumSpec, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        Curriculum(EMPTY, spec, 4)
    assert said in str(raised.value)


def test_a_stage_whose_limits_hold_no_batch_is_said_at_once() -> None:
    spec = CurriculumSpec(stages=[Stage(until={"a": 0.5}), Stage(weights={"a": 1.0})])
    with pytest.raises(
        SessionLimitError, match="in stage 1 the limits let a hold 2 at once; raise limits.max_sessions"
    ):
        Curriculum([Entry("a", 3, max_groups=2), Entry("b", 3)], spec, 4)
