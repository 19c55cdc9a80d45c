"""Decides what an environment's scores of whole groups are worth: a column of their own beside its other rewards.

Flow: `meta` makes one function per environment that asks for it; TRL calls it with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from multienv.errors import RoutingError
from multienv.rewards.rows import owners

ScoreGroups: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], list[float | None]]
"""From an environment's adapters and their completions to one score per rollout."""


def group_reward(name: str, known: Sequence[str], score_groups: ScoreGroups) -> Callable[..., list[float | None]]:
    """Make the reward function by which an environment compares the rollouts of a group.

    Args:
        name: The environment; the function is called `<name>/group`.
        known: All environments of the mixture.
        score_groups: Has the environment score its rollouts.

    Returns:
        A TRL reward function: one `float | None` per row, None for rows of other environments.
    """

    def reward(
        environments: Sequence[Any] | None = None, completions: Sequence[Any] | None = None, **batch: Any
    ) -> list[float | None]:
        if environments is None or completions is None:
            raise RoutingError(
                f"the group reward of environment {name!r} was asked for without environments=[...] and "
                "completions=[...]; GRPOTrainer passes them"
            )
        rows = [
            row
            for row, owner in enumerate(owners(known, {**batch, "environments": environments}))
            if owner == name and getattr(environments[row], "environment", None) == name
        ]
        scores = score_groups([environments[row] for row in rows], [completions[row] for row in rows]) if rows else []
        whole: list[float | None] = [None] * len(environments)
        for row, score in zip(rows, scores, strict=True):
            whole[row] = score
        return whole

    reward.__name__ = reward.__qualname__ = f"{name}/group"
    return reward
