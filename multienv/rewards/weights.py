"""Decides what a reward weight does to a gradient, and says so when it does nothing.

Flow: `meta` builds `reward_weights` beside `reward_funcs` and warns once.
"""

from __future__ import annotations

from collections.abc import Mapping


def weights_notice(weights: Mapping[str, float]) -> str | None:
    """Return the warning for a mixture's reward weights, or None when every weight is 1.

    Args:
        weights: The reward weight of each environment.

    Source:
        TRL normalises the rewards of a group by the group's own standard deviation by default, and a group holds one
        environment: advantages with weight 0.1, 1 and 10 are 1.617, 1.620 and 1.620.
    """
    acting = {name: weight for name, weight in weights.items() if weight != 1.0}
    if not acting:
        return None
    listed = ", ".join(f"{name}={weight:g}" for name, weight in acting.items())
    return (
        f"reward_weight ({listed}) has next to no effect under GRPOConfig's defaults: a group holds one environment, "
        'and scale_rewards="group" divides its weight out again. It acts with scale_rewards="batch" or "none", or with '
        'multi_objective_aggregation="normalize_then_sum", and only if spec.reward_weights is passed to '
        "GRPOConfig(reward_weights=...)"
    )
