"""Which task of an environment comes next, by its laws."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.tasks import TaskOrder
from multienv.errors import EmptyTaskListError, RoutingError, SpecError, TaskIndexError
from multienv.specs.task_rules import TaskRules
from tests.support.groups import (
    ALL_RULES,
    GATES,
    KINDS,
    LOST,
    NAME,
    POOLS,
    group,
    half_solved,
    kinds,
    num_tasks_of,
    orders,
    play,
    policies,
    solved,
)


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
        now = order.set_aside  # as it was when the task was drawn: its group is observed later
        assert task not in now or len(now) == num_tasks
        assert set(before) <= set(now)
        before = now


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
