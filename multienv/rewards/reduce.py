"""Decides which steps of an episode count, and how their rewards become one number.

Flow: `outcome` asks for the scored step rewards of an `Episode` and reduces them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from multienv.errors import RewardFunctionError, SpecError
from multienv.specs import Reduction
from multienv.types import Episode, Step


def counted_steps(episode: Episode) -> tuple[Step, ...]:
    """Return the steps up to the one that finished the episode; nothing after it counts.

    Args:
        episode: The episode.
    """
    end = next((index for index, step in enumerate(episode.steps, 1) if step.finished), len(episode.steps))
    return episode.steps[:end]


def scored_rewards(episode: Episode) -> tuple[float, ...]:
    """Return the rewards of the counted steps, in order, without those that are None.

    Args:
        episode: The episode.
    """
    return tuple(float(step.reward) for step in counted_steps(episode) if step.reward is not None)


def last(rewards: tuple[float, ...]) -> float:
    """Return the last of them."""
    return rewards[-1]


def mean(rewards: tuple[float, ...]) -> float:
    """Return their mean."""
    return math.fsum(rewards) / len(rewards)


NAMED: Final[Mapping[str, Reduction]] = {"last": last, "total": math.fsum, "best": max, "mean": mean}
"""The reductions that have a name."""


class _Discounted:
    """A sum whose later terms count less. A class of its own, so that it pickles, compares and shows what it is."""

    __slots__ = ("gamma",)

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, rewards: tuple[float, ...]) -> float:
        return math.fsum(self.gamma**i * reward for i, reward in enumerate(rewards))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Discounted) and self.gamma == other.gamma

    def __hash__(self) -> int:
        return hash((_Discounted, self.gamma))

    def __repr__(self) -> str:
        return f"discounted({self.gamma!r})"


def discounted(gamma: float) -> Reduction:
    """Make a reduction to the sum of `gamma**i` times the i-th scored step reward, i from 0.

    Args:
        gamma: How much each scored step counts beside the one before it, from 0 to 1.

    Returns:
        A reduction for `RewardSpec`; equal to another one of the same `gamma`.

    Raises:
        SpecError: `gamma` is no number from 0 to 1.

    Example:
        >>> discounted(0.5)((1.0, 0.0, 1.0))
        1.25
    """
    value: Any = gamma
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SpecError(f"gamma={gamma!r}; accepted: a number from 0 to 1, as in discounted(0.99)")
    return _Discounted(float(gamma))


def reduce_rewards(rewards: tuple[float, ...], reduction: str | Reduction, environment: str) -> float:
    """Reduce step rewards to one number.

    Args:
        rewards: The scored step rewards, at least one.
        reduction: The name of a reduction, or one.
        environment: Whose they are, for the error.

    Raises:
        RewardFunctionError: The reduction raised an exception, or gave no finite number.
    """
    function: Callable[[tuple[float, ...]], Any] = NAMED[reduction] if isinstance(reduction, str) else reduction
    try:
        reduced = float(function(rewards))
    except Exception as error:
        raise RewardFunctionError(
            f"environment {environment!r}: reduction {reduction!r} of the step rewards {rewards} raised {error!r}; "
            "expected a number from any tuple of at least one float",
            environment=environment,
        ) from error
    if not math.isfinite(reduced):
        raise RewardFunctionError(
            f"environment {environment!r}: reduction {reduction!r} of the step rewards {rewards} gave {reduced}; "
            "expected a finite number",
            environment=environment,
        )
    return reduced
