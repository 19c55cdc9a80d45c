"""Decides how a reduced reward is shaped: penalty, scale, offset, clip, in this order.

Flow: `outcome` reduces an episode, and has the number shaped here.
"""

from __future__ import annotations

from typing import Final

from multienv.errors import RewardFunctionError
from multienv.specs import RewardSpec

LARGEST_REWARD: Final = 3.4e38
"""Larger numbers are infinite in TRL's tensors, and an infinite reward makes a whole group's advantages NaN."""


def shape_reward(reduced: float, num_steps: int, spec: RewardSpec) -> float:
    """Return the episode reward for a reduced reward.

    Args:
        reduced: The step rewards, reduced, or the number that stands for them.
        num_steps: How many tool calls count.
        spec: The environment's rule.

    Raises:
        RewardFunctionError: The number is too large to be a reward.

    Example:
        >>> shape_reward(1.0, 5, RewardSpec(step_penalty=0.02, scale=2.0, offset=-1.0))
        0.8
    """
    shaped = (reduced - spec.step_penalty * num_steps) * spec.scale + spec.offset
    if spec.clip is not None:
        low, high = spec.clip
        shaped = min(max(shaped, low), high)
    if not abs(shaped) <= LARGEST_REWARD:
        raise RewardFunctionError(
            f"{spec!r} makes {shaped} of the reduced reward {reduced}; accepted: numbers up to {LARGEST_REWARD:g}, the "
            "largest TRL can hold. Choose a smaller scale, or clip"
        )
    return shaped
