"""A mixture that follows the advantages, by its laws."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from multienv.curriculum import Outcome
from multienv.curriculum.adaptive import Bandit
from multienv.curriculum.shares import normalised
from multienv.errors import CheckpointError
from multienv.specs import Adaptive
from tests.strategies import adaptives, extreme_weights

NAMES = ["e0", "e1", "e2", "e3"]


def scored(name: str, size: float = 1.0, num_nonzero: int = 4) -> Outcome:
    return Outcome(
        name, 0, num_rollouts=4, num_finished=4, num_scored=4, num_nonzero=num_nonzero, sum_abs_advantage=4 * size
    )


advantages = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 8)
observed = st.lists(
    st.builds(
        Outcome,
        st.sampled_from(NAMES),
        st.just(0),
        num_rollouts=st.just(4),
        num_scored=st.integers(0, 4),
        num_nonzero=st.integers(0, 4),
        sum_abs_advantage=advantages,
    ),
    max_size=4,
)
priors = (
    st.dictionaries(st.sampled_from(NAMES), st.just(0.0) | extreme_weights, min_size=1)
    .filter(lambda drawn: any(drawn.values()))
    .map(normalised)
)


@given(adaptives, st.lists(st.tuples(observed, priors), min_size=1, max_size=5))
def test_shares_make_a_whole_and_keep_the_floor_whatever_is_observed(
    spec: Adaptive, history: list[tuple[list[Outcome], dict[str, float]]]
) -> None:
    bandit = Bandit(spec)
    for outcomes, asked in history:
        bandit.observe(outcomes)
        shares = bandit.shares(asked)
        assert shares.keys() == asked.keys()
        assert math.isclose(math.fsum(shares.values()), 1.0, rel_tol=1e-9)
        for name, share in shares.items():
            assert share >= spec.floor * asked[name] * (1 - 1e-9)
            assert (share > 0) is (asked[name] > 0)
        made = bandit.compensated(shares)
        assert all(share <= made[name] <= share * spec.max_compensation * (1 + 1e-9) for name, share in shares.items())


@given(adaptives, priors, st.lists(observed, min_size=1, max_size=8))
def test_with_constant_priors_no_share_moves_faster_than_it_may(
    spec: Adaptive, asked: dict[str, float], history: list[list[Outcome]]
) -> None:
    bandit, before = Bandit(spec), asked
    for outcomes in history:
        bandit.observe(outcomes)
        shares = bandit.shares(asked)
        assert all(abs(shares[name] - before[name]) <= spec.max_change + 1e-9 for name in asked)
        before = shares


unscored = st.lists(
    st.builds(
        Outcome,
        st.sampled_from(NAMES),
        st.just(0),
        num_rollouts=st.just(4),
        num_failed=st.integers(0, 4),
        num_refused=st.integers(0, 4),
        sum_abs_advantage=advantages,
    ),
    max_size=4,
)


@given(adaptives, observed, unscored)
def test_groups_of_which_nothing_was_scored_move_nothing(
    spec: Adaptive, outcomes: list[Outcome], more: list[Outcome]
) -> None:
    one, other = Bandit(spec), Bandit(spec)
    one.observe(outcomes)
    other.observe(outcomes)
    other.observe(more)
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize("size", [math.nan, math.inf, -math.inf, -1.0, 1e308])
def test_an_advantage_that_is_none_moves_nothing(size: float) -> None:
    bandit = Bandit(Adaptive())
    bandit.observe([scored("e0"), scored("e1", 2.0)])
    before = bandit.state_dict()
    bandit.observe([scored("e0", size), scored("e1", size)])
    assert bandit.state_dict() == before


@given(adaptives, priors, st.floats(0, 10), st.integers(1, 10))
def test_with_equal_scores_shares_are_the_priors(
    spec: Adaptive, asked: dict[str, float], size: float, num_batches: int
) -> None:
    bandit = Bandit(spec)
    for _ in range(num_batches):
        bandit.observe([scored(name, size) for name in asked])
        assert bandit.shares(asked) == pytest.approx(asked, rel=1e-6, abs=1e-9)


def test_more_is_asked_of_what_has_the_larger_advantages_and_as_before_once_they_are_alike_again() -> None:
    bandit, asked = Bandit(Adaptive(max_change=0.1)), {"e0": 0.5, "e1": 0.5}
    for _ in range(30):
        bandit.observe([scored("e0", 0.9), scored("e1", 0.1)])
        shares = bandit.shares(asked)
    assert shares["e0"] > 0.8
    for _ in range(60):
        bandit.observe([scored("e0", 0.5), scored("e1", 0.5)])
        shares = bandit.shares(asked)
    assert shares == pytest.approx(asked, abs=1e-3)


def test_a_new_environment_counts_as_the_mean_of_the_others_in_the_mixture() -> None:
    bandit = Bandit(Adaptive(max_change=1))
    bandit.observe([scored("e0", 0.4), scored("e1", 0.4), scored("gone", 8.0)])
    asked = {"e0": 0.25, "e1": 0.25, "new": 0.5, "gone": 0.0}
    assert bandit.shares(asked) == pytest.approx(asked)


@given(adaptives, observed, priors)
def test_what_reaches_the_gradient_is_what_was_asked_for(
    spec: Adaptive, outcomes: list[Outcome], asked: dict[str, float]
) -> None:
    bandit = Bandit(spec)
    bandit.observe(outcomes)
    signals = {name: figures["signal"] for name, figures in bandit.metrics().items()}
    made = bandit.compensated(asked)
    known = [signals[name] for name, share in asked.items() if share and name in signals]
    for name, share in asked.items():
        signal = signals.get(name, math.fsum(known) / len(known) if known else 1.0)
        assert 0 <= signal <= 1
        if signal * spec.max_compensation >= 1:
            assert made[name] * signal == pytest.approx(share)
        else:
            assert made[name] == pytest.approx(share * spec.max_compensation)


def test_without_compensation_shares_are_dispatched_as_they_are() -> None:
    bandit = Bandit(Adaptive(max_compensation=1))
    bandit.observe([scored("e0", 0.0, num_nonzero=0)])
    assert bandit.compensated({"e0": 0.5, "e1": 0.5}) == {"e0": 0.5, "e1": 0.5}


def test_an_environment_that_a_stage_begins_with_does_not_stand_behind_those_that_are_compensated() -> None:
    bandit = Bandit(Adaptive())
    bandit.observe([scored("e0"), *[scored("e0", 0.0, num_nonzero=0)] * 4])
    assert normalised(bandit.compensated({"e0": 0.75, "new": 0.25})) == pytest.approx({"e0": 0.75, "new": 0.25})


def test_the_figures_are_running_means_over_batches() -> None:
    bandit = Bandit(Adaptive(smoothing=0.5))
    bandit.observe([scored("e0", 1.0), scored("e0", 3.0, num_nonzero=0)])
    assert bandit.metrics() == {"e0": {"mean_abs_advantage": 2.0, "signal": 0.5}}
    bandit.observe([scored("e0", 1.0)])
    assert bandit.metrics() == {"e0": {"mean_abs_advantage": 1.5, "signal": 0.75}}
    bandit.observe([])
    assert bandit.metrics() == {"e0": {"mean_abs_advantage": 1.5, "signal": 0.75}}


@given(adaptives, st.lists(st.tuples(observed, priors), min_size=1, max_size=5), st.integers(0, 4))
def test_a_bandit_goes_on_from_its_state_as_if_it_had_not_stopped(
    spec: Adaptive, history: list[tuple[list[Outcome], dict[str, float]]], stop: int
) -> None:
    one = other = Bandit(spec)
    for place, (outcomes, asked) in enumerate(history):
        if place == stop:
            other = Bandit(spec)
            other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        if other is not one:
            other.observe(outcomes)
        one.observe(outcomes)
        shares = one.shares(asked)
        assert other is one or other.shares(asked) == shares
        assert other.state_dict() == one.state_dict()


@given(adaptives, observed, priors)
def test_renaming_moves_the_figures(spec: Adaptive, outcomes: list[Outcome], asked: dict[str, float]) -> None:
    assume(len(asked) > 1)
    bandit = Bandit(spec)
    bandit.observe(outcomes)
    bandit.shares(asked)
    before = bandit.state_dict()
    bandit.rename({"e0": "new", "e1": "e1"})
    for what, values in bandit.state_dict().items():
        new = {{"e0": "new"}.get(name, name): value for name, value in before[what].items() if name in ("e0", "e1")}
        assert values == new


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"scores": {}, "signals": {}},
        {"scores": {}, "signals": {}, "tilts": {}, "more": {}},
        {"scores": {"a": -1.0}, "signals": {"a": 1.0}, "tilts": {}},
        {"scores": {"a": 1.0}, "signals": {"a": 2.0}, "tilts": {}},
        {"scores": {"a": 1.0}, "signals": {}, "tilts": {}},
        {"scores": {}, "signals": {}, "tilts": {"a": math.inf}},
        {"scores": {}, "signals": {}, "tilts": []},
    ],
)
def test_what_is_no_state_of_a_bandit_is_refused(state: Any) -> None:
    bandit = Bandit(Adaptive())
    bandit.observe([scored("e0")])
    before = bandit.state_dict()
    with pytest.raises(CheckpointError, match="the state of the bandit"):
        bandit.load_state_dict(state)
    assert bandit.state_dict() == before


def test_one_that_is_left_out_for_a_while_upsets_nothing() -> None:
    bandit = Bandit(Adaptive(smoothing=1, temperature=0.01))
    bandit.observe([scored("e0", 1e3), scored("e1", 0.0), scored("e2", 0.0)])
    assert bandit.shares({"e0": 0.0, "e1": 1.0 - 1e-300, "e2": 1e-300}) == pytest.approx({"e0": 0, "e1": 1, "e2": 0})
    shares = bandit.shares({"e0": 0.5, "e1": 0.5, "e2": 0.0})
    assert math.fsum(shares.values()) == pytest.approx(1.0)
