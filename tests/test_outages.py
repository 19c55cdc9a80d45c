"""What an outage costs: nothing but the rollouts that it refused, and those are made up for."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum import Outcome, Quotas
from multienv.curriculum.outages import MAX_OWED_BATCHES, PROBE_EVERY, Outages
from multienv.curriculum.shares import normalised
from multienv.errors import CheckpointError
from tests.strategies import shares

groups = st.integers(1, 32)


def played(name: str) -> Outcome:
    return Outcome(name, 0, num_rollouts=4, num_finished=4, num_scored=4)


def refused(name: str) -> Outcome:
    return Outcome(name, 0, num_rollouts=4, num_refused=4)


class World:
    """Environments that are up or down, the quotas, and what each environment really played."""

    def __init__(self, asked: Mapping[str, float], num_groups: int) -> None:
        self.asked, self.num_groups = asked, num_groups
        self.outages, self.quotas = Outages(), Quotas()
        self.played: Counter[str] = Counter()
        self.num_batches = 0

    def batch(self, down: frozenset[str] | set[str] = frozenset()) -> dict[str, int]:
        """Play one batch, with the outcomes known at once; return its trial groups."""
        made, trials = self.outages.shares(self.asked, self.num_groups)
        left = self.num_groups - sum(trials.values())
        assert all(share >= 0 for share in made.values())
        assert left >= 0
        quota = self.quotas.take(made, left) if left else {}
        self.outages.observe(
            [
                refused(name) if name in down else played(name)
                for name, num in (quota | trials).items()
                for _ in range(num)
            ]
        )
        self.played.update({name: num for name, num in (quota | trials).items() if name not in down})
        self.num_batches += 1
        return trials


@given(shares(max_size=8), groups, st.data())
def test_the_places_of_one_that_is_down_go_to_the_others_in_proportion(
    weights: dict[str, float], num_groups: int, data: st.DataObject
) -> None:
    asked, outages = normalised(weights), Outages()
    down = data.draw(st.sets(st.sampled_from(sorted(asked)), max_size=len(asked) - 1))
    outages.observe(map(refused, sorted(down)))
    assert outages.down == down
    for _ in range(PROBE_EVERY - 1):
        made, trials = outages.shares(asked, num_groups)
        assert trials == {}
        assert made.keys() == asked.keys() - down
        total = sum(asked[name] for name in made)
        assert normalised(made) == pytest.approx({name: asked[name] / total for name in made})


@given(shares(max_size=6), st.integers(10, 32), st.data())
def test_one_that_is_down_gets_exactly_one_trial_every_few_batches(
    weights: dict[str, float], num_groups: int, data: st.DataObject
) -> None:
    world = World(normalised(weights), num_groups)
    down = data.draw(st.sets(st.sampled_from(sorted(weights)), max_size=len(weights) - 1))
    world.outages.observe(map(refused, sorted(down)))
    for batch in range(1, 5 * PROBE_EVERY + 1):
        assert world.batch(down) == (dict.fromkeys(down, 1) if batch % PROBE_EVERY == 0 else {})


@given(st.integers(2, 12), st.integers(1, 4), st.data())
def test_more_that_are_down_than_places_are_tried_in_turn_and_leave_places_to_the_others(
    num: int, num_groups: int, data: st.DataObject
) -> None:
    names = [f"e{place}" for place in range(num)]
    down = set(names[: data.draw(st.integers(1, num - 1))])
    world, num_others = World(dict.fromkeys(names, 1 / num), num_groups), 0
    world.outages.observe(map(refused, sorted(down)))
    longest = PROBE_EVERY + math.ceil(len(down) / (num_groups // 2 or 0.5))
    tried = dict.fromkeys(down, 0)
    num_batches = 4 * longest
    for batch in range(1, num_batches + 1):
        trials = world.batch(down)
        tried |= dict.fromkeys(trials, batch)
        num_others += num_groups - sum(trials.values())
        assert all(batch - before <= longest for before in tried.values()), "in turn"
    assert num_others >= num_batches * num_groups // 2


@given(shares(max_size=8), groups, st.data())
def test_what_was_missed_is_paid_back_in_time(weights: dict[str, float], num_groups: int, data: st.DataObject) -> None:
    world = World(normalised({name: min(max(weight, 0.2), 2.0) for name, weight in weights.items()}), num_groups)
    asked = world.asked
    down = data.draw(st.sets(st.sampled_from(sorted(asked)), max_size=len(asked) - 1))
    for _ in range(data.draw(st.integers(0, 15))):
        world.batch(down)
    world.outages.observe(map(played, sorted(down)))
    world.outages.shares(asked, num_groups)  # holds what is owed to its bound
    owing = dict(world.outages.owed)
    if not owing:
        return
    theirs = math.fsum(asked[name] for name in owing)
    bound = MAX_OWED_BATCHES * (1 + 2 * theirs / (1 - theirs))
    assert len(owing) < len(asked), "somebody had their places"
    num_batches = 0
    while world.outages.owed:
        assert num_batches <= bound
        before = world.outages.owed
        made, _ = world.outages.shares(asked, num_groups)
        world.played.update(world.quotas.take(made, num_groups))
        world.num_batches += 1
        for name, share in normalised(made).items():
            places = asked[name] * num_groups
            assert share * num_groups <= 2 * places + 1e-6
            if name not in before:
                assert share * num_groups >= places / 2 - 1e-6, "nobody pays more than half"
            else:
                assert share * num_groups >= places - 1e-6, "nobody who is owed pays"
                gained = share * num_groups - places
                assert before[name] - world.outages.owed.get(name, 0.0) == pytest.approx(gained, abs=1e-6)
        num_batches += 1


@given(st.integers(2, 6), st.integers(2, 32), st.integers(1, 12))
def test_an_outage_that_is_over_leaves_no_trace_in_what_was_played(num: int, num_groups: int, length: int) -> None:
    names = [f"e{place}" for place in range(num)]
    world = World(dict.fromkeys(names, 1 / num), num_groups)
    for _ in range(length):
        world.batch({"e0"})
    while world.outages.owed or world.outages.down:
        world.batch()
    num_lost = world.num_batches * num_groups - world.played.total()
    for name in names:  # but for what was refused, which nobody had
        assert abs(world.played[name] - world.played.total() / num) <= 2 + num_lost / num


histories = st.lists(
    st.tuples(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)), st.booleans()), min_size=1, max_size=60
)


@given(shares(max_size=4), groups, histories)
def test_nobody_is_ever_owed_more_than_the_bound(
    weights: dict[str, float], num_groups: int, history: list[tuple[set[int], set[int], bool]]
) -> None:
    asked, outages = normalised(weights), Outages()
    for lost, fine, again in history:
        outcomes = [refused(f"e{place}") for place in lost] + [played(f"e{place}") for place in fine]
        for _ in range(40 if again else 1):  # refused groups are observed again and again
            outages.observe([outcome for outcome in outcomes if outcome.environment in asked])
        made, trials = outages.shares(asked, num_groups)
        assert 0 <= sum(trials.values()) <= num_groups
        assert all(share >= 0 for share in made.values())
        assert math.isfinite(math.fsum(made.values()))
        assert any(made.values())
        for name, owed in outages.owed.items():
            assert 0 < owed <= MAX_OWED_BATCHES * asked[name] * num_groups + 1e-6


@given(shares(max_size=6), groups, st.integers(1, 50))
def test_all_that_are_down_at_once_are_asked_as_ever_and_owed_nothing(
    weights: dict[str, float], num_groups: int, length: int
) -> None:
    world, down = World(normalised(weights), num_groups), frozenset(weights)
    world.outages.observe(map(refused, weights))
    for _ in range(length):
        made, trials = world.outages.shares(world.asked, num_groups)
        assert (made, trials) == (world.asked, {})
        world.batch(down)
    world.outages.observe(map(played, weights))
    assert not world.outages.down
    assert not world.outages.owed, "nobody had their places"


@given(groups, st.integers(0, 30))
def test_one_environment_alone_is_asked_whatever_becomes_of_it(num_groups: int, length: int) -> None:
    world = World({"a": 1.0}, num_groups)
    for place in range(length):
        assert world.batch({"a"} if place % 3 else set()) == {}
    made, trials = world.outages.shares(world.asked, num_groups)
    assert (made, trials, world.outages.owed) == ({"a": 1.0}, {}, {})


def test_failed_groups_make_nobody_down_and_one_that_was_played_brings_it_back() -> None:
    outages, broken = Outages(), Outcome("a", 0, num_rollouts=4, num_failed=4)
    outages.observe([broken])
    assert not outages.down
    assert not outages.owed
    outages.observe([broken, refused("a")])
    assert outages.down == {"a"}
    outages.observe([broken])
    assert outages.down == {"a"}, "a failure is no sign of life"
    outages.observe([refused("a"), played("a")])
    assert not outages.down
    assert outages.owed == {"a": 1.0}, "others had nothing in the batch in which nobody played"


def test_what_the_others_cannot_hold_goes_to_those_that_are_down_all_the_same() -> None:
    outages = Outages()
    outages.observe([refused("a"), played("b")])
    made, trials = outages.shares({"a": 0.5, "b": 0.5}, 8, {"b": 5, "a": 6})
    assert trials == {"a": 3}
    assert made.keys() == {"b"}
    made, trials = outages.shares({"a": 0.5, "b": 0.5}, 8, {"a": 6})
    assert trials == {}


def test_nobody_is_paid_beyond_its_cap() -> None:
    outages = Outages()
    outages.observe([refused("a"), played("b")])
    for _ in range(PROBE_EVERY - 1):
        outages.shares({"a": 0.5, "b": 0.5}, 8, {"a": 5})
    outages.observe([played("a")])
    before = outages.owed["a"]
    made, _ = outages.shares({"a": 0.5, "b": 0.5}, 8, {"a": 5})
    assert normalised(made) == pytest.approx({"a": 5 / 8, "b": 3 / 8})
    assert outages.owed["a"] == pytest.approx(before - 1), "and what it did not get stays owed"


def test_one_that_is_not_asked_for_waits_without_being_owed_more() -> None:
    outages = Outages()
    outages.observe([refused("a"), played("b")])
    for _ in range(3 * PROBE_EVERY):
        assert outages.shares({"a": 0.0, "b": 1.0}, 8) == ({"b": 8.0}, {})
    assert outages.owed == {"a": 1.0}


@given(shares(max_size=4), groups, histories)
def test_outages_go_on_from_their_state_as_if_they_had_not_stopped(
    weights: dict[str, float], num_groups: int, history: list[tuple[set[int], set[int], bool]]
) -> None:
    asked, one = normalised(weights), Outages()
    for lost, fine, _ in history:
        other = Outages()
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        for each in (one, other):
            each.observe([refused(f"e{place}") for place in lost] + [played(f"e{place}") for place in fine])
        assert one.shares(asked, num_groups) == other.shares(asked, num_groups)
        assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"waits": {}},
        {"waits": {}, "owed": {}, "more": 1},
        {"waits": {"a": -1}, "owed": {}},
        {"waits": {"a": 1.5}, "owed": {}},
        {"waits": {}, "owed": {"a": -1.0}},
        {"waits": {}, "owed": {"a": math.nan}},
        {"waits": {}, "owed": {1: 1.0}},
        {"waits": {}, "owed": {"a": 10**400}},
    ],
)
def test_what_is_no_state_of_outages_is_refused(state: object) -> None:
    outages = Outages()
    outages.observe([refused("a")])
    with pytest.raises(CheckpointError, match="the state of the outages"):
        outages.load_state_dict(state)  # type: ignore[arg-type]
    assert outages.down == {"a"}
