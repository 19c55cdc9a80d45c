"""Decides what is logged of each environment: plain arithmetic on the figures of all rollouts of a batch.

Flow: `episodes` gathers a `Figures` per rollout from all ranks → `environment_metrics` → TRL's log.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from multienv.types import Episode, EpisodeStatus

STATUSES: Final = tuple(EpisodeStatus)
_NAN: Final = math.nan


class Figures(NamedTuple):
    """What counts of one rollout, as numbers that fit into a row of a tensor; NaN where there is nothing to say.

    Attributes:
        environment: Its environment's place among the sorted names.
        status: Its status' place in `STATUSES`.
        reward: The environment's own reward.
        total: What the group's advantages are made of: all reward columns, weighted.
        is_success: 1 for a success; NaN for an episode that infrastructure ended.
        num_tool_calls: Calls of the environment's tools.
        num_tool_failures: Those of them that came to nothing.
        num_turns: Assistant messages.
        num_completion_tokens: Tokens that are trained on.
        open_s: Seconds until the prompt was there.
        tool_s: Seconds in tool calls.
        num_retries: How often opening the session was tried again.
        circuit: The environment's circuit breaker: 0 closed, 1 half-open, 2 open.
        advantage: As TRL normalised it, before weights and balance.
    """

    environment: float
    status: float
    reward: float = _NAN
    total: float = _NAN
    is_success: float = _NAN
    num_tool_calls: float = 0.0
    num_tool_failures: float = 0.0
    num_turns: float = 0.0
    num_completion_tokens: float = 0.0
    open_s: float = _NAN
    tool_s: float = 0.0
    num_retries: float = 0.0
    circuit: float = _NAN
    advantage: float = 0.0


def is_success(episode: Episode) -> bool:
    """Tell whether an episode counts as a success: its reward is above zero."""
    return episode.reward is not None and episode.reward > 0


def environment_metrics(
    rollouts: Sequence[Figures], environments: Sequence[str], num_generations: int
) -> dict[str, float]:
    """Work out the metrics of each environment.

    Args:
        rollouts: The rollouts of all ranks, groups in one piece.
        environments: All names, sorted.
        num_generations: Rollouts of a group.

    Returns:
        Metrics by name, `env/<environment>/...`. What no rollout of the batch says anything about is left out; the
        number of an environment's rollouts is always there.
    """
    num_tokens = sum(rollout.num_completion_tokens for rollout in rollouts)
    dead = dead_groups(rollouts, num_generations)
    metrics: dict[str, float] = {}
    for place, name in enumerate(environments):
        own = [rollout for rollout in rollouts if rollout.environment == place]
        metrics[f"env/{name}/rollouts"] = float(len(own))
        if own:
            of_own = _metrics(own) | {"zero_signal_groups": float(dead.count(place))}
            if num_tokens:
                of_own["token_share"] = sum(rollout.num_completion_tokens for rollout in own) / num_tokens
            metrics |= {f"env/{name}/{what}": value for what, value in of_own.items() if not math.isnan(value)}
    return metrics


def dead_groups(rollouts: Sequence[Figures], num_generations: int) -> list[int]:
    """Return the environment of each group that teaches nothing: all unscored, or all scored ones the same.

    Example:
        >>> group = [Figures(0, 0, total=1.0), Figures(0, 0)]
        >>> dead_groups([*group, *group], 2), dead_groups([group[0], Figures(0, 0, total=0.5)], 2)
        ([0, 0], [])
    """
    dead = []
    for start in range(0, len(rollouts), num_generations):
        group = rollouts[start : start + num_generations]
        totals = [rollout.total for rollout in group if not math.isnan(rollout.total)]
        if not totals or math.isclose(min(totals), max(totals), rel_tol=1e-5, abs_tol=1e-8):
            dead.append(int(group[0].environment))
    return dead


def _metrics(own: Sequence[Figures]) -> dict[str, float]:
    rewards = [rollout.reward for rollout in own if not math.isnan(rollout.reward)]
    is_finite = all(map(math.isfinite, rewards))  # `stdev` knows no infinity
    of_status = [rollout.status for rollout in own]
    return {
        "reward": mean(rewards),
        "reward_std": statistics.stdev(rewards) if len(rewards) > 1 and is_finite else _NAN,
        "success": mean(rollout.is_success for rollout in own),
        "scored_fraction": len(rewards) / len(own),
        **{f"status/{status}": of_status.count(place) / len(own) for place, status in enumerate(STATUSES)},
        "tool_calls": mean(rollout.num_tool_calls for rollout in own),
        "tool_failures": mean(rollout.num_tool_failures for rollout in own),
        "turns": mean(rollout.num_turns for rollout in own),
        "completion_tokens": mean(rollout.num_completion_tokens for rollout in own),
        "open_s": mean(rollout.open_s for rollout in own),
        "tool_s": mean(rollout.tool_s for rollout in own),
        "retries": sum(rollout.num_retries for rollout in own),
        "circuit": max((rollout.circuit for rollout in own if not math.isnan(rollout.circuit)), default=_NAN),
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else _NAN
