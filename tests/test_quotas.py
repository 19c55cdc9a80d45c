"""Whole numbers of groups, by their laws."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum import Quotas
from multienv.curriculum.quotas import WHOLE, capped, parts
from multienv.curriculum.repeats import repeated_tasks
from multienv.curriculum.shares import base_weights, normalised
from multienv.errors import CheckpointError, SessionLimitError, SpecError
from multienv.specs import CurriculumSpec
from tests.strategies import extreme_weights, shares

groups = st.integers(1, 64)
caps_of = st.dictionaries(st.integers(0, 39).map("e{}".format), st.integers(1, 8))


def after(weights: dict[str, float], num_groups: int, num_batches: int) -> Counter[str]:
    quotas, got = Quotas(), Counter[str]()
    for _ in range(num_batches):
        got.update(quotas.take(weights, num_groups))
    return got


@given(shares(), groups, st.integers(1, 60))
def test_every_environment_is_within_a_group_of_its_share_after_any_number_of_batches(
    weights: dict[str, float], num_groups: int, num_batches: int
) -> None:
    quotas, got, share = Quotas(), Counter[str](), normalised(weights)
    for batch in range(1, num_batches + 1):
        quota = quotas.take(weights, num_groups)
        assert sum(quota.values()) == num_groups
        got.update(quota)
        for name in weights:
            assert abs(got[name] - batch * num_groups * share[name]) < 1 + 1e-6
        assert all(abs(credit) < WHOLE for credit in quotas.state_dict().values()), "exactly, in parts of a group"


@given(shares(weights=extreme_weights), groups, st.integers(1, 20))
def test_weights_of_any_size_are_followed_within_a_group(
    weights: dict[str, float], num_groups: int, num_batches: int
) -> None:
    whole = sum(map(Fraction, weights.values()))
    got = after(weights, num_groups, num_batches)
    assert got.total() == num_groups * num_batches
    for name, weight in weights.items():
        assert abs(got[name] - num_batches * num_groups * Fraction(weight) / whole) < 1 + 1e-6


@pytest.mark.parametrize("num_groups", [1, 3, 8, 64])
def test_three_hundred_environments_of_very_unequal_weight_all_stay_within_a_group(num_groups: int) -> None:
    weights = {f"e{place}": (0.001, 0.01, 1.0, 50.0)[place % 4] * (1 + place / 300) for place in range(300)}
    quotas, got, share = Quotas(), Counter[str](), normalised(weights)
    for batch in range(1, 300):
        got.update(quotas.take(weights, num_groups))
        assert all(abs(got[name] - batch * num_groups * share[name]) < 1 + 1e-6 for name in weights)


@given(st.floats(0.001, 0.1), groups)
def test_a_tiny_weight_is_not_starved(tiny: float, num_groups: int) -> None:
    weights = {"big": 1.0, "tiny": tiny, "other": 0.5}
    share = normalised(weights)["tiny"]
    quotas, wait = Quotas(), 0
    for _ in range(math.ceil(6 / (share * num_groups))):
        wait = 0 if quotas.take(weights, num_groups).get("tiny") else wait + 1
        assert wait * num_groups * share < 2, "its share of two groups is never passed without one"


@given(shares(), groups, st.integers(-900, 900), st.randoms(use_true_random=False))
def test_neither_the_unit_nor_the_order_of_the_weights_matters(
    weights: dict[str, float], num_groups: int, exponent: int, chance: Any
) -> None:
    names = list(weights)
    chance.shuffle(names)
    scaled = {name: math.ldexp(weights[name], exponent) for name in names}
    one, other = Quotas(), Quotas()
    for _ in range(12):
        assert one.take(weights, num_groups) == other.take(scaled, num_groups)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), groups, st.floats(1e-6, 1e6))
def test_no_factor_matters_to_weights_that_are_ratios(whole: list[int], num_groups: int, factor: float) -> None:
    weights = {f"e{place}": float(weight) for place, weight in enumerate(whole)}
    one, other = Quotas(), Quotas()
    for _ in range(12):
        scaled = {name: weight * factor for name, weight in weights.items()}
        assert one.take(weights, num_groups) == other.take(scaled, num_groups)


changing = st.lists(
    st.dictionaries(st.integers(0, 8).map("e{}".format), st.just(0.0) | extreme_weights, min_size=1).filter(
        lambda drawn: any(drawn.values())
    ),
    min_size=1,
    max_size=30,
)


@given(changing, st.lists(groups, min_size=1, max_size=4))
def test_shares_may_change_in_any_way(history: list[dict[str, float]], sizes: list[int]) -> None:
    quotas = Quotas()
    for place, weights in enumerate(history):
        num_groups = sizes[place % len(sizes)]
        quota = quotas.take(weights, num_groups)
        assert sum(quota.values()) == num_groups
        assert all(num > 0 and weights[name] > 0 for name, num in quota.items())
        assert sum(quotas.state_dict().values()) == 0, "what one is owed, others have had"


@given(changing, groups, caps_of)
def test_no_environment_is_ever_above_its_cap(
    history: list[dict[str, float]], num_groups: int, caps: dict[str, int]
) -> None:
    quotas = Quotas()
    for weights in history:
        wanted = [name for name, weight in weights.items() if weight]
        most = [caps.get(name, num_groups) for name in wanted]
        if sum(min(cap, num_groups) for cap in most) < num_groups:
            with pytest.raises(SessionLimitError, match="raise limits.max_sessions, or make the batch smaller"):
                quotas.take(weights, num_groups, caps)
            continue
        quota = quotas.take(weights, num_groups, caps)
        assert sum(quota.values()) == num_groups
        assert all(num <= caps.get(name, num_groups) for name, num in quota.items())


@given(changing, changing, groups)
def test_quotas_go_on_from_their_state_as_if_they_had_not_stopped(
    before: list[dict[str, float]], behind: list[dict[str, float]], num_groups: int
) -> None:
    one, other = Quotas(), Quotas()
    for weights in before:
        one.take(weights, num_groups)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [one.take(weights, num_groups) for weights in behind] == [
        other.take(weights, num_groups) for weights in behind
    ]


@pytest.mark.parametrize("state", [None, [], {"a": 1.0}, {"a": True}, {"a": None}, "a", {1: 1}, {"a": 10**30}])
def test_what_is_no_state_of_quotas_is_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match="is not the state of quotas; accepted: what state_dict"):
        Quotas().load_state_dict(state)


def test_a_mapping_that_is_changed_in_place_is_read_anew() -> None:
    quotas, weights = Quotas(), {"a": 1.0, "b": 1.0}
    quotas.take(weights, 2)
    weights["b"] = 0.0
    assert quotas.take(weights, 2) == {"a": 2}


@given(shares(weights=extreme_weights))
def test_parts_make_a_whole_and_are_rounded_by_less_than_one_but_for_the_largest(weights: dict[str, float]) -> None:
    cut, whole = parts(weights), sum(map(Fraction, weights.values()))
    assert cut.keys() == weights.keys()
    assert sum(cut.values()) == WHOLE
    assert min(cut.values()) >= 1
    for name, weight in weights.items():
        exact = WHOLE * Fraction(weight) / whole
        most = len(cut) if weight == max(weights.values()) else 1
        assert abs(cut[name] - exact) < most + 0.1, "the largest has what rounding the others leaves"


@given(shares(weights=extreme_weights))
def test_normalised_weights_make_a_whole_and_none_of_them_vanishes(weights: dict[str, float]) -> None:
    made = normalised(weights)
    assert math.isclose(math.fsum(made.values()), 1.0, rel_tol=1e-12)
    assert all(made.values())


@pytest.mark.parametrize("weights", [{}, {"a": 0.0, "b": 0.0}])
def test_weights_that_are_all_zero_are_refused(weights: dict[str, float]) -> None:
    for each in (normalised, parts, lambda weights: capped(weights, 8, {"a": 1})):
        with pytest.raises(SpecError, match="all sampling weights are 0"):
            each(weights)


@given(shares(max_size=12), groups, caps_of)
def test_what_a_cap_cuts_off_goes_to_the_others_in_proportion(
    weights: dict[str, float], num_groups: int, caps: dict[str, int]
) -> None:
    made = capped(weights, num_groups, caps)
    limits = {name: caps.get(name, num_groups) / num_groups for name in weights}
    assert all(0 <= made[name] <= limits[name] + 1e-12 for name in weights)
    if sum(min(1.0, limit) for limit in limits.values()) < 1:
        assert made == limits
        return
    assert math.isclose(math.fsum(made.values()), 1.0, rel_tol=1e-9)
    free = [name for name in weights if made[name] < limits[name] - 1e-9]
    for one in free:
        for name, weight in weights.items():
            assert made[name] / weight <= made[one] / weights[one] * (1 + 1e-6), "all others are at their caps"


@given(shares(max_size=12), groups)
def test_without_caps_shares_are_left_as_they_are(weights: dict[str, float], num_groups: int) -> None:
    assert capped(weights, num_groups, {}) == pytest.approx(normalised(weights))


def test_the_mixtures_weigh_environments_by_what_they_say() -> None:
    given_weights, tasks = {"a": 3.0, "b": 1.0}, {"a": 1, "b": 100}
    assert base_weights(CurriculumSpec(), given_weights, tasks) == given_weights
    assert base_weights(CurriculumSpec(mixture="uniform"), given_weights, tasks) == {"a": 1.0, "b": 1.0}
    assert base_weights(CurriculumSpec(mixture="proportional"), given_weights, tasks) == {"a": 1.0, "b": 100.0}
    for alpha, expected in ((0.0, 1.0), (0.5, 10.0), (1.0, 100.0)):
        assert base_weights(CurriculumSpec(mixture="temperature", alpha=alpha), given_weights, tasks)["b"] == expected


@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0])), min_size=1, max_size=6))
def test_repeated_rows_have_every_task_and_the_share_of_every_environment(drawn: list[tuple[int, float]]) -> None:
    num_tasks = {f"e{place}": num for place, (num, _) in enumerate(drawn)}
    weights = {f"e{place}": weight for place, (_, weight) in enumerate(drawn)}
    share, rows = normalised(weights), Counter[str]()
    picks = repeated_tasks(num_tasks, weights)
    for length, pick in enumerate(picks, start=1):
        rows[pick.environment] += 1
        assert all(abs(rows[name] - share[name] * length) < 1 + 1e-6 for name in num_tasks)
    for name, num in num_tasks.items():
        counts = Counter(pick.task for pick in picks if pick.environment == name)
        assert counts.keys() == set(range(num)), "every task at least once"
        assert max(counts.values()) - min(counts.values()) <= 1


@given(st.integers(1, 50), st.integers(1, 50))
def test_no_more_rows_are_repeated_than_the_shares_need(one: int, other: int) -> None:
    picks = repeated_tasks({"a": one, "b": other}, {"a": 1.0, "b": 1.0})
    assert 2 * max(one, other) <= len(picks) + 1 <= 2 * max(one, other) + 2


@pytest.mark.parametrize("weight", [1e-7, 1e-300, 5e-324])
def test_a_share_that_would_take_millions_of_rows_is_refused(weight: float) -> None:
    with pytest.raises(SpecError) as raised:
        repeated_tasks({"a": 10, "b": 10}, {"a": weight, "b": 1.0})
    assert "to give 'a' with its 10 tasks a share of" in str(raised.value)
    assert "accepted: up to 5,000,000. Give it fewer tasks or a larger sampling_weight" in str(raised.value)
    assert raised.value.environment == "a"
    assert len(str(raised.value)) < 400
