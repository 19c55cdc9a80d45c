"""The arithmetic of weights, balance and scale, by its laws."""

from __future__ import annotations

import doctest
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multienv.errors import SpecError
from multienv.rewards import (
    Balance,
    Row,
    RunningScale,
    Weighing,
    add_up,
    carries_signal,
    check_applied_once,
    effective_shares,
    loss_weights,
    row_factors,
    scale,
    shares,
    tally,
    weights,
)
from multienv.rewards.shares import LOSS_TYPES, balance_factors

NAMES = ("a", "b", "c")

names = st.sampled_from(NAMES)
advantages = st.floats(-100, 100).filter(lambda value: value == 0 or abs(value) > 1e-6)
loss_types = st.sampled_from(LOSS_TYPES)
balances: st.SearchStrategy[Balance] = st.sampled_from(("none", "rollouts", "tokens"))
weighings = st.fixed_dictionaries({name: st.floats(-10, 10) for name in NAMES})


@st.composite
def batches(draw: st.DrawFn, loss_type: str | None = None) -> list[Row]:
    """The rows of one micro-batch."""
    drawn = draw(st.lists(st.tuples(names, advantages, st.integers(0, 300), st.booleans()), max_size=12))
    counted = loss_weights([length for _, _, length, _ in drawn], loss_type or draw(loss_types))
    return [
        Row(name, advantage if scored else 0.0, length, weight, is_scored=scored, has_signal=scored)
        for (name, advantage, length, scored), weight in zip(drawn, counted, strict=True)
    ]


def close(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(math.isclose(one[name], other[name], rel_tol=1e-9) for name in one)


@given(batches(), weighings, balances)
def test_twice_the_weight_is_twice_the_factor_and_nobody_elses(
    rows: list[Row], own: dict[str, float], balance: Balance
) -> None:
    once = Weighing(own, balance).factors(tally(rows))
    twice = Weighing(own | {"a": 2 * own["a"]}, balance).factors(tally(rows))
    assert close(twice, once | {"a": 2 * once["a"]})


@given(st.data(), weighings, balances)
def test_the_order_of_a_batch_and_how_ranks_share_it_change_no_factor(
    data: st.DataObject, own: dict[str, float], balance: Balance
) -> None:
    rows = data.draw(batches())
    shuffled = data.draw(st.permutations(rows))
    half = len(rows) // 2
    whole = Weighing(own, balance, RunningScale()).factors(tally(rows))
    assert close(Weighing(own, balance, RunningScale()).factors(tally(shuffled)), whole)
    ranks = [tally(shuffled[:half]), tally(shuffled[half:])]
    assert close(Weighing(own, balance, RunningScale()).factors(add_up(ranks)), whole)


@given(batches(), weighings, balances)
def test_unscored_rollouts_and_those_without_a_token_change_no_factor(
    rows: list[Row], own: dict[str, float], balance: Balance
) -> None:
    kept = [row for row in rows if row.is_scored and row.num_tokens]
    made = [Weighing(own, balance, RunningScale()).factors(tally(some)) for some in (rows, kept)]
    assert close(*made)
    factors = row_factors([row.environment for row in rows], made[0])
    assert all(row.advantage * factor == 0 for row, factor in zip(rows, factors, strict=True) if not row.is_scored)


@given(st.lists(names | st.none() | st.just("another")), weighings)
def test_a_row_of_another_making_keeps_its_advantage(owners: list[str | None], own: dict[str, float]) -> None:
    factors = row_factors(owners, own)
    assert factors == [1.0 if owner in (None, "another") else own[owner] for owner in owners]


@given(batches(), st.sampled_from(["rollouts", "tokens"]))
def test_balance_gives_the_shares_asked_for_and_leaves_the_loss_as_large_as_it_was(
    rows: list[Row], balance: Balance
) -> None:
    factors = balance_factors(tally(rows), balance)
    counted = [row for row in rows if row.is_scored and row.num_tokens]
    whole = sum(row.loss_weight for row in counted)
    for name in {row.environment for row in counted}:
        own = [row for row in counted if row.environment == name]
        share = sum(row.loss_weight * factors[name] for row in own) / whole
        asked = (
            len(own) / len(counted)
            if balance == "rollouts"
            else sum(row.num_tokens for row in own) / sum(row.num_tokens for row in counted)
        )
        assert math.isclose(share, asked, rel_tol=1e-9)
    assert math.isclose(sum(row.loss_weight * factors[row.environment] for row in counted), whole, rel_tol=1e-9)


@pytest.mark.parametrize(("loss_type", "balance"), [("dapo", "tokens"), ("dr_grpo", "tokens"), ("grpo", "rollouts")])
@given(data=st.data())
def test_a_balance_that_the_loss_strikes_by_itself_changes_nothing(
    data: st.DataObject, loss_type: str, balance: Balance
) -> None:
    factors = balance_factors(tally(data.draw(batches(loss_type))), balance)
    assert all(math.isclose(factor, 1.0, rel_tol=1e-9) for factor in factors.values())


@given(st.lists(batches("grpo"), max_size=6), st.floats(0, 0.99))
def test_the_running_scale_is_that_of_the_reference(history: list[list[Row]], decay: float) -> None:
    running = RunningScale(decay)
    for rows in history:
        running.update(tally(rows))
    for name in NAMES:
        squares = [
            [row.advantage**2 for row in rows if row.environment == name and row.is_scored and row.num_tokens]
            for rows in history
        ]
        means = torch.tensor([sum(batch) / len(batch) for batch in squares if batch], dtype=torch.float64)
        ages = torch.arange(len(means) - 1, -1, -1, dtype=torch.float64)
        each = torch.tensor(decay, dtype=torch.float64) ** ages
        expected = 1 / (((each * means).sum() / each.sum()).sqrt() + 1e-8) if len(means) else torch.tensor(1.0)
        assert math.isclose(running.factor(name), expected.item(), rel_tol=1e-9)


@given(batches("grpo"), st.floats(0.01, 100))
def test_a_normalised_advantage_does_not_depend_on_the_size_of_the_rewards(rows: list[Row], size: float) -> None:
    larger = [Row(r.environment, size * r.advantage, r.num_tokens, r.loss_weight, r.is_scored) for r in rows]
    same = [Row(r.environment, r.advantage, r.num_tokens, r.loss_weight, r.is_scored) for r in rows]
    own = dict.fromkeys(NAMES, 1.0)
    one, other = (Weighing(own, scale=RunningScale()).factors(tally(some)) for some in (same, larger))
    for small, large in zip(same, larger, strict=True):
        its = small.environment
        if any(row.environment == its and row.is_scored and row.num_tokens and row.advantage for row in same):
            expected = small.advantage * one[its]
            assert math.isclose(large.advantage * other[its], expected, rel_tol=0.02, abs_tol=1e-9)


@given(st.lists(batches(), max_size=4), batches())
def test_a_scale_goes_on_from_its_state_as_if_it_had_not_stopped(history: list[list[Row]], rows: list[Row]) -> None:
    one, other = RunningScale(), RunningScale()
    for before in history:
        one.update(tally(before))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for each in (one, other):
        each.update(tally(rows))
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"decay": 0.9, "sums": [1], "weights": {}},
        {"decay": 0.5, "sums": {}, "weights": {}},
        {"decay": 0.9, "sums": {"a": 1.0}, "weights": {}},
        {"decay": 0.9, "sums": {"a": float("nan")}, "weights": {"a": 1.0}},
        {"decay": 0.9, "sums": {"a": 1.0}, "weights": {"a": 0.0}},
    ],
)
def test_a_state_that_is_none_of_a_scales_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"running scale"):
        RunningScale().load_state_dict(state)


def test_a_decay_that_never_forgets_is_refused() -> None:
    with pytest.raises(SpecError, match=r"decay=1; accepted"):
        RunningScale(decay=1)


def test_column_weights_that_are_not_the_mixtures_are_let_through() -> None:
    check_applied_once([1.0, 1.0], [1.0, 1.0])
    check_applied_once(None, [2.0, 1.0])
    check_applied_once([1.0, 3.0], [2.0, 1.0])
    with pytest.raises(SpecError, match=r"would count twice"):
        check_applied_once([2.0, 1.0, 1.0], [2.0, 1.0])


def test_a_group_whose_rewards_are_all_alike_says_nothing_about_the_scale() -> None:
    assert carries_signal([0.1, 0.1, 0.1, 0.0, 0.1, None, None, None, 1.0], 3) == [False] * 3 + [True] * 2 + [False] * 4
    running = RunningScale()
    running.update(tally([Row("a", 6e-4, 10, 10.0, has_signal=False)]))
    assert running.factor("a") == 1.0, "rounding is not blown up to a signal"


def test_nominal_shares_are_those_that_were_measured() -> None:
    nominal: dict[str, Any] = {"num_rollouts": {"a": 8, "b": 8}, "lengths": {"a": 7, "b": 131}}
    even = {"a": 1.0, "b": 1.0}
    for loss_type, expected in (("dapo", 0.051), ("bnpo", 0.051), ("dr_grpo", 0.051), ("grpo", 0.5)):
        assert effective_shares(even, **nominal, loss_type=loss_type)["a"] == pytest.approx(expected, abs=5e-4)
    assert effective_shares({"a": -3.0, "b": 1.0}, **nominal, loss_type="grpo")["a"] == 0.75
    assert effective_shares({"a": 3.0, "b": 1.0}, **nominal, loss_type="dapo", balance="rollouts")["a"] == 0.75
    assert effective_shares({"a": 0.0, "b": 0.0}, **nominal, loss_type="dapo") == {"a": 0.0, "b": 0.0}
    with pytest.raises(SpecError, match=r"num_rollouts a, b"):
        effective_shares({"a": 1.0}, **nominal, loss_type="dapo")
    with pytest.raises(SpecError, match=r"loss_type='newer' adds up rollouts in a way not known here"):
        effective_shares(even, **nominal, loss_type="newer")


@pytest.mark.parametrize("module", [shares, scale, weights])
def test_the_examples_of_the_arithmetic_hold(module: Any) -> None:
    tried = doctest.testmod(module)
    assert tried.failed == 0
    assert tried.attempted or module is scale
