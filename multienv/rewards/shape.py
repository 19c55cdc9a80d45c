"""Decides how a reduced reward is shaped: penalty, scale, offset, clip, in this order.

Flow: `outcome` reduces an episode, and has the number shaped here.
"""

from __future__ import annotations

from multienv.specs import RewardSpec


def shape_reward(reduced: float, num_steps: int, spec: RewardSpec) -> float:
    """Return the episode reward for a reduced reward.

    Args:
        reduced: The step rewards, reduced, or the number that stands for them.
        num_steps: How many tool calls count.
        spec: The environment's rule.

    Example:
        >>> shape_reward(1.0, 5, RewardSpec(step_penalty=0.02, scale=2.0, offset=-1.0))
        0.8
    """
    shaped = (reduced - spec.step_penalty * num_steps) * spec.scale + spec.offset
    if spec.clip is None:
        return shaped
    low, high = spec.clip
    return min(max(shaped, low), high)
