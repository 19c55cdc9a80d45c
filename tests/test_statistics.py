"""The statistics of an evaluation: laws, and values worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.evaluation.statistics import corrected, estimate, estimate_of_means, paired_p_value, pass_at_k, quantile

shares = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=12)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_success(num_attempts: int, data: st.DataObject) -> None:
    num_successes = data.draw(st.integers(0, num_attempts))
    k = data.draw(st.integers(1, num_attempts))
    outcomes = [True] * num_successes + [False] * (num_attempts - num_successes)
    choices = list(itertools.combinations(outcomes, k))
    assert pass_at_k(num_attempts, num_successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="k=3 is more than the 2 attempts"):
        pass_at_k(2, 1, 3)


@given(shares)
def test_an_estimate_lies_in_its_interval_and_the_interval_among_the_values(values: list[float]) -> None:
    found = estimate(values)
    assert found.value == pytest.approx(math.fsum(values) / len(values))
    assert 0.0 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 1.0
    assert found.num_tasks == len(values)


def test_all_solved_is_no_certainty() -> None:
    assert estimate([1.0] * 10).low == pytest.approx(0.722, abs=0.001)  # Wilson, 10 of 10


def test_tasks_that_are_all_alike_are_no_certainty() -> None:
    half = estimate([0.5] * 10)
    assert half.low < 0.3
    assert half.high > 0.7
    assert math.isnan(estimate([0.0, 0.0, 0.0], is_share=False).low)


def test_one_task_says_nothing_of_others() -> None:
    assert math.isnan(estimate([0.5]).low)


@given(shares)
def test_more_tasks_of_the_same_kind_make_it_surer(values: list[float]) -> None:
    few, many = estimate(values), estimate(values * 16)
    assert many.high - many.low <= few.high - few.low + 1e-9


def test_the_mean_of_environments_counts_each_the_same() -> None:
    assert estimate_of_means([[1.0] * 100, [0.0, 0.0]]).value == pytest.approx(0.5)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), max_size=10))
def test_a_paired_test_is_the_count_of_sign_changes(differences: list[float]) -> None:
    changed = [each for each in differences if each]
    observed = abs(math.fsum(changed))
    sums = [abs(math.fsum(s * d for s, d in zip(signs, changed, strict=True))) for signs in _signs(len(changed))]
    exact = sum(each >= observed - 1e-9 for each in sums) / len(sums)
    assert paired_p_value(differences) == pytest.approx(exact if changed else 1.0)
    assert paired_p_value(differences) == pytest.approx(paired_p_value([-each for each in differences]))


def _signs(number: int) -> list[tuple[int, ...]]:
    return list(itertools.product((-1, 1), repeat=number))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrected_p_values_keep_their_order_and_do_not_shrink(p_values: list[float]) -> None:
    found = corrected(p_values)
    assert all(before <= after <= 1.0 for before, after in zip(p_values, found, strict=True))
    for (a, fa), (b, fb) in itertools.combinations(zip(p_values, found, strict=True), 2):
        assert (a - b) * (fa - fb) >= 0


@given(st.lists(st.floats(-9, 9), min_size=1), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_one_of_the_values_and_has_its_share_below(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
