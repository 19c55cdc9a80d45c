"""Decides the figures of a report: plain arithmetic on all episodes of a record, training and evaluation apart.

Flow: `read_episodes` and `read_log` → `figures_of` → `write`, which puts them into the page.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from multienv.reporting.page.causes import Cause, causes_of
from multienv.reporting.page.curves import (
    Bin,
    Point,
    asked_share,
    bins_of,
    curves_of,
    logged_success,
    share_of,
    status_counts,
    success_share,
)
from multienv.reporting.page.logged import Log
from multienv.reporting.page.spread import Latency, Spread, finite, latency_of, spread_of
from multienv.types import Episode

MAX_ROWS: Final = 2_000
"""Most tasks, and most causes of failure, that the page lists."""
_MOST_DIGITS: Final = 19
PhaseName: TypeAlias = Literal["training", "evaluation"]


@dataclass(frozen=True, slots=True)
class Totals:
    """What episodes add up to.

    Attributes:
        rollouts: How many there are.
        tasks: Of how many tasks.
        statuses: How many ended in each status, in the order of `STATUSES`.
        scored: How many have a reward.
        reward: Their rewards; None where none was scored.
        success: Part of them that were successes, of those that infrastructure did not end; None where there is none.
        tokens: Tokens that the policy wrote.
        tool_calls: Tool calls that it made.
        tool_failures: Those of them that came to nothing.
        retries: How often opening a session was tried again.
        opening: How long it took to open a session.
        calls: How long tool calls took.
    """

    rollouts: int
    tasks: int
    statuses: tuple[int, ...]
    scored: int
    reward: Spread | None
    success: float | None
    tokens: int
    tool_calls: int
    tool_failures: int
    retries: int
    opening: Latency | None
    calls: Latency | None


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """An environment's part.

    Attributes:
        name: Its name.
        totals: What its episodes add up to.
        share: Part of all environments' rollouts.
        token_share: Part of all environments' tokens.
        asked: Part of the rollouts that was asked for; None where nobody says.
        curve: Its points over training steps.
    """

    name: str
    totals: Totals
    share: float
    token_share: float
    asked: float | None
    curve: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """What became of one task.

    Attributes:
        environment: Its environment.
        task_id: `environment/split/index`.
        rollouts: How often it was played.
        statuses: How many ended in each status, in the order of `STATUSES`.
        reward: Its rewards; None where none was scored.
        success: Part of its rollouts with a reward above 0.
        tool_calls: Mean tool calls of a rollout.
        tokens: Mean tokens of a rollout.
    """

    environment: str
    task_id: str
    rollouts: int
    statuses: tuple[int, ...]
    reward: Spread | None
    success: float | None
    tool_calls: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Phase:
    """All that is said of training, or of evaluation.

    Attributes:
        name: Which of them.
        totals: What all its episodes add up to.
        started_at: When the first of them began, in Unix seconds; None where nobody noted it.
        ended_at: When the last one ended, as far as sessions and tools tell; the policy's own time is in no episode.
        first_step: The first training step; None outside training.
        last_step: The last one.
        is_success_logged: True where successes are the log's; False where they are rewards above 0.
        environments: By name.
        bins: What the points of the curves stand for.
        tasks: At most `MAX_ROWS`, the least successful first.
        num_tasks: How many there are.
        causes: At most `MAX_ROWS` causes of failure, the most frequent first.
        num_causes: How many there are.
    """

    name: PhaseName
    totals: Totals
    started_at: float | None
    ended_at: float | None
    first_step: int | None
    last_step: int | None
    is_success_logged: bool
    environments: tuple[EnvironmentFigures, ...]
    bins: tuple[Bin, ...]
    tasks: tuple[TaskFigures, ...]
    num_tasks: int
    causes: tuple[Cause, ...]
    num_causes: int


def phase_of(episode: Episode) -> PhaseName:
    """Tell what an episode belongs to: without a training step it is an evaluation's."""
    return "evaluation" if episode.is_evaluation or episode.training_step is None else "training"


def figures_of(episodes: Iterable[Episode], log: Log | None = None) -> tuple[Phase, ...]:
    """Work out all figures.

    Args:
        episodes: All episodes of a run.
        log: What its trainer's log says.

    Returns:
        Training, then evaluation, those of them that have episodes.
    """
    own: dict[PhaseName, list[Episode]] = {"training": [], "evaluation": []}
    for episode in episodes:
        own[phase_of(episode)].append(episode)
    logs: dict[PhaseName, Log] = {"training": log or Log(), "evaluation": Log()}
    return tuple(_phase(name, played, logs[name]) for name, played in own.items() if played)


def totals_of(episodes: Sequence[Episode]) -> Totals:
    """Add episodes up; successes are rewards above 0."""
    reward = spread_of(episode.reward for episode in episodes)
    return Totals(
        len(episodes),
        len({episode.task_id for episode in episodes}),
        status_counts(episodes),
        sum(episode.reward is not None for episode in episodes),
        reward,
        success_share(episodes),
        sum(episode.num_completion_tokens for episode in episodes),
        sum(episode.num_tool_calls for episode in episodes),
        sum(episode.num_tool_failures for episode in episodes),
        sum(episode.num_retries for episode in episodes),
        latency_of(episode.open_s for episode in episodes),
        latency_of(step.duration_s for episode in episodes for step in episode.steps),
    )


def _phase(name: PhaseName, episodes: Sequence[Episode], log: Log) -> Phase:
    own: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        own[episode.environment].append(episode)
    steps = [episode.training_step for episode in episodes if episode.training_step is not None]
    is_logged = bool(steps) and log.covers(own, max(steps))
    bins = bins_of(steps)
    curves = curves_of(episodes, bins, log, is_success_logged=is_logged)
    totals = totals_of(episodes)
    environments = []
    for each in sorted(own):
        of_own, asked = totals_of(own[each]), asked_share(each, log.entries)
        if is_logged:
            of_own = replace(of_own, success=logged_success([each], log.entries))
        shares = share_of(len(own[each]), len(episodes)), share_of(of_own.tokens, totals.tokens)
        environments.append(EnvironmentFigures(each, of_own, *shares, asked, curves.get(each, ())))
    if is_logged:
        totals = replace(totals, success=logged_success(own, log.entries))
    tasks, causes = _tasks(episodes), causes_of(episodes)
    times = [times for episode in episodes if (times := _times(episode)) is not None]
    return Phase(
        name,
        totals,
        min((start for start, _ in times), default=None),
        max((end for _, end in times), default=None),
        min(steps, default=None),
        max(steps, default=None),
        is_logged,
        tuple(environments),
        bins,
        tasks[:MAX_ROWS],
        len(tasks),
        causes[:MAX_ROWS],
        len(causes),
    )


def _tasks(episodes: Iterable[Episode]) -> tuple[TaskFigures, ...]:
    own: dict[tuple[str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        own[episode.environment, episode.task_id].append(episode)
    tasks = [
        TaskFigures(
            environment,
            task_id,
            len(played),
            status_counts(played),
            spread_of(episode.reward for episode in played),
            success_share(played),
            sum(episode.num_tool_calls for episode in played) / len(played),
            sum(episode.num_completion_tokens for episode in played) / len(played),
        )
        for (environment, task_id), played in own.items()
    ]
    return tuple(sorted(tasks, key=_difficulty))


def _difficulty(task: TaskFigures) -> tuple[float, float, str, int, str]:
    """Order tasks: the least successful first, one that nobody could play last, else by their places."""
    reward = math.inf if task.reward is None else task.reward.mean
    index = task.task_id.rpartition("/")[2]
    place = int(index) if index.isdecimal() and len(index) < _MOST_DIGITS else -1
    return (math.inf if task.success is None else task.success, reward, task.environment, place, task.task_id)


def _times(episode: Episode) -> tuple[float, float] | None:
    """Return when an episode began, and when its last tool call was over."""
    start = finite(episode.started_at)
    if not start or start < 0:
        return None
    lasted = (finite(episode.open_s), *(finite(step.duration_s) for step in episode.steps))
    return start, start + sum(seconds or 0.0 for seconds in lasted)
