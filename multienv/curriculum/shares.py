"""Decides the weights of a mixture before anything is observed: of its environments, or of the step.

Flow: `Curriculum` → `base_weights`, `scheduled` → `adaptive`, `outages`, `quotas`.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from multienv.errors import SpecError
from multienv.specs import CurriculumSpec, Schedule

_POWERS: Final = {"uniform": 0.0, "proportional": 1.0}
_LEAST: Final = sys.float_info.min
_SMALL: Final = 1e-100
_LARGE: Final = 1e100


def base_weights(
    spec: CurriculumSpec, sampling_weights: Mapping[str, float], num_tasks: Mapping[str, int]
) -> dict[str, float]:
    """Return the weight of each environment by the declared mixture.

    Args:
        spec: The declaration.
        sampling_weights: By environment.
        num_tasks: By environment.

    Example:
        >>> base_weights(CurriculumSpec(mixture="temperature", alpha=0.5), {"a": 1.0, "b": 1.0}, {"a": 4, "b": 100})
        {'a': 2.0, 'b': 10.0}
    """
    if spec.mixture in ("weights", "dataset"):
        return dict(sampling_weights)
    power = _POWERS.get(spec.mixture, spec.alpha)
    return {name: float(num) ** power for name, num in num_tasks.items()}


def comparable(weights: Mapping[str, float]) -> Mapping[str, float]:
    """Return weights in a unit in which their sum neither overflows nor vanishes: themselves where it does not anyhow.

    The unit is a power of two, so nothing is rounded, but what is 1e300 times smaller than the largest may become 0.

    Raises:
        SpecError: All weights are 0.

    Example:
        >>> comparable({"a": 3 * 2.0**1000, "b": 2.0**1000})
        {'a': 0.75, 'b': 0.25}
    """
    largest = max(weights.values(), default=0.0)
    if not largest:
        raise SpecError(f"all sampling weights are 0 ({', '.join(weights)}); at least one environment must have some")
    if _SMALL < largest < _LARGE:
        return weights
    exponent = -math.frexp(largest)[1]
    return {name: math.ldexp(weight, exponent) for name, weight in weights.items()}


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Return shares that add up to 1; a weight above 0 has a share above 0, however small it is.

    Raises:
        SpecError: All weights are 0.

    Example:
        >>> normalised({"a": 3, "b": 1})
        {'a': 0.75, 'b': 0.25}
    """
    sized = comparable(weights)
    total = math.fsum(sized.values())
    return {name: max(sized[name] / total, _LEAST) if weight else 0.0 for name, weight in weights.items()}


def scheduled(schedule: Schedule, step: int) -> dict[str, float]:
    """Return the weights at a training step.

    Example:
        >>> schedule = Schedule(points={0: {"a": 1}, 10: {"a": 1, "b": 1}}, interpolation="linear")
        >>> scheduled(schedule, 5)
        {'a': 0.75, 'b': 0.25}
    """
    steps = sorted(schedule.points)
    place = max(0, bisect_right(steps, step) - 1)
    here = normalised(schedule.points[steps[place]])
    if schedule.interpolation == "piecewise" or place + 1 == len(steps) or step <= steps[place]:
        return here
    there = normalised(schedule.points[steps[place + 1]])
    part = (step - steps[place]) / (steps[place + 1] - steps[place])
    return {
        name: (1 - part) * here.get(name, 0.0) + part * there.get(name, 0.0) for name in dict.fromkeys((*here, *there))
    }
