"""Decides what is drawn over training steps: few enough points to read, each of them over all rollouts of its steps.

Flow: `figures` → `bins_of`, `curves_of` → the charts of the page.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from multienv.reporting.page.logged import Log, LogEntry
from multienv.reporting.page.spread import Spread, finite, spread_of
from multienv.types import Episode, EpisodeStatus

STATUSES: Final = tuple(EpisodeStatus)
MAX_POINTS: Final = 100
"""Most points of a curve; a longer run's steps are taken together."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Training steps that are drawn as one point.

    Attributes:
        first: The first of them that has rollouts.
        last: The last of them that has.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Point:
    """An environment's rollouts of one bin.

    Attributes:
        place: The bin's place.
        rollouts: How many there were.
        statuses: How many ended in each status, in the order of `STATUSES`.
        reward: Their rewards; None where none was scored.
        success: Part of them that were successes; None where nobody says.
        tokens: Mean tokens that the policy wrote.
        tool_calls: Mean tool calls.
        share: Part of all environments' rollouts.
        asked: Part that was asked for; None where nobody says.
    """

    place: int
    rollouts: int
    statuses: tuple[int, ...]
    reward: Spread | None
    success: float | None
    tokens: float
    tool_calls: float
    share: float
    asked: float | None


def bins_of(steps: Iterable[int], max_points: int = MAX_POINTS) -> tuple[Bin, ...]:
    """Take training steps together, each range as wide as the others.

    Example:
        >>> bins_of([0, 1, 2, 7], 2)
        (Bin(first=0, last=2), Bin(first=7, last=7))
    """
    distinct = sorted(set(steps))
    if len(distinct) <= max_points:
        return tuple(Bin(step, step) for step in distinct)
    width = math.ceil((distinct[-1] - distinct[0] + 1) / max_points)
    ranges: dict[int, list[int]] = defaultdict(list)
    for step in distinct:
        ranges[(step - distinct[0]) // width].append(step)
    return tuple(Bin(own[0], own[-1]) for own in ranges.values())


def curves_of(
    episodes: Sequence[Episode], bins: Sequence[Bin], log: Log, *, is_success_logged: bool
) -> dict[str, tuple[Point, ...]]:
    """Work out the curves of each environment.

    Args:
        episodes: Episodes of one kind, training or evaluation; those without a training step are in no curve.
        bins: Of all their steps, in order.
        log: What the trainer's log says; an empty one for an evaluation.
        is_success_logged: True to take successes from the log, False to count rewards above 0.

    Returns:
        Points by environment. One without rollouts in a bin has a point there only where some were asked for.
    """
    firsts = [each.first for each in bins]
    own: dict[str, dict[int, list[Episode]]] = defaultdict(lambda: defaultdict(list))
    sizes = [0] * len(bins)
    for episode in episodes:
        if episode.training_step is not None:
            place = bisect.bisect_right(firsts, episode.training_step) - 1
            own[episode.environment][place].append(episode)
            sizes[place] += 1
    logged: dict[int, list[LogEntry]] = defaultdict(list)
    for entry in log.entries:  # an entry speaks of batches played before its step was done
        if (place := bisect.bisect_right(firsts, entry.step - 1) - 1) >= 0:
            logged[place].append(entry)
    curves: dict[str, tuple[Point, ...]] = {}
    for name, by_place in own.items():
        points = []
        for place, size in enumerate(sizes):
            here, asked = by_place.get(place, []), asked_share(name, logged.get(place, ()))
            if here or asked:
                success = logged_success([name], logged.get(place, ())) if is_success_logged else success_share(here)
                points.append(_point(place, here, size, asked, success))
        curves[name] = tuple(points)
    return curves


def asked_share(name: str, entries: Iterable[LogEntry]) -> float | None:
    """Return the share that was asked for of an environment, over several batches; None where none of them says."""
    shares = [entry.asked.get(name, 0.0) for entry in entries if entry.asked]
    return math.fsum(shares) / len(shares) if shares else None


def logged_success(names: Iterable[str], entries: Iterable[LogEntry]) -> float | None:
    """Return the part of the rollouts of environments that the log calls successes; None where it says nothing."""
    own = set(names)
    known = [said for entry in entries for name, said in entry.success.items() if name in own]
    count = math.fsum(number for number, _ in known)
    return math.fsum(number * part for number, part in known) / count if count else None


def success_share(episodes: Iterable[Episode]) -> float | None:
    """Return the part of episodes with a reward above 0; what infrastructure ended is not counted."""
    rewards = [finite(episode.reward) for episode in episodes if episode.is_scorable]
    return sum(reward is not None and reward > 0 for reward in rewards) / len(rewards) if rewards else None


def status_counts(episodes: Iterable[Episode]) -> tuple[int, ...]:
    """Count episodes by status, in the order of `STATUSES`."""
    of_status = [episode.status for episode in episodes]
    return tuple(of_status.count(status) for status in STATUSES)


def _point(place: int, episodes: Sequence[Episode], size: int, asked: float | None, success: float | None) -> Point:
    count = len(episodes)
    return Point(
        place,
        count,
        status_counts(episodes),
        spread_of(episode.reward for episode in episodes),
        success,
        sum(episode.num_completion_tokens for episode in episodes) / max(1, count),
        sum(episode.num_tool_calls for episode in episodes) / max(1, count),
        share_of(count, size),
        asked,
    )


def share_of(part: int, whole: int) -> float:
    """Return a part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0
