"""Decides what a reward weight does to a gradient: by which factor it acts, that it acts once, when it does nothing.

Flow: `meta` warns of a mixture's weights once; `MultiEnvGRPOTrainer` asks `Weighing` for the factors of each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multienv.errors import SpecError
from multienv.rewards.scale import RunningScale
from multienv.rewards.shares import Balance, Totals, balance_factors


@dataclass(frozen=True, slots=True)
class Weighing:
    """How a mixture's advantages are weighed.

    Attributes:
        weights: The reward weight of each environment.
        balance: What an environment's share of the loss is proportional to.
        scale: The running scale to divide by, or None.
    """

    weights: Mapping[str, float]
    balance: Balance = "none"
    scale: RunningScale | None = None

    @property
    def is_idle(self) -> bool:
        """Whether every factor is 1."""
        return self.balance == "none" and self.scale is None and all(w == 1.0 for w in self.weights.values())

    def factors(self, totals: Mapping[str, Totals]) -> dict[str, float]:
        """Take in a batch and return each environment's factor for it.

        Args:
            totals: What the batch's rollouts come to, all ranks together.
        """
        if self.scale is not None:
            self.scale.update(totals)
        balanced = balance_factors(totals, self.balance)
        return {
            name: weight * balanced.get(name, 1.0) * (1.0 if self.scale is None else self.scale.factor(name))
            for name, weight in self.weights.items()
        }


def row_factors(owners: Iterable[Any], factors: Mapping[str, float]) -> list[float]:
    """Return each row's factor; a row of an environment that is not weighed keeps its advantage."""
    return [factors.get(owner, 1.0) for owner in owners]


def check_applied_once(column_weights: Sequence[float] | None, own: Sequence[float]) -> None:
    """Check that the mixture's weights are not applied to its reward functions as well as to its advantages.

    Args:
        column_weights: `GRPOConfig.reward_weights`.
        own: `MultiEnvSpec.reward_weights`.

    Raises:
        SpecError: They are the same, and not all 1.
    """
    if column_weights is None or all(weight == 1.0 for weight in own):
        return
    if list(column_weights[: len(own)]) == list(own):
        raise SpecError(
            f"args.reward_weights={list(column_weights)} holds spec.reward_weights, but MultiEnvGRPOTrainer multiplies "
            "the advantages of each environment by its reward_weight itself, so it would count twice; accepted: None, "
            "or weights of reward functions among each other. Leave reward_weights out of GRPOConfig"
        )


def acts_under(args: Any) -> bool:
    """Tell whether TRL's own trainer lets an environment's weight reach the gradient, if it is passed to it.

    Args:
        args: A `GRPOConfig`, or anything with its attributes.

    Returns:
        False where the rewards of a group, and so of one environment, are divided by their own standard deviation.

    Example:
        >>> from types import SimpleNamespace
        >>> acts_under(SimpleNamespace(scale_rewards="group")), acts_under(SimpleNamespace(scale_rewards="batch"))
        (False, True)
    """
    if getattr(args, "multi_objective_aggregation", "sum_then_normalize") == "normalize_then_sum":
        return True
    return getattr(args, "scale_rewards", "group") in ("batch", "none", False)


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
        f"reward_weight ({listed}) acts in MultiEnvGRPOTrainer, which applies it to the advantage. With TRL's own "
        "trainer it has next to no effect under GRPOConfig's defaults: a group holds one environment, and "
        'scale_rewards="group" divides its weight out again. There it acts with scale_rewards="batch" or "none", or '
        'with multi_objective_aggregation="normalize_then_sum", and only if spec.reward_weights is passed to '
        "GRPOConfig(reward_weights=...)"
    )
