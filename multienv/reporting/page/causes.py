"""Decides which failures are the same one: those that differ only in what is particular to a session.

Flow: `figures` → `causes_of` → the page's table of failures.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from multienv.router.presentation import shortened
from multienv.types import Episode, EpisodeStatus

_MAX_REASON_CHARS: Final = 400
_PARTICULAR: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|(?<!\w)0x[0-9a-fA-F]+|"
    r"(?<!\w)(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?!\w)|\d+(?:\.\d+)?"
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Episodes of one environment that came to nothing, or were cut short, for the same reason.

    Attributes:
        environment: Their environment.
        status: How they ended.
        error: Class name of the error; empty for none.
        reason: The reason of the first of them, shortened.
        count: How many there are.
        tasks: Of how many tasks.
        first: The first training step; None outside training.
        last: The last one.
    """

    environment: str
    status: EpisodeStatus
    error: str
    reason: str
    count: int
    tasks: int
    first: int | None
    last: int | None


def causes_of(episodes: Iterable[Episode]) -> tuple[Cause, ...]:
    """Group what failed, was refused or was cut short; the most frequent first."""
    groups: dict[tuple[str, EpisodeStatus, str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.status not in (EpisodeStatus.FINISHED, EpisodeStatus.UNFINISHED):
            key = (episode.environment, episode.status, episode.error, general(str(episode.reason)))
            groups[key].append(episode)
    causes = [
        Cause(
            environment,
            status,
            error,
            shortened(str(own[0].reason), _MAX_REASON_CHARS),
            len(own),
            len({episode.task_id for episode in own}),
            min(_steps(own), default=None),
            max(_steps(own), default=None),
        )
        for (environment, status, error, _), own in groups.items()
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.count))


def general(reason: str) -> str:
    """Return a reason without what is particular to one episode: ids and numbers.

    Example:
        >>> general("session 99dac882-2158-424e-a1e7-c7a7d55481b2: no answer in 30.5 s, 404")
        'session #: no answer in # s, #'
    """
    return _PARTICULAR.sub("#", reason)


def _steps(episodes: Iterable[Episode]) -> list[int]:
    return [episode.training_step for episode in episodes if episode.training_step is not None]
