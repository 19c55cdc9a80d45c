"""What becomes of the groups of one environment's tasks, and orders of tasks to tell it to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.tasks import TaskOrder
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


def set_aside(order: TaskOrder, *tasks: int) -> None:
    """Have tasks fail while another one is scored."""
    others = set(range(num_tasks_of(order))) - {*tasks}
    for task in tasks:
        for _ in range(10):
            order.observe(failed(task))
            order.observe(half_solved(min(others)))
    assert set(tasks) <= set(order.set_aside)
