"""An order of tasks goes on from its checkpoint, and refuses another's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum.tasks import TaskOrder
from multienv.errors import CheckpointError
from multienv.specs.task_rules import TaskRules
from tests.support.groups import (
    ALL_RULES,
    NAME,
    failed,
    half_solved,
    num_tasks_of,
    orders,
    play,
    policies,
    set_aside,
    solved,
)


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
