"""Decides what an earlier run's record says of the time that a run takes: in tools, in opening, and in the rest.

Flow: `episodes.jsonl` → `read_episodes` → `earlier_run` → `plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import fmean, median

from multienv.types import Episode


@dataclass(frozen=True, slots=True)
class Played:
    """What a record says of one environment: means over the rollouts that infrastructure did not end.

    Attributes:
        num_rollouts: How many these are.
        tool_calls: Tool calls of a rollout.
        call_s: Seconds of a call.
        tool_s: Seconds in tools of a rollout.
        open_s: Seconds until its session was open, in a batch.
        completion_tokens: Trained tokens of a rollout.
    """

    num_rollouts: int
    tool_calls: float
    call_s: float
    tool_s: float
    open_s: float
    completion_tokens: float


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a record says of a run.

    Attributes:
        environments: What it says of each, by name.
        num_batches: Generation batches that are timed.
        rollouts_per_batch: Rollouts of such a batch; the median.
        opening_s: Seconds from the first reset until the last session of a batch was open; the median.
        tools_s: Seconds that a batch waited for tools: in each turn, for its slowest call; the median.
        rest_s: Seconds from one batch to the next beyond that: generating, rewards, optimising, saving; the median;
            None where it has only one batch.
    """

    environments: dict[str, Played]
    num_batches: int = 0
    rollouts_per_batch: float | None = None
    opening_s: float | None = None
    tools_s: float | None = None
    rest_s: float | None = None


def earlier_run(episodes: Sequence[Episode]) -> Earlier:
    """Return what the episodes of a record say; those of its evaluations only where it has no others."""
    trained = [episode for episode in episodes if not episode.is_evaluation]
    environments = {}
    for name in dict.fromkeys(episode.environment for episode in episodes):
        own = [one for one in trained or episodes if one.environment == name and one.is_scorable]
        if own:
            environments[name] = _played(own)
    batches = list(_batches(trained))
    if not batches:
        return Earlier(environments)
    begun = [min(one.started_at for one in batch if one.started_at) for batch in batches]
    opening = [max(one.open_s for one in batch) for batch in batches]
    tools = [_waited_s(batch) for batch in batches]
    spent = [later - earlier for earlier, later in pairwise(begun)]
    rest = [max(0.0, whole - one - other) for whole, one, other in zip(spent, opening, tools, strict=False)]
    return Earlier(
        environments,
        len(batches),
        median(map(len, batches)),
        median(opening),
        median(tools),
        median(rest) if rest else None,
    )


def _played(own: Sequence[Episode]) -> Played:
    calls = [step.duration_s for episode in own for step in episode.steps]
    return Played(
        num_rollouts=len(own),
        tool_calls=fmean(episode.num_tool_calls for episode in own),
        call_s=fmean(calls) if calls else 0.0,
        tool_s=fmean(sum(step.duration_s for step in episode.steps) for episode in own),
        open_s=fmean(episode.open_s for episode in own),
        completion_tokens=fmean(episode.num_completion_tokens for episode in own),
    )


def _batches(trained: Sequence[Episode]) -> Iterator[list[Episode]]:
    """Return the rollouts of each batch whose beginning is known."""
    by_step: dict[int, list[Episode]] = {}
    for episode in trained:
        if episode.training_step is not None:
            by_step.setdefault(episode.training_step, []).append(episode)
    for _, batch in sorted(by_step.items()):
        if any(episode.started_at for episode in batch):  # that of another making notes no beginning
            yield batch


def _waited_s(batch: Sequence[Episode]) -> float:
    """Return the seconds that a batch waited for tools: its calls of a turn run at once, its turns do not."""
    durations = [[step.duration_s for step in episode.steps] for episode in batch]
    return sum(max(turn) for turn in zip_longest(*durations, fillvalue=0.0))
