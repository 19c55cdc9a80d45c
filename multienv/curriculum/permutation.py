"""Decides the order of a pass over any number of tasks without ever writing that order down.

Flow: `tasks.TaskOrder` asks for the task at a position of a pass.
"""

from __future__ import annotations

from hashlib import blake2b
from math import isqrt
from typing import Final

from multienv.errors import TaskIndexError

_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15  # odd, and far from any simple fraction of 2**64: the rounds' keys are spread out
_STIR: Final = 0xBF58476D1CE4E5B9
_NUM_DOUBLE_ROUNDS: Final = 5  # with three, neighbours in a short order are visibly related


def order_key(seed: int, name: str, number: int) -> int:
    """Return the key of one pass over the tasks of one environment, equal in every process.

    Args:
        seed: The seed of the run.
        name: Name of the environment.
        number: Number of the pass, from 0.
    """
    return int.from_bytes(blake2b(f"{seed}/{number}/{name}".encode(), digest_size=8).digest())


def place(position: int, num: int, key: int) -> int:
    """Return the number at a position of a shuffled `range(num)`.

    The same key shuffles in the same way; for each key, every number stands at exactly one position. Time and memory do
    not grow with `num`.

    Args:
        position: From 0 to `num` - 1.
        num: How many numbers are shuffled, at least one.
        key: Which of the orders: 64 bits, well mixed, such as from `order_key`.

    Raises:
        TaskIndexError: The position lies outside.

    Example:
        >>> [place(position, 5, 7) for position in range(5)]
        [2, 3, 4, 1, 0]

    Source:
        The generalised Feistel cipher of Black and Rogaway, "Ciphers with Arbitrary Finite Domains": numbers are cells
        of a table of about the square root of `num` rows and columns; a round shifts one coordinate by a hash of the
        other; whatever lands in the few cells beyond `num` goes round again.
    """
    if not 0 <= position < num:
        raise TaskIndexError(f"position {position} lies outside an order of {num}; accepted: 0 to {num - 1}")
    rows = isqrt(num - 1) + 1
    columns = (num - 1) // rows + 1
    number = position
    while True:
        row, column = divmod(number, columns)
        round_key = key
        for _ in range(_NUM_DOUBLE_ROUNDS):
            round_key += _STEP
            stirred = ((column ^ round_key) * _STIR) & _MASK
            row = (row + (((stirred ^ (stirred >> 29)) * _STEP & _MASK) >> 24)) % rows
            round_key += _STEP
            stirred = ((row ^ round_key) * _STIR) & _MASK
            column = (column + (((stirred ^ (stirred >> 29)) * _STEP & _MASK) >> 24)) % columns
        number = row * columns + column
        if number < num:
            return number
