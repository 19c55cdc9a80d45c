"""Decides what an environment's own reward is worth: what its adapter observed, and nothing for other rows.

Flow: `meta` puts one function per environment into `reward_funcs`; TRL calls it with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multienv.errors import RoutingError
from multienv.rewards.rows import owners


def environment_reward(name: str, known: Sequence[str]) -> Callable[..., list[float | None]]:
    """Make the reward function of one environment.

    Args:
        name: The environment; also the function's name, and so its column in TRL's log.
        known: All environments of the mixture.

    Returns:
        A TRL reward function: one `float | None` per row. None for rows of other environments, for episodes without a
        step reward, and for failed ones.
    """

    def reward(environments: Sequence[Any] | None = None, **batch: Any) -> list[float | None]:
        return _rewards(known, environments, batch, only=name)

    reward.__name__ = reward.__qualname__ = name
    return reward


def mixture_reward(known: Sequence[str]) -> Callable[..., list[float | None]]:
    """Make the one function over all rows: each row its own environment's reward.

    Args:
        known: All environments of the mixture.

    Returns:
        A TRL reward function called `reward`.
    """

    def reward(environments: Sequence[Any] | None = None, **batch: Any) -> list[float | None]:
        return _rewards(known, environments, batch)

    return reward


def _rewards(
    known: Sequence[str], environments: Sequence[Any] | None, batch: dict[str, Any], only: str | None = None
) -> list[float | None]:
    if environments is None:
        raise RoutingError(
            "an environment's reward was asked for without environments=[...]; GRPOTrainer passes it when it is given "
            "spec.environment_factory"
        )
    rows = owners(known, {**batch, "environments": environments})
    own = [getattr(adapter, "environment", None) == owner for owner, adapter in zip(rows, environments, strict=True)]
    return [
        _reward_of(adapter) if is_own and only in (None, owner) else None
        for owner, adapter, is_own in zip(rows, environments, own, strict=True)
    ]


def _reward_of(adapter: Any) -> float | None:
    """Return an adapter's reward; a foreign environment need not have one, or may have a tool of that name."""
    reward: Any = getattr(adapter, "reward", None)
    return reward if isinstance(reward, int | float) else None
