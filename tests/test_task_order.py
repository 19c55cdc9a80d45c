"""Which task of an environment comes next, by its laws."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.tasks import MAX_SKIPS, TaskOrder
from multienv.errors import CheckpointError, EmptyTaskListError, RoutingError, SpecError, TaskIndexError
from multienv.specs.task_rules import TaskRules

NAME = "seta"
POOLS = {"solved_at": 0.9, "hopeless_at": 0.1, "rest_passes": 3}
GATES = {"gate_after": 2, "gate_passes": 3}
ALL_RULES = {**POOLS, **GATES, "set_aside_after": 2}


def group(task: int, num_successes: int = 0, num_scored: int = 4, num_failed: int = 0, num_refused: int = 0) -> Outcome:
    return Outcome(
        NAME,
        task,
        4,
        num_failed=num_failed,
        num_refused=num_refused,
        num_scored=num_scored,
        num_successes=num_successes,
    )


def solved(task: int) -> Outcome:
    return group(task, 4)


def unsolved(task: int) -> Outcome:
    return group(task, 0)


def failed(task: int) -> Outcome:
    return group(task, num_scored=0, num_failed=4)


def refused(task: int) -> Outcome:
    return group(task, num_scored=0, num_refused=4)


def half_lost(task: int) -> Outcome:
    return group(task, num_scored=0, num_failed=2, num_refused=2)


def half_solved(task: int) -> Outcome:
    return group(task, 2)


def rest_solved(task: int) -> Outcome:
    return group(task, 3, 3, num_failed=1)


def rest_failed(task: int) -> Outcome:
    return group(task, 1, 1, num_failed=3)


KINDS = (solved, unsolved, half_solved, rest_failed, failed, refused, half_lost)
LOST = (failed, refused, half_lost)
kinds = st.sampled_from(KINDS)


@st.composite
def orders(draw: st.DrawFn, options: Sequence[dict[str, Any]] = ({}, POOLS, GATES, ALL_RULES)) -> TaskOrder:
    num_tasks = draw(st.integers(1, 12))
    expected = draw(
        st.one_of(st.just([]), st.lists(st.none() | st.floats(0, 1), min_size=num_tasks, max_size=num_tasks))
    )
    return TaskOrder(NAME, num_tasks, draw(st.integers()), TaskRules(**draw(st.sampled_from(options))), expected)


def num_tasks_of(order: TaskOrder) -> int:
    return int(order.state_dict()["num_tasks"])


def play(order: TaskOrder, policy: Sequence[Any], lag: int, num: int) -> Iterable[tuple[int, int]]:
    """Draw one task after the other, observe each `lag` draws later, and say in which pass which task came."""
    waiting: list[int] = []
    for draw in range(num):
        (task,) = order.next()
        yield order.state_dict()["pass"], task
        waiting.append(task)
        if len(waiting) > lag:
            task = waiting.pop(0)
            order.observe(policy[(draw * 7 + task) % len(policy)](task))


policies = st.lists(kinds, min_size=1, max_size=12)


@given(orders([{}, {"set_aside_after": None}]), st.lists(st.integers(0, 9), max_size=20))
def test_without_rules_every_pass_holds_each_task_once(order: TaskOrder, sizes: list[int]) -> None:
    num_tasks = num_tasks_of(order)
    tasks = [task for size in sizes for task in order.next(size)]
    passes = [tasks[begin : begin + num_tasks] for begin in range(0, len(tasks), num_tasks)]
    for walked in passes:
        assert len(set(walked)) == len(walked)
    assert all(sorted(walked) == list(range(num_tasks)) for walked in passes[:-1])
    assert order.metrics()["passes"] == pytest.approx(len(tasks) / num_tasks)


@given(orders(), st.lists(st.integers(0, 9), max_size=20))
def test_how_many_are_asked_for_at_once_changes_nothing(order: TaskOrder, sizes: list[int]) -> None:
    state = order.state_dict()
    tasks = [task for size in sizes for task in order.next(size)]
    order.load_state_dict(state)
    assert order.next(sum(sizes)) == tasks


def test_the_order_is_another_one_in_each_pass_environment_and_run() -> None:
    def walked(name: str, seed: int) -> list[tuple[int, ...]]:
        order = TaskOrder(name, 50, seed)
        return [tuple(order.next(50)) for _ in range(10)]

    assert walked("seta", 0) == walked("seta", 0)
    assert len({*walked("seta", 0), *walked("seta", 1), *walked("swe", 0)}) == 30


@given(st.integers(1, 12), st.lists(st.tuples(kinds, st.integers(0, 11)), max_size=30))
def test_without_rules_no_outcome_changes_anything(num_tasks: int, outcomes: list[tuple[Any, int]]) -> None:
    told, untold = (TaskOrder(NAME, num_tasks, 0, TaskRules(set_aside_after=None)) for _ in range(2))
    for kind, task in outcomes:
        told.observe(kind(task % num_tasks))
        assert told.next(2) == untold.next(2)
    assert told.state_dict() == untold.state_dict()


@pytest.mark.parametrize(
    ("options", "num_passes"),
    [
        ({}, 1),
        (POOLS, 3),
        ({**POOLS, "rest_passes": 5}, 5),
        (GATES, 4),
        ({**GATES, "gate_after": 1, "gate_passes": 1}, 2),
        ({**POOLS, **GATES}, 6),
        ({**POOLS, **GATES, "gate_after": 1, "gate_passes": 1}, 4),
    ],
)
@given(st.data())
def test_no_rule_keeps_a_task_away_for_long(options: dict[str, Any], num_passes: int, data: st.DataObject) -> None:
    order = data.draw(orders([{**options, "set_aside_after": 2}]))
    num_tasks = num_tasks_of(order)
    came: dict[int, set[int]] = {}
    for number, task in play(order, data.draw(policies), data.draw(st.integers(0, 2 * num_tasks)), 20 * num_tasks):
        came.setdefault(number, set()).add(task)
    kept = set(range(num_tasks)) - set(order.set_aside)
    for begin in range(max(came) - num_passes):  # the last pass is not whole
        window = set().union(*(came.get(number, set()) for number in range(begin, begin + num_passes)))
        assert kept <= window


@given(orders([{"set_aside_after": 2}, ALL_RULES]), policies, st.integers(0, 12))
def test_no_task_that_was_set_aside_comes_while_there_is_another(order: TaskOrder, policy: Any, lag: int) -> None:
    num_tasks = num_tasks_of(order)
    before: tuple[int, ...] = ()
    for _, task in play(order, policy, lag, 100):
        assert 0 <= task < num_tasks
        assert task not in before or len(before) == num_tasks
        assert set(before) <= set(order.set_aside)
        before = order.set_aside


@given(orders(), policies, st.integers(0, 12), st.integers(0, 60), st.booleans())
def test_a_state_goes_on_as_if_nothing_had_happened(
    order: TaskOrder, policy: Any, lag: int, num: int, has_ids: bool
) -> None:
    num_tasks = num_tasks_of(order)
    ids = [f"{NAME}/train/{place}" for place in range(num_tasks)] if has_ids else None
    fresh = order.state_dict(ids)
    list(play(order, policy, lag, num))
    state = json.loads(json.dumps(order.state_dict(ids), allow_nan=False))
    rest = list(play(order, policy, lag, 40)), order.state_dict(ids), order.metrics(), order.set_aside
    order.load_state_dict(fresh, ids)
    assert order.state_dict(ids) == fresh
    order.load_state_dict(state, ids)
    assert order.state_dict(ids) == state
    assert (list(play(order, policy, lag, 40)), order.state_dict(ids), order.metrics(), order.set_aside) == rest


@given(st.lists(st.tuples(st.sampled_from(LOST), st.integers(0, 5)), max_size=30), st.lists(st.integers(0, 4)))
def test_infrastructure_is_never_difficulty(lost: list[tuple[Any, int]], scored: list[int]) -> None:
    order = TaskOrder(NAME, 6, 0, TaskRules(**POOLS, gate_after=5))
    for num_successes in scored:
        order.observe(group(3, num_successes))
    before = order.state_dict()
    for kind, task in lost:
        order.observe(kind(task))
    after = order.state_dict()
    assert (after["success"], after["gates"]) == (before["success"], before["gates"])


@given(orders(), policies, st.integers(0, 60))
def test_the_metrics_count_what_the_rules_hold_back(order: TaskOrder, policy: Any, num: int) -> None:
    num_tasks = num_tasks_of(order)
    for task in range(num_tasks):
        order.observe(half_solved(task))  # so that the state knows all of them
    list(play(order, policy, 2, num))
    state, metrics = order.state_dict(), order.metrics()
    if "gated" in metrics:
        assert metrics["gated"] == sum(opens > state["pass"] for _, opens in state["gates"].values())
    if "solved" in metrics:
        assert metrics["solved"] == sum(success >= 0.9 - 1e-6 for success in state["success"].values())
        assert metrics["hopeless"] == sum(success <= 0.1 + 1e-6 for success in state["success"].values())
    assert metrics["set_aside"] == len(order.set_aside)
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"passes", "set_aside"}),
        ({"set_aside_after": None}, {"passes"}),
        ({"solved_at": 0.9}, {"passes", "set_aside", "solved"}),
        ({"hopeless_at": 0.1}, {"passes", "set_aside", "hopeless"}),
        ({"gate_after": 1}, {"passes", "set_aside", "gated"}),
    ],
)
def test_the_metrics_are_of_the_rules_that_are_on(options: dict[str, Any], names: set[str]) -> None:
    assert TaskOrder(NAME, 3, 0, TaskRules(**options)).metrics().keys() == names


def passes_of(order: TaskOrder, task: int, judge: Callable[[int, int], Outcome], num_passes: int = 14) -> list[int]:
    """Play whole passes, each group observed at once, and say in which ones a task came."""
    came: list[int] = []
    while True:
        (drawn,) = order.next()
        number = order.state_dict()["pass"]
        if number >= num_passes:
            return came
        came += [number] if drawn == task else []
        order.observe(judge(number, drawn))


def judge_of(task: int, *kinds: Callable[[int], Outcome]) -> Callable[[int, int], Outcome]:
    """Judge one task by these kinds, one for each time it comes, the last one for ever; all others are half solved."""
    left = list(kinds)

    def judge(_: int, drawn: int) -> Outcome:
        if drawn != task:
            return half_solved(drawn)
        return (left.pop(0) if len(left) > 1 else left[0])(task)

    return judge


@pytest.mark.parametrize(
    ("kinds", "passes"),
    [
        ((solved,), [0, 1, 5, 9, 13]),
        ((rest_solved,), [0, 1, 5, 9, 13]),
        ((solved, failed, solved), [0, 1, 2, 6, 10]),
        ((solved, unsolved, solved), [0, 1, 2, 3, 7, 11]),
        ((solved, solved, unsolved, solved), [0, 1, 5, 6, 7, 11]),
        ((half_solved,), list(range(14))),
        ((unsolved,), list(range(14))),
    ],
)
def test_a_task_solved_twice_in_a_row_is_left_out_for_three_passes(kinds: Any, passes: list[int]) -> None:
    order = TaskOrder(NAME, 10, 0, TaskRules(gate_after=2, gate_passes=3))
    assert passes_of(order, 4, judge_of(4, *kinds)) == passes


def test_what_was_drawn_before_a_gate_shut_makes_it_last_no_longer() -> None:
    order = TaskOrder(NAME, 10, 0, TaskRules(gate_after=1, gate_passes=3))

    def judge(number: int, drawn: int) -> Outcome:
        if 0 < number < 4:
            order.observe(solved(4))  # late
        return solved(4) if drawn == 4 and number == 0 else half_solved(drawn)

    assert passes_of(order, 4, judge, 8) == [0, 4, 5, 6, 7]


def test_a_late_failure_to_solve_opens_a_gate_with_the_next_pass() -> None:
    order = TaskOrder(NAME, 10, 0, TaskRules(gate_after=1, gate_passes=8))

    def judge(number: int, drawn: int) -> Outcome:
        if number == 2:
            order.observe(unsolved(4))
        return solved(4) if drawn == 4 and number == 0 else half_solved(drawn)

    assert passes_of(order, 4, judge, 6) == [0, 3, 4, 5]


@pytest.mark.parametrize(
    ("kind", "expected", "is_resting"),
    [
        (solved, None, True),
        (unsolved, None, True),
        (half_solved, None, False),
        (half_solved, 1.0, False),  # 1, then (1 + 0.5) / 2
        (failed, 1.0, True),
        (failed, 0.9, True),
        (failed, 0.1, True),
        (failed, 0.89, False),
        (failed, 0.11, False),
        (failed, None, False),
    ],
)
def test_a_solved_or_hopeless_task_comes_in_one_pass_of_three(
    kind: Callable[[int], Outcome], expected: float | None, is_resting: bool
) -> None:
    rules = TaskRules(solved_at=0.9, hopeless_at=0.1, rest_passes=3, set_aside_after=None)
    order = TaskOrder(NAME, 10, 0, rules, [expected if task == 4 else None for task in range(10)])
    passes = passes_of(order, 4, judge_of(4, kind), 30)[5:]
    assert {later - sooner for sooner, later in pairwise(passes)} == ({3} if is_resting else {1})


@pytest.mark.parametrize("smoothing", [0.1, 0.3, 0.5, 1.0])
def test_success_moves_from_the_expected_one_to_the_observed_one(smoothing: float) -> None:
    order = TaskOrder(NAME, 2, 0, TaskRules(solved_at=1.0, smoothing=smoothing), [0.2, None])
    order.observe(solved(0))
    order.observe(solved(1))
    state = order.state_dict()["success"]
    assert state["0"] == pytest.approx(0.2 * (1 - smoothing) + smoothing)
    assert state["1"] == 1.0
    for _ in range(200):
        order.observe(solved(0))
        order.observe(solved(1))
    assert order.state_dict()["success"]["1"] == 1.0
    assert order.metrics()["solved"] == 2.0


@pytest.mark.parametrize("rest_passes", [2, 3, 4, 7])
def test_resting_tasks_are_spread_over_the_passes(rest_passes: int) -> None:
    rules = TaskRules(hopeless_at=0.05, rest_passes=rest_passes)
    order = TaskOrder(NAME, 200, 0, rules, [0.0] * 100 + [0.5] * 100)
    came: Counter[int] = Counter()
    while (number := order.state_dict()["pass"]) < 2 * rest_passes:
        came[number] += order.next()[0] < 100
    per_pass = [came[number] for number in range(2 * rest_passes)]
    assert all(50 < num * rest_passes < 150 for num in per_pass)


def test_what_is_resting_or_gated_is_taken_where_there_is_nothing_else() -> None:
    order = TaskOrder(NAME, 3, 0, TaskRules(gate_after=1, gate_passes=1000, solved_at=0.9, rest_passes=1000))
    for task in range(3):
        order.observe(solved(task))
    order.next(3)
    assert set(order.next(30)) == {0, 1, 2}


def test_what_is_gated_is_preferred_to_what_is_set_aside() -> None:
    order = TaskOrder(NAME, 3, 0, TaskRules(gate_after=1, gate_passes=1000))
    set_aside(order, 0, 1)
    order.observe(solved(2))
    assert order.next(20) == [2] * 20


def test_one_decision_looks_at_a_bounded_number_of_tasks() -> None:
    order = TaskOrder(NAME, 2000, 0, TaskRules(gate_after=1, gate_passes=5))
    for task in range(2000):
        order.observe(solved(task))
    order.next(2000)
    for _ in range(40):
        before = order.metrics()["passes"]
        order.next()
        assert order.metrics()["passes"] - before <= (MAX_SKIPS + 1) / 2000


def set_aside(order: TaskOrder, *tasks: int) -> None:
    """Have tasks fail while another one is scored."""
    others = set(range(num_tasks_of(order))) - {*tasks}
    for task in tasks:
        for _ in range(10):
            order.observe(failed(task))
            order.observe(half_solved(min(others)))
    assert set(tasks) <= set(order.set_aside)


@pytest.mark.parametrize(
    ("outcomes", "is_set_aside"),
    [
        ([failed(1), half_solved(0), failed(1), half_solved(0), failed(1)], True),
        ([failed(1), unsolved(0), failed(1), rest_failed(2), failed(1)], True),
        ([failed(1), half_solved(0), failed(1), refused(1), half_lost(1), half_solved(0), failed(1)], True),
        ([failed(1)] * 50, False),
        ([failed(1), failed(0), failed(2)] * 50, False),
        ([half_solved(0), *[failed(1)] * 50], False),
        ([failed(1), refused(0), failed(1), half_lost(0), failed(1)], False),
        ([refused(1), half_solved(0)] * 50, False),
        ([half_lost(1), half_solved(0)] * 50, False),
        ([failed(1), half_solved(0), failed(1), half_solved(0), rest_failed(1), failed(1)], False),
        ([failed(1), half_solved(0), failed(1), half_solved(1), failed(1), half_solved(0), failed(1)], False),
        ([Outcome(NAME, 1, 0), half_solved(0)] * 50, False),
    ],
)
def test_a_task_is_set_aside_for_failures_of_its_own_only(outcomes: list[Outcome], is_set_aside: bool) -> None:
    order = TaskOrder(NAME, 3, 0, TaskRules(set_aside_after=3))
    for outcome in outcomes:
        order.observe(outcome)
    assert order.set_aside == ((1,) if is_set_aside else ())
    assert set(order.next(30)) == ({0, 2} if is_set_aside else {0, 1, 2})


@given(st.lists(st.sampled_from((failed, refused, half_lost)), min_size=1), st.integers(1, 8), st.integers(0, 40))
def test_an_outage_of_the_whole_environment_sets_nothing_aside(lost: list[Any], num_tasks: int, num: int) -> None:
    order = TaskOrder(NAME, num_tasks, 0, TaskRules(set_aside_after=2))
    for task in order.next(num):
        order.observe(half_solved(task))
    for draw, task in enumerate(order.next(5 * num_tasks)):
        order.observe(lost[draw % len(lost)](task))
    assert order.set_aside == ()


def test_a_task_that_was_set_aside_stays_so_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    order = TaskOrder(NAME, 4, 0)
    with caplog.at_level(logging.WARNING, "multienv"):
        set_aside(order, 2)
        for outcome in (failed(2), half_solved(0), failed(2), solved(2)):
            order.observe(outcome)
    assert order.set_aside == (2,)
    (message,) = caplog.messages
    assert f"environment {NAME!r}: the task at place 2 " in message


def test_an_environment_whose_tasks_are_all_set_aside_goes_on() -> None:
    order = TaskOrder(NAME, 4, 0, TaskRules(set_aside_after=2))
    set_aside(order, 1, 2, 3)
    for outcome in (failed(0), rest_failed(1), failed(0)):
        order.observe(outcome)
    assert order.set_aside == (0, 1, 2, 3)
    number = order.state_dict()["pass"]
    drawn = order.next(40)
    assert Counter(drawn) == dict.fromkeys(range(4), 10)
    assert order.state_dict()["pass"] == number + 9


def test_figures_follow_their_tasks_to_other_places() -> None:
    order = TaskOrder(NAME, 5, 0, TaskRules(**ALL_RULES))
    for outcome in (solved(1), solved(1), failed(2), half_solved(3), failed(2), failed(4), failed(0)):
        order.observe(outcome)
    state = order.state_dict(list("abcde"))
    assert (state["set_aside"], state["success"], state["gates"]) == (["c"], {"b": 1.0, "d": 0.5}, {"b": [2, 4]})
    assert state["strikes"] == {"e": [1, 3], "a": [1, 3]}
    other = TaskOrder(NAME, 5, 0, TaskRules(**ALL_RULES))
    other.load_state_dict(json.loads(json.dumps(state)), list("xcbay"))
    assert other.set_aside == (1,)
    assert other.state_dict(list("xcbay")) == {
        **state,
        "success": {"b": 1.0},
        "strikes": {"a": [1, 3]},
    }


@pytest.mark.parametrize("num_tasks", [1, 3, 5, 9])
def test_another_number_of_tasks_begins_a_new_pass(num_tasks: int) -> None:
    order = TaskOrder(NAME, 4, 0)
    order.next(6)
    other = TaskOrder(NAME, num_tasks, 0)
    other.load_state_dict(order.state_dict())
    assert other.metrics()["passes"] == 2.0
    assert sorted(other.next(num_tasks)) == list(range(num_tasks))


def test_figures_of_rules_that_are_off_are_dropped_and_gates_get_no_longer_than_declared() -> None:
    order = TaskOrder(NAME, 4, 0, TaskRules(**{**ALL_RULES, "gate_passes": 1000}))
    set_aside(order, 0)
    for _ in range(2):
        order.observe(solved(1))
    off = TaskOrder(NAME, 4, 0, TaskRules(set_aside_after=None))
    off.load_state_dict(order.state_dict())
    assert off.state_dict() == TaskOrder(NAME, 4, 0).state_dict()
    shorter = TaskOrder(NAME, 4, 0, TaskRules(gate_after=1, gate_passes=2))
    shorter.load_state_dict(order.state_dict())
    assert shorter.state_dict()["gates"] == {"1": [1, 3]}


GOOD = {
    "num_tasks": 4,
    "pass": 2,
    "position": 3,
    "num_scored_groups": 7,
    "set_aside": ["0"],
    "strikes": {"1": [1, 5]},
    "success": {"1": 0.5, "2": 1},
    "gates": {"2": [2, 5]},
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"extra": 1}, "extra"),
        ({"num_tasks": "4"}, "num_tasks"),
        ({"pass": -1}, "pass"),
        ({"pass": 2.0}, "pass"),
        ({"pass": True}, "pass"),
        ({"pass": 2**40}, "pass"),
        ({"position": 5}, "position"),
        ({"position": None}, "position"),
        ({"num_scored_groups": []}, "num_scored_groups"),
        ({"set_aside": "0"}, "set_aside"),
        ({"set_aside": [0]}, "set_aside"),
        ({"strikes": []}, "strikes"),
        ({"strikes": {"1": [1]}}, "strikes of '1'"),
        ({"strikes": {"1": [1, "2"]}}, "strikes of '1'"),
        ({"strikes": {"gone": 3}}, "strikes of 'gone'"),
        ({"success": {"1": 1.5}}, "success of '1'"),
        ({"success": {"1": float("nan")}}, "success of '1'"),
        ({"success": {"1": None}}, "success of '1'"),
        ({"success": {"1": True}}, "success of '1'"),
        ({"success": {1: 0.5}}, "success"),
        ({"gates": {"2": [1, 2, 3]}}, "gates of '2'"),
        ({"gates": {"2": [1, -2]}}, "gates of '2'"),
        *(({name: ...}, name) for name in GOOD),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any], named: str) -> None:
    order = TaskOrder(NAME, 4, 0, TaskRules(**ALL_RULES))
    order.load_state_dict(GOOD)
    assert order.state_dict() == GOOD
    bad = {name: value for name, value in {**GOOD, **change}.items() if value is not ...}
    with pytest.raises(CheckpointError, match=f"environment 'seta' does not fit: .*{named}") as caught:
        order.load_state_dict(bad)
    assert caught.value.environment == NAME
    assert order.state_dict() == GOOD


@pytest.mark.parametrize("state", [None, [], "x"])
def test_a_checkpoint_of_another_kind_is_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match="the state is"):
        TaskOrder(NAME, 4, 0).load_state_dict(state)


@pytest.mark.parametrize("name", ["4", "-1", "1.0", "x", "", "²", "99999999999999999999"])
def test_a_place_that_is_none_is_dropped(name: str) -> None:
    order = TaskOrder(NAME, 4, 0, TaskRules(**ALL_RULES))
    order.load_state_dict({**GOOD, "success": {name: 0.5}, "set_aside": [name]})
    assert order.state_dict() == {**GOOD, "success": {}, "set_aside": []}


def test_what_cannot_be_an_order_of_tasks_is_refused() -> None:
    with pytest.raises(EmptyTaskListError, match="environment 'seta' has 0 tasks"):
        TaskOrder(NAME, 0, 0)
    with pytest.raises(SpecError, match="expected is for 2 tasks; accepted: one entry for each of the 3"):
        TaskOrder(NAME, 3, 0, TaskRules(), [0.5, None])
    order = TaskOrder(NAME, 3, 0)
    for ids in (["a"], list("abcd")):
        with pytest.raises(SpecError, match="accepted: one for each of the 3 tasks, or None"):
            order.state_dict(ids)
        with pytest.raises(SpecError, match="accepted: one for each of the 3 tasks, or None"):
            order.load_state_dict(order.state_dict(), ids)
    for task in (-1, 3):
        with pytest.raises(TaskIndexError, match="accepted: 0 to 2"):
            order.observe(half_solved(task))
    with pytest.raises(RoutingError, match="'swe' was reported to the tasks of 'seta'"):
        order.observe(Outcome("swe", 0, 4))


def test_memory_does_not_grow_with_the_number_of_groups() -> None:
    order = TaskOrder(NAME, 10, 0, TaskRules(**{**ALL_RULES, "set_aside_after": 10**6}))
    policy = [*KINDS, solved, solved]
    list(play(order, policy, 5, 200))
    tracemalloc.start()
    try:
        for _ in play(order, policy, 5, 2000):
            pass
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 20_000


@pytest.mark.parametrize(("rules", "num_bytes"), [(TaskRules(), 100_000), (TaskRules(**ALL_RULES), 22_000_000)])
def test_a_million_tasks_fit_in_little_memory(rules: TaskRules, num_bytes: int) -> None:
    tracemalloc.start()
    try:
        order = TaskOrder(NAME, 10**6, 0, rules)
        assert len(set(order.next(100))) == 100
        for task in range(100):
            order.observe(half_solved(task))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < num_bytes
    assert len(order.state_dict()["success"]) == (100 if rules.has_pools else 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solvd_at": 0.9}, "unknown option 'solvd_at' (did you mean 'solved_at'?)"),
        ({"solved_at": 0}, "solved_at=0: input should be greater than 0"),
        ({"solved_at": 1.1}, "solved_at=1.1: input should be less than or equal to 1"),
        ({"solved_at": "0.9"}, "solved_at='0.9': input should be a valid number"),
        ({"hopeless_at": 1}, "hopeless_at=1: input should be less than 1"),
        ({"solved_at": 0.5, "hopeless_at": 0.5}, "hopeless_at=0.5 is not below solved_at=0.5"),
        ({"rest_passes": 1}, "rest_passes=1: input should be greater than or equal to 2"),
        ({"gate_after": 0}, "gate_after=0: input should be greater than or equal to 1"),
        ({"gate_passes": 0}, "gate_passes=0: input should be greater than or equal to 1"),
        ({"set_aside_after": 1}, "set_aside_after=1: input should be greater than or equal to 2"),
        ({"smoothing": 0}, "smoothing=0: input should be greater than 0"),
        ({"smoothing": float("nan")}, "smoothing=nan: input should be a finite number"),
        ({"expected_success": ""}, "expected_success is empty"),
        ({"expected_success": "level", "expected_by_label": {"easy": 9}}, "expected_by_label.easy=9: input should be"),
        ({"expected_by_label": {"easy": 0.9}}, "expected_by_label is never looked at without expected_success"),
    ],
)
def test_rules_that_cannot_be_right_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        TaskRules(**options)
    assert str(caught.value).startswith("TaskRules: ")
    assert message in str(caught.value)


LABELS = TaskRules(expected_success="level", expected_by_label={"easy": 0.9, "hard": 0.05, "3": 0.2})


@pytest.mark.parametrize(
    ("rules", "task_spec", "expected"),
    [
        (TaskRules(), {"level": 0.5}, None),
        (TaskRules(expected_success="rate"), {"rate": 0.25}, 0.25),
        (TaskRules(expected_success="rate"), {"rate": 0}, 0.0),
        (TaskRules(expected_success="rate"), {"rate": 1}, 1.0),
        (TaskRules(expected_success="rate"), {"rate": "0.25"}, None),
        (TaskRules(expected_success="rate"), {"rate": True}, None),
        (TaskRules(expected_success="rate"), {"rate": None}, None),
        (TaskRules(expected_success="rate"), {"rate": [0.5]}, None),
        (TaskRules(expected_success="rate"), {}, None),
        (TaskRules(expected_success="rate"), ["rate"], None),
        (TaskRules(expected_success="rate"), None, None),
        (LABELS, {"level": "easy"}, 0.9),
        (LABELS, {"level": "medium"}, None),
        (LABELS, {"level": 3}, 0.2),
        (LABELS, {"level": 4}, None),
        (LABELS, {"level": 0.5}, 0.5),
    ],
)
def test_a_task_spec_says_how_likely_a_success_is(rules: TaskRules, task_spec: Any, expected: float | None) -> None:
    assert rules.expected(task_spec) == expected


@pytest.mark.parametrize("value", [85, -0.1, float("nan"), float("inf")])
def test_a_number_that_is_no_likelihood_is_refused(value: float) -> None:
    with pytest.raises(SpecError, match="expected_success='rate': a task spec says .*; accepted: a number from 0 to 1"):
        TaskRules(expected_success="rate").expected({"rate": value})
