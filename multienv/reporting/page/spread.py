"""Decides how many numbers become a few: a mean with its uncertainty, and what durations are like.

Flow: `figures` and `curves` hand over what episodes say → `spread_of`, `latency_of` → the page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

_NORMAL_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean, and the band in which it lies.

    Attributes:
        count: How many numbers it stands on.
        mean: Their mean.
        low: Where the mean's 95 % interval begins, the numbers taken as independent; never below the least of them.
        high: Where it ends; never above the greatest.
        least: The least number.
        greatest: The greatest.
    """

    count: int
    mean: float
    low: float
    high: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took.

    Attributes:
        count: How often it was timed.
        median: Half of them took at most so many seconds.
        p95: 95 % of them took at most so many seconds.
        longest: The longest took so many seconds.
    """

    count: int
    median: float
    p95: float
    longest: float


def finite(value: Any) -> float | None:
    """Return a value as a number, or None where it is none that can be reckoned with.

    Example:
        >>> finite(2), finite(float("nan")), finite("2"), finite(True)
        (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def spread_of(values: Iterable[Any]) -> Spread | None:
    """Sum up those of the values that are finite numbers; None where none is.

    Example:
        >>> spread_of([0.0, 1.0, None, float("nan")])
        Spread(count=2, mean=0.5, low=0.0, high=1.0, least=0.0, greatest=1.0)
    """
    known = [number for value in values if (number := finite(value)) is not None]
    if not known:
        return None
    least, greatest = min(known), max(known)
    scale = max(abs(least), abs(greatest)) or 1.0  # the squares of what is large or small fit into no float
    scaled = [number / scale for number in known]
    mean = min(max(math.fsum(scaled) / len(known) * scale, least), greatest)
    error = statistics.stdev(scaled) / math.sqrt(len(known)) * _NORMAL_95 * scale if len(known) > 1 else 0.0
    return Spread(len(known), mean, max(mean - error, least), min(mean + error, greatest), least, greatest)


def latency_of(seconds: Iterable[Any]) -> Latency | None:
    """Sum up durations; 0 stands for what nobody timed.

    Example:
        >>> latency_of([0.0, 1.0, 2.0, 3.0])
        Latency(count=3, median=2.0, p95=2.9, longest=3.0)
    """
    known = sorted(number for each in seconds if (number := finite(each)) is not None and number > 0)
    if not known:
        return None
    return Latency(len(known), quantile(known, 0.5), quantile(known, 0.95), known[-1])


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which a part of the values lies, between two of them if need be.

    Args:
        ordered: The values, ascending, at least one.
        part: Between 0 and 1.

    Example:
        >>> quantile([1.0, 2.0, 4.0], 0.75)
        3.0
    """
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above, weight = min(below + 1, len(ordered) - 1), place - below
    return min(ordered[below] + (ordered[above] - ordered[below]) * weight, ordered[above])
