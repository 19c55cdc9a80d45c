"""What each rule does to the task it is about, and which rules can be declared."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.tasks import MAX_SKIPS, TaskOrder
from multienv.errors import SpecError
from multienv.specs.task_rules import TaskRules
from tests.support.groups import (
    NAME,
    failed,
    half_lost,
    half_solved,
    refused,
    rest_failed,
    rest_solved,
    set_aside,
    solved,
    unsolved,
)


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


@pytest.mark.parametrize("seed", range(5))
def test_solved_then_not_solved_within_a_pass_shuts_nothing(seed: int) -> None:
    order = TaskOrder(NAME, 10, seed, TaskRules(gate_after=1, gate_passes=8))
    begun = order.next(3)
    for task in range(10):
        order.observe(solved(task))
        order.observe(unsolved(task))
    assert order.metrics()["gated"] == 0.0
    assert sorted(begun + order.next(7)) == list(range(10))


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
    assert f"environment {NAME!r}: task 2, counted from 0, " in message


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
