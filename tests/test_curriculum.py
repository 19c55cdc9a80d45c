"""The curriculum as a whole: planned, observed, accounted for, saved, and gone on with."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum import Batch, Curriculum, Entry, Outcome, Pick
from multienv.curriculum.batch import dealt
from multienv.errors import CheckpointError, OrderError, RoutingError, SessionLimitError, SpecError
from multienv.specs import Adaptive, CurriculumSpec, Schedule, Stage
from tests.strategies import curriculum_specs, entries, group_outcomes

NAMES = ["a", "b", "c"]


def good(batch: Batch, num_successes: int = 2) -> list[Outcome]:
    return [
        Outcome(
            pick.environment,
            pick.task,
            num_rollouts=4,
            num_finished=4,
            num_scored=4,
            num_successes=num_successes,
            num_nonzero=4,
            sum_abs_advantage=3.0,
            num_tokens=40,
        )
        for pick in batch.groups
    ]


def refused(batch: Batch, names: set[str]) -> list[Outcome]:
    outcomes = good(batch)
    return [Outcome(o.environment, o.task, 4, num_refused=4) if o.environment in names else o for o in outcomes]


class Run:
    """A curriculum and the outcomes it will meet, batch by batch, whenever they arrive."""

    def __init__(self, make: Callable[[], Curriculum]) -> None:
        self.make = make
        self.curriculum = make()
        self.picks: list[tuple[Pick, ...]] = []

    def plan(self) -> Batch:
        batch = self.curriculum.plan()
        self.picks.append(batch.groups)
        return batch

    def restart(self) -> None:
        """Save, and go on in a fresh curriculum."""
        state = json.loads(json.dumps(self.curriculum.state_dict(), allow_nan=False))
        self.curriculum = self.make()
        assert self.curriculum.load_state_dict(state) == []
        assert self.curriculum.state_dict() == state


@st.composite
def makers(draw: st.DrawFn) -> Callable[[], Curriculum]:
    """How to make one curriculum again and again."""
    spec, known = draw(curriculum_specs(NAMES)), draw(entries(NAMES))
    options: dict[str, Any] = {
        "num_groups": draw(st.integers(1, 8)),
        "lag": draw(st.integers(0, 3)),
        "num_ranks": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 3)),
        "is_shuffled": draw(st.booleans()),
        "steps_before": lambda batch: 2 * batch,
    }
    uncapped = [replace(entry, max_groups=None) for entry in known]

    def make() -> Curriculum:
        try:
            return Curriculum(known, spec, **options)
        except SessionLimitError:  # the drawn caps do not hold a batch in every part
            return Curriculum(uncapped, spec, **options)

    return make


@given(makers(), st.data())
def test_a_restart_at_any_point_and_any_timing_of_the_outcomes_change_no_pick(
    make: Callable[[], Curriculum], data: st.DataObject
) -> None:
    early, late = Run(make), Run(make)
    known: list[list[Outcome]] = []
    lag = early.curriculum.lag
    num_late = 0
    for index in range(data.draw(st.integers(1, 9))):
        while num_late < index - lag:  # as late as may be
            late.curriculum.observe(num_late, known[num_late])
            num_late += 1
        batch = early.plan()
        late.plan()
        known.append([data.draw(group_outcomes(pick)) for pick in batch.groups])
        early.curriculum.observe(index, known[index])  # as early as may be
        if data.draw(st.booleans()):
            early.curriculum.forget(index)
        if data.draw(st.booleans()):
            early.restart()
        if data.draw(st.booleans()):
            late.restart()
    assert early.picks == late.picks


@given(makers(), st.data())
def test_every_batch_is_full_of_tasks_that_there_are_and_accounted_for(
    make: Callable[[], Curriculum], data: st.DataObject
) -> None:
    curriculum, planned, num_tokens = make(), Counter[str](), 0
    num_batches = data.draw(st.integers(1, 8))
    for index in range(num_batches):
        batch = curriculum.plan()
        assert batch.index == index
        assert len(batch.groups) == curriculum.num_groups
        assert math.isclose(math.fsum(batch.asked.values()), 1.0, rel_tol=1e-9)
        counts = Counter(pick.environment for pick in batch.groups)
        for name, num in counts.items():
            entry = curriculum.entries[name]
            assert batch.asked[name] > 0
            assert entry.max_groups is None or num <= entry.max_groups
        assert all(0 <= pick.task < curriculum.entries[pick.environment].num_tasks for pick in batch.groups)
        planned += counts
        outcomes = [data.draw(group_outcomes(pick)) for pick in batch.groups]
        num_tokens += sum(outcome.num_tokens for outcome in outcomes)
        curriculum.observe(index, outcomes)
        assert curriculum.metrics(batch, outcomes).keys() == curriculum.entries.keys()
    lines = curriculum.account.lines
    assert math.fsum(line.asked for line in lines.values()) == pytest.approx(num_batches * curriculum.num_groups)
    assert {name: line.dispatched for name, line in lines.items() if line.dispatched} == planned
    assert sum(line.rollouts for line in lines.values()) == 4 * num_batches * curriculum.num_groups
    assert sum(line.tokens for line in lines.values()) == num_tokens


@given(makers(), st.data())
def test_a_batch_observed_twice_changes_nothing_and_one_out_of_turn_is_refused(
    make: Callable[[], Curriculum], data: st.DataObject
) -> None:
    curriculum = make()
    for index in range(3):
        batch = curriculum.plan()
        with pytest.raises(OrderError, match=f"batch {index + 1} is observed, but the next to be observed is {index}"):
            curriculum.observe(index + 1, [])
        outcomes = [data.draw(group_outcomes(pick)) for pick in batch.groups]
        with pytest.raises(RoutingError, match="are not of its"):
            curriculum.observe(index, outcomes[:-1])
        curriculum.observe(index, outcomes)
        before = curriculum.state_dict()
        curriculum.observe(index, good(batch))
        assert json.dumps(curriculum.state_dict()) == json.dumps(before)
    with pytest.raises(OrderError, match="batch -1 is observed"):
        curriculum.observe(-1, [])
    with pytest.raises(OrderError, match="of 3 planned ones; observe batches in the order in which they were planned"):
        curriculum.observe(3, [])


def everything(**options: Any) -> Curriculum:
    """A curriculum of which every part has something to save."""
    spec = CurriculumSpec(
        adaptive=Adaptive(),
        stages=[Stage(until={"a": 0.9}, min_groups=99, max_tool_calls={"a": 2}), Stage()],
    )
    known = [Entry(name, 5, weight, ids=ids_of(name, range(5))) for name, weight in zip(NAMES, (3, 2, 1), strict=True)]
    return Curriculum(**{"entries": known, "spec": spec, "num_groups": 6, "lag": 1, **options})


def ids_of(name: str, tasks: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{name}/train/{task}" for task in tasks)


def a_state() -> Any:
    curriculum = everything()
    for index in range(6):
        batch = curriculum.plan()
        if index < 5:
            curriculum.observe(index, refused(batch, {"b"}) if index in (1, 2) else good(batch))
            curriculum.forget(index)
    return json.loads(json.dumps(curriculum.state_dict()))


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in plain JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places_of(one, (*path, key)))]


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(state))
    if not path:
        return value
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


STATE = a_state()
PLACES = places_of(STATE)
FOREIGN: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**400,
    math.nan,
    math.inf,
    "x",
    [],
    [1],
    {},
    {"x": 1},
    {"x": {}},
    [[]],
    [None],
]


@given(st.sampled_from(PLACES), st.sampled_from(FOREIGN))
def test_a_state_with_anything_in_it_that_does_not_belong_is_refused_and_leaves_no_trace(
    path: tuple[Any, ...], value: Any
) -> None:
    curriculum = everything()
    curriculum.observe(0, good(curriculum.plan()))
    before = curriculum.state_dict()
    try:
        curriculum.load_state_dict(changed(STATE, path, value))
    except CheckpointError:
        assert curriculum.state_dict() == before
    else:  # what is data may be other data
        json.dumps(curriculum.state_dict(), allow_nan=False)
    for _ in range(3):
        assert len(curriculum.plan().groups) == 6


DEPTHS = {
    "environments": 3,
    "account": 3,
    "orders": 3,
    "batches": 3,
    "waiting": 3,
    "outages": 2,
    "stages": 2,
    "bandit": 2,
}
KEYS = [
    path
    for path in PLACES
    if path and isinstance(path[-1], str) and (len(path) == 1 or len(path) == DEPTHS.get(path[0]))
]


@pytest.mark.parametrize("path", KEYS, ids=["/".join(map(str, path)) for path in KEYS])
def test_a_missing_or_an_unknown_key_is_refused(path: tuple[Any, ...]) -> None:
    curriculum = everything()
    before = curriculum.state_dict()
    without, more = json.loads(json.dumps(STATE)), json.loads(json.dumps(STATE))
    for state, is_missing in ((without, True), (more, False)):
        inner = state
        for key in path[:-1]:
            inner = inner[key]
        if is_missing:
            del inner[path[-1]]
        else:
            inner["unheard_of"] = 1
        with pytest.raises(CheckpointError):
            curriculum.load_state_dict(state)
        assert curriculum.state_dict() == before


@pytest.mark.parametrize(
    "change",
    [
        {"batches": STATE["batches"][:-1]},
        {"batches": STATE["batches"] * 2},
        {"batches": []},
        {"waiting": STATE["waiting"] * 2},
        {"num_observed": STATE["num_observed"] - 2},
        {"num_observed": STATE["num_planned"] + 2},
        {"num_planned": STATE["num_planned"] + 1},
        {"orders": {}},
        {"environments": {}},
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="its batches or environments do not belong together. Resume from anot"):
        everything().load_state_dict({**STATE, **change})


def test_a_state_replaces_whatever_was_planned_before() -> None:
    used, fresh = everything(), everything()
    for index in range(8):
        used.observe(index, refused(used.plan(), {"a"}))
    used.load_state_dict(STATE)
    fresh.load_state_dict(STATE)
    assert used.state_dict() == fresh.state_dict() == STATE
    assert used.plan() == fresh.plan()


def go_on(curriculum: Curriculum, renamed: dict[str, str] | None = None) -> list[str]:
    """Go on from the saved state, and see that the laws hold from there."""
    said = curriculum.load_state_dict(json.loads(json.dumps(STATE)), renamed)
    assert curriculum.num_observed == STATE["num_observed"]
    got, asked = Counter[str](), Counter[str]()
    for _ in range(60):
        index = curriculum.num_planned
        batch = curriculum.plan()
        assert len(batch.groups) == curriculum.num_groups
        for pick in batch.groups:
            assert 0 <= pick.task < curriculum.entries[pick.environment].num_tasks
        got.update(pick.environment for pick in batch.groups)
        asked.update({name: share * curriculum.num_groups for name, share in batch.asked.items()})
        while curriculum.num_observed <= index:
            curriculum.observe(curriculum.num_observed, good(curriculum.batches[curriculum.num_observed]))
    owed = math.fsum(STATE["outages"]["owed"].values())
    for name in curriculum.entries:
        assert abs(got[name] - asked[name]) <= 2 + owed, "within a group or two, but for what is paid back"
    json.dumps(curriculum.state_dict(), allow_nan=False)
    again = Curriculum(curriculum.entries.values(), curriculum.spec, curriculum.num_groups, lag=1, seed=curriculum.seed)
    assert again.load_state_dict(json.loads(json.dumps(curriculum.state_dict()))) == []
    assert again.plan() == curriculum.plan()
    return said


def entries_now(**tasks: tuple[float, Sequence[int]]) -> list[Entry]:
    return [Entry(name, len(own), weight, ids=ids_of(name, own)) for name, (weight, own) in tasks.items()]


FIVE = range(5)
PLAIN = CurriculumSpec(adaptive=True)
OTHER_STAGES = "there is 1 stage now, there were 2"


def test_an_environment_is_added_and_one_is_gone() -> None:
    known = entries_now(a=(3, FIVE), b=(2, FIVE), d=(1, FIVE))
    curriculum = everything(entries=known)
    said = go_on(curriculum)
    assert "'c' is gone" in said
    assert "'d' is new" in said
    lines = curriculum.account.lines
    assert lines["c"].dispatched > 0, "the account keeps what was trained on"
    assert lines["a"].dispatched > STATE["account"]["a"]["dispatched"]
    assert "c" not in curriculum.quotas.state_dict()


def test_a_renamed_environment_keeps_all_that_was_learnt_of_it() -> None:
    spec = CurriculumSpec(
        adaptive=Adaptive(), stages=[Stage(until={"new": 0.9}, min_groups=99, max_tool_calls={"new": 2}), Stage()]
    )
    known = entries_now(new=(3, FIVE), b=(2, FIVE), c=(1, FIVE))
    curriculum = everything(entries=known, spec=spec)
    said = curriculum.load_state_dict(STATE, {"a": "new"})
    assert said == ["'a' is called 'new' now", "the curriculum's stages was declared otherwise"]
    state = curriculum.state_dict()
    for part in (state["quotas"], state["account"], state["bandit"]["scores"], state["bandit"]["tilts"]):
        assert "a" not in part
    assert state["quotas"]["new"] == STATE["quotas"]["a"]
    assert state["account"]["new"] == STATE["account"]["a"]
    assert state["bandit"]["scores"]["new"] == STATE["bandit"]["scores"]["a"]
    assert state["stages"]["rates"] == {"new": STATE["stages"]["rates"]["a"]}
    planned = [
        ["new" if name == "a" else name, task.replace("a/train", "new/train")]
        for name, task in STATE["batches"][-1]["groups"]
    ]
    assert state["batches"][-1]["groups"] == planned, "what was planned ahead stays planned"
    assert state["orders"]["new"]["pass"] == STATE["orders"]["a"]["pass"] + 1, "the order of a pass follows the name"
    go_on(everything(entries=known, spec=spec), {"a": "new"})


def test_two_environments_change_their_names() -> None:
    known = entries_now(b=(3, FIVE), a=(2, FIVE), c=(1, FIVE))
    curriculum = everything(entries=known)
    said = curriculum.load_state_dict(STATE, {"a": "b", "b": "a"})
    assert said == ["'a' is called 'b' now", "'b' is called 'a' now"]
    assert curriculum.state_dict()["quotas"]["a"] == STATE["quotas"]["b"]


@pytest.mark.parametrize(
    ("renamed", "said"),
    [
        ({"a": "b"}, "renamed gives 'a' the name 'b', which the checkpoint has already; rename that too"),
        ({"a": "b", "b": "b"}, "renamed gives 'a' the name 'b', which the checkpoint has already; rename that too"),
        ({"a": "seta", "b": "seta"}, "renamed gives two environments the name 'seta'; give each its own"),
        (
            {"a": "zeta"},
            "renamed has 'zeta' (did you mean 'seta'?), which the mixture does not have; its environments:",
        ),
        (
            {"aa": "seta"},
            "renamed has 'aa' (did you mean 'a'?), which the checkpoint does not know; its environments: a",
        ),
    ],
)
def test_a_map_of_names_that_cannot_be_right_is_said(renamed: dict[str, str], said: str) -> None:
    curriculum = everything(entries=entries_now(seta=(1, FIVE), b=(1, FIVE)), spec=PLAIN)
    before = curriculum.state_dict()
    with pytest.raises(SpecError) as raised:
        curriculum.load_state_dict(STATE, renamed)
    assert said in str(raised.value)
    assert curriculum.state_dict() == before


def test_other_weights_are_said_and_followed() -> None:
    curriculum = everything(entries=entries_now(a=(1, FIVE), b=(2, FIVE), c=(3, FIVE)))
    said = go_on(curriculum)
    assert said == [
        "the prior share of 'a' is 0.167 now, it was 0.5",
        "the prior share of 'c' is 0.5 now, it was 0.167",
    ]


def test_other_tasks_are_said_and_what_was_planned_of_tasks_that_are_gone_is_planned_anew() -> None:
    known = entries_now(a=(3, range(3, 9)), b=(2, FIVE), c=(1, [4, 3, 2, 1, 0]))
    said = go_on(everything(entries=known))
    assert said == [
        "'a' has 6 tasks now, it had 5",
        "'c' has other tasks now, or in another order",
        "batches planned ahead are planned anew",
    ]


def test_another_batch_size_another_seed_and_no_more_adaptation_are_said() -> None:
    spec = CurriculumSpec(stages=[Stage(until={"a": 0.9}, min_groups=99, max_tool_calls={"a": 2}), Stage()])
    said = go_on(everything(spec=spec, num_groups=4, seed=7))
    assert said == [
        "a batch has 4 groups now, it had 6",
        "the tasks are shuffled with seed 7 now, it was 0",
        "the mixture no longer follows the advantages now",
        "batches planned ahead are planned anew",
    ]


def test_adaptation_may_begin_with_a_restart() -> None:
    before = everything(spec=CurriculumSpec())
    before.observe(0, good(before.plan()))
    after = everything(spec=PLAIN)
    assert after.load_state_dict(before.state_dict()) == ["the mixture follows the advantages now"]
    assert len(after.plan().groups) == 6


def test_fewer_or_more_stages_are_said() -> None:
    assert go_on(everything(spec=CurriculumSpec(adaptive=True))) == ["there are 0 stages now, there were 2"]
    one = CurriculumSpec(adaptive=Adaptive(), stages=[Stage()])
    assert go_on(everything(spec=one)) == [OTHER_STAGES]
    two = Curriculum([Entry("a", 2)], CurriculumSpec(stages=[Stage(until={"a": 0.1}, min_groups=1), Stage()]), 2)
    two.observe(0, good(two.plan()))
    two.plan()
    fewer = Curriculum([Entry("a", 2)], CurriculumSpec(stages=[Stage()]), 2)
    assert fewer.load_state_dict(two.state_dict()) == [
        OTHER_STAGES,
        "training had come to stage 1 and goes on in stage 0",
    ]


def test_another_schedule_is_said() -> None:
    one = everything(spec=CurriculumSpec(schedule=Schedule(points={0: {"a": 1}})))
    other = everything(spec=CurriculumSpec(schedule=Schedule(points={0: {"a": 2}})))
    assert other.load_state_dict(json.loads(json.dumps(one.state_dict()))) == [
        "the curriculum's schedule was declared otherwise"
    ]


def test_lines_of_the_account_that_meet_under_one_name_are_added_up() -> None:
    first = everything(spec=PLAIN)
    first.observe(0, good(first.plan()))
    without = everything(entries=entries_now(a=(3, FIVE), b=(2, FIVE)), spec=PLAIN)
    without.load_state_dict(first.state_dict())
    third = everything(entries=entries_now(c=(3, FIVE), b=(2, FIVE)), spec=PLAIN)
    third.load_state_dict(without.state_dict(), {"a": "c"})
    lines = first.account.lines
    assert third.account.lines["c"].dispatched == lines["a"].dispatched + lines["c"].dispatched


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40).map(sorted), st.integers(1, 8))
def test_groups_are_dealt_so_that_no_rank_holds_more_of_an_environment_than_it_must(
    names: list[str], ranks: int
) -> None:
    picks = [Pick(name, place) for place, name in enumerate(names)]
    made = dealt(picks, ranks)
    assert Counter(made) == Counter(picks)
    if len(picks) % ranks:
        return
    size = len(picks) // ranks
    for rank in range(ranks):
        own = Counter(pick.environment for pick in made[rank * size : (rank + 1) * size])
        assert all(num <= math.ceil(names.count(name) / ranks) for name, num in own.items())


def test_an_outage_under_caps_ends_no_training() -> None:
    curriculum = Curriculum([Entry("a", 3, max_groups=4), Entry("b", 3, max_groups=4)], CurriculumSpec(), 8)
    for index in range(12):
        batch = curriculum.plan()
        assert Counter(pick.environment for pick in batch.groups) == {"a": 4, "b": 4}
        curriculum.observe(index, refused(batch, {"b"}))


@pytest.mark.parametrize("num_groups", [1, 2, 8])
def test_one_that_was_down_comes_back_whatever_the_size_of_a_batch(num_groups: int) -> None:
    curriculum = Curriculum([Entry("a", 3), Entry("b", 3)], CurriculumSpec(), num_groups, lag=1)
    for index in range(200):
        batch = curriculum.plan()
        curriculum.observe(index, refused(batch, {"b"}) if index < 20 else good(batch))
    lines = curriculum.account.lines
    assert not curriculum.outages.down
    num_lost = lines["b"].dispatched - lines["b"].scored / 4
    assert 1 <= num_lost <= num_groups + 5, "a batch or two until it is known, and trials"
    assert abs(lines["b"].scored / 4 - lines["a"].scored / 4) <= num_lost + 2, "and the rest is made up for"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entries": []}, "the curriculum has no environment with a task; there is nothing to train on"),
        ({"entries": [Entry("a", 0)]}, "the curriculum has no environment with a task"),
        ({"entries": [Entry("a", 1), Entry("a", 2)]}, "there are two environments 'a'; give each its own name"),
        (
            {"entries": [Entry("a", 1, max_groups=0)], "spec": PLAIN},
            "environment 'a' may not have as many sessions at on",
        ),
        ({"num_groups": 0}, "num_groups=0, num_ranks=1, lag=1; accepted: at least one group and one rank"),
        ({"num_ranks": 0}, "num_groups=6, num_ranks=0"),
        ({"lag": -1}, "lag=-1; accepted"),
    ],
)
def test_a_curriculum_that_cannot_be_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        everything(**options)
    assert said in str(raised.value)


@pytest.mark.parametrize("weight", [1e-300, 1e300, 1.7e308])
def test_weights_at_the_ends_of_what_a_float_holds_are_followed(weight: float) -> None:
    known = [Entry("a", 3, weight), Entry("b", 3, weight), Entry("c", 3, 1.0)]
    curriculum = Curriculum(known, PLAIN, 4)
    for index in range(6):
        batch = curriculum.plan()
        counts = Counter(pick.environment for pick in batch.groups)
        assert counts["a" if weight > 1 else "c"] >= 2 - (weight > 1)
        curriculum.observe(index, good(batch))


def test_a_batch_of_fewer_groups_than_environments_leaves_none_out() -> None:
    curriculum = Curriculum([Entry(f"e{place}", 2) for place in range(50)], CurriculumSpec(mixture="uniform"), 3)
    got = Counter(pick.environment for _ in range(100) for pick in curriculum.plan().groups)
    assert set(got.values()) == {6}


@pytest.mark.parametrize("spec", [CurriculumSpec(), CurriculumSpec(adaptive=True)], ids=["weights", "adaptive"])
def test_a_decision_over_three_hundred_environments_takes_about_a_millisecond(spec: CurriculumSpec) -> None:
    known = [Entry(f"e{place}", 1000, 1.0 + place % 7) for place in range(300)]
    curriculum = Curriculum(known, spec, 64, lag=1)
    took = []
    for index in range(60):
        before = time.perf_counter()
        batch = curriculum.plan()
        took.append(time.perf_counter() - before)
        curriculum.observe(index, good(batch))
        curriculum.forget(index)
    assert sorted(took)[len(took) // 2] < 0.005, "with room for a slow machine"


def test_what_has_memory_tells_its_figures() -> None:
    stages = (Stage(until={"a": 0.9}), Stage())
    curriculum = Curriculum([Entry("a", 5), Entry("b", 5)], CurriculumSpec(stages=stages), num_groups=3)
    batch = curriculum.plan()
    outcomes = [Outcome(pick.environment, pick.task, 4, num_scored=4, num_nonzero=2) for pick in batch.groups]
    curriculum.observe(0, outcomes)
    figures = curriculum.metrics(batch, outcomes)
    dispatched = {name: own["groups_dispatched"] for name, own in figures.items()}
    assert sum(dispatched.values()) == 3
    for name, own in figures.items():
        assert own["groups_carried"] == own["groups_asked"] - dispatched[name] == 1.5 - dispatched[name]
        assert own["nonzero_advantages"] == 0.5
        assert curriculum.account.metrics()[name] == {
            "asked": 1.5,
            "dispatched": dispatched[name],
            "rollouts": 4 * dispatched[name],
            "finished": 0.0,
            "scored": 4 * dispatched[name],
            "nonzero": 2 * dispatched[name],
            "tokens": 0.0,
        }
    assert curriculum.stages.metrics() == {"stage": 0.0}
