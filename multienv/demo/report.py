"""Decides what the demo shows at the end: per environment, what was attempted, and how the mean reward moved.

Flow: `run` sums up the `scoreboard` here and prints the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from rich.table import Table

if TYPE_CHECKING:
    from multienv.demo.scoreboard import Rollout

_NUM_FIFTHS: Final = 5


@dataclass(frozen=True, slots=True)
class EnvironmentSummary:
    """One environment's part in a run.

    Attributes:
        environment: Its name.
        num_tasks: Distinct tasks attempted.
        num_rollouts: Rollouts sampled.
        num_scored: Those with a reward.
        first_fifth: Mean reward over the first fifth of the steps; None if none was scored there.
        last_fifth: Mean reward over the last fifth of the steps; None if none was scored there.
    """

    environment: str
    num_tasks: int
    num_rollouts: int
    num_scored: int
    first_fifth: float | None
    last_fifth: float | None


def summarize(rollouts: Sequence[Rollout], environments: Iterable[str]) -> tuple[EnvironmentSummary, ...]:
    """Sum up a run.

    Args:
        rollouts: All rollouts of the run.
        environments: Names, in the order in which they are to appear.

    Returns:
        One summary per environment. A fifth is at least one step, so a very short run has overlapping fifths.
    """
    steps = sorted({rollout.step for rollout in rollouts})
    num_steps = max(1, len(steps) // _NUM_FIFTHS)
    first, final = frozenset(steps[:num_steps]), frozenset(steps[-num_steps:])
    summaries = []
    for environment in environments:
        own = [rollout for rollout in rollouts if rollout.environment == environment]
        summaries.append(
            EnvironmentSummary(
                environment=environment,
                num_tasks=len({rollout.task_id for rollout in own}),
                num_rollouts=len(own),
                num_scored=sum(rollout.reward is not None for rollout in own),
                first_fifth=_mean_reward(own, first),
                last_fifth=_mean_reward(own, final),
            )
        )
    return tuple(summaries)


def table(summaries: Iterable[EnvironmentSummary]) -> Table:
    """Lay the summaries out, one row per environment.

    Args:
        summaries: What to show.

    Returns:
        A table for a rich console.
    """
    grid = Table(title="Mean reward per environment")
    grid.add_column("environment")
    for heading in ("tasks", "rollouts", "scored", "first fifth", "last fifth", "change"):
        grid.add_column(heading, justify="right")
    for summary in summaries:
        first, final = summary.first_fifth, summary.last_fifth
        change = None if first is None or final is None else final - first
        grid.add_row(
            summary.environment,
            str(summary.num_tasks),
            str(summary.num_rollouts),
            str(summary.num_scored),
            _shown(first),
            _shown(final),
            _shown(change, sign="+"),
        )
    return grid


def _mean_reward(rollouts: Iterable[Rollout], steps: frozenset[int]) -> float | None:
    rewards = [rollout.reward for rollout in rollouts if rollout.step in steps and rollout.reward is not None]
    return fmean(rewards) if rewards else None


def _shown(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.2f}"
