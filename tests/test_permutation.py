"""An order that is never written down, by its laws."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum.permutation import order_key, place
from multienv.errors import TaskIndexError

keys = st.integers(0, 2**64 - 1)
PASSES = [order_key(0, "seta", number) for number in range(2000)]


def order(num: int, key: int) -> list[int]:
    return [place(position, num, key) for position in range(num)]


@given(st.integers(1, 600), keys)
def test_every_number_stands_at_exactly_one_position(num: int, key: int) -> None:
    assert sorted(order(num, key)) == list(range(num))


@pytest.mark.parametrize("num", range(1, 70))
def test_no_small_number_of_tasks_is_an_exception(num: int) -> None:
    for key in PASSES[:20]:
        assert sorted(order(num, key)) == list(range(num))


@given(st.integers(1, 10**9), keys, st.data())
def test_no_two_positions_of_a_huge_order_hold_the_same_number(num: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.sets(st.integers(0, num - 1), min_size=1, max_size=50))
    numbers = {place(position, num, key) for position in positions}
    assert len(numbers) == len(positions)
    assert all(0 <= number < num for number in numbers)


@given(st.integers(1, 10**9), keys, st.data())
def test_the_same_key_gives_the_same_order(num: int, key: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, num - 1))
    assert place(position, num, key) == place(position, num, key)


def test_other_keys_give_other_orders() -> None:
    assert len({tuple(order(100, key)) for key in PASSES}) == len(PASSES)


def test_passes_environments_and_seeds_have_keys_of_their_own() -> None:
    triples = [(seed, name, number) for seed in (-1, 0, 1, 11) for name in ("a", "b", "1/a") for number in (0, 1, 11)]
    assert len({order_key(*triple) for triple in triples}) == len(triples)


def test_a_key_is_equal_in_every_process_and_version() -> None:
    assert order_key(0, "seta", 3) == 0xE4FB01C2DC95C5D3
    assert order(8, order_key(0, "seta", 3)) == [0, 5, 7, 2, 4, 3, 1, 6]


@pytest.mark.parametrize("position", [-1, 5, 8, 10**12])
def test_a_position_outside_is_refused(position: int) -> None:
    with pytest.raises(TaskIndexError, match="accepted: 0 to 4"):
        place(position, 5, 0)


def surplus(counts: Counter[object], num_cells: int, num_dependent: int) -> float:
    """By how many standard deviations the counts are less even than chance makes them."""
    expected = counts.total() / num_cells
    unseen = (num_cells - len(counts)) * expected
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values()) + unseen
    freedom = num_cells - num_dependent
    return float((chi_square - freedom) / (2 * freedom) ** 0.5)


def test_two_tasks_come_in_both_orders_equally_often() -> None:
    assert 0.45 < sum(place(0, 2, key) for key in PASSES) / len(PASSES) < 0.55


@pytest.mark.parametrize("num", [3, 4])
def test_all_orders_of_a_few_tasks_come_equally_often(num: int) -> None:
    counts: Counter[object] = Counter(tuple(order(num, key)) for key in PASSES)
    assert surplus(counts, factorial(num), 1) < 4


@pytest.mark.parametrize("num", [5, 8, 13, 30, 97])
def test_every_task_comes_at_every_position_equally_often(num: int) -> None:
    cells: Counter[object] = Counter(cell for key in PASSES for cell in enumerate(order(num, key)))
    assert surplus(cells, num * num, 2 * num - 1) < 4


@pytest.mark.parametrize("num", [5, 8, 13, 30, 97])
def test_neighbours_in_a_pass_are_unrelated(num: int) -> None:
    orders = [order(num, key) for key in PASSES]
    steps: Counter[object] = Counter(
        (after - before) % num for numbers in orders for before, after in pairwise(numbers)
    )
    assert surplus(steps, num - 1, 1) < 4


@pytest.mark.parametrize("num", [1000, 10**6, 10**9])
def test_a_part_of_a_long_pass_holds_tasks_from_everywhere(num: int) -> None:
    for key in PASSES[:5]:
        tenths: Counter[object] = Counter(place(position, num, key) * 10 // num for position in range(200))
        assert surplus(tenths, 10, 1) < 4
        neighbours = [abs(place(position + 1, num, key) - place(position, num, key)) for position in range(500)]
        assert 0.28 < sum(neighbours) / len(neighbours) / num < 0.39  # a third where both ends are drawn at random


@pytest.mark.parametrize("num", [8, 30, 97])
def test_successive_passes_are_unrelated(num: int) -> None:
    num_same = sum(
        one == other
        for key, following in pairwise(PASSES)
        for one, other in zip(order(num, key), order(num, following), strict=True)
    )
    assert 0.85 < num_same / (len(PASSES) - 1) < 1.15  # one fixed point is what chance leaves of any shuffle
