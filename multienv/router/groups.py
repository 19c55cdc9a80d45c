"""Decides how an environment scores whole groups: which rollouts are a group, who is asked, and what is left unscored.

Flow: the environment's group reward function → `score_groups` → a session of the group → one score per rollout.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multienv.errors import MultiEnvError
from multienv.router.adapter import EnvironmentAdapter
from multienv.router.dispatch import MetaEnvironment
from multienv.sessions import candidate, session_loop
from multienv.types import Episode

logger = logging.getLogger(__name__)
_LEAST = 2  # a comparison takes two


def score_groups(
    name: str,
    environments: Sequence[EnvironmentAdapter | MetaEnvironment],
    completions: Sequence[Any],
    num_generations: int | None,
    is_scorable: Callable[[Episode], bool] = operator.attrgetter("is_scorable"),
) -> list[float | None]:
    """Score one environment's rollouts group by group, all groups at once.

    Args:
        name: The environment.
        environments: What TRL holds for its rollouts, those of a group one after the other.
        completions: The chat messages of each rollout.
        num_generations: Rollouts in a group; None for as many as follow one another with the same task.
        is_scorable: Tells the episodes that infrastructure ended from others.

    Returns:
        One score per rollout; None for rollouts that infrastructure ended, for a group of fewer than two others, and
        for a group whose scoring failed.
    """
    adapters = [_adapter(environment) for environment in environments]
    candidates = [
        [row for row in rows if is_scorable(adapters[row].episode)] for rows in _groups(adapters, num_generations)
    ]
    scored = session_loop().run(_all([_score(name, adapters, completions, rows) for rows in candidates]))
    scores: list[float | None] = [None] * len(adapters)
    for by_row in scored:
        for row, score in by_row.items():
            scores[row] = score
    return scores


def _adapter(environment: EnvironmentAdapter | MetaEnvironment) -> EnvironmentAdapter:
    return environment._adapter() if isinstance(environment, MetaEnvironment) else environment  # noqa: SLF001 - this room's


def _groups(adapters: Sequence[EnvironmentAdapter], num_generations: int | None) -> list[list[int]]:
    groups: list[list[int]] = []
    for row, adapter in enumerate(adapters):
        last = groups[-1] if groups else None
        is_same = last is not None and adapters[last[0]].episode.task_id == adapter.episode.task_id
        if last is None or not is_same or len(last) == num_generations:
            groups.append([row])
        else:
            last.append(row)
    return groups


async def _score(
    name: str, adapters: Sequence[EnvironmentAdapter], completions: Sequence[Any], scorable: Sequence[int]
) -> Mapping[int, float]:
    plays = [adapters[row]._play for row in scorable]  # noqa: SLF001 - hidden from TRL, not from this room
    sessions = [play.session for play in plays if play.session is not None and not play.session.is_closing]
    if len(scorable) < _LEAST or not sessions:
        return {}
    try:
        scores = await sessions[0].score_group([candidate(completions[row]) for row in scorable])
    except MultiEnvError as error:
        task = adapters[scorable[0]].episode.task_id
        logger.warning("%s: a group could not be scored and goes without: %s", task, error)
        warned = adapters[scorable[0]]._route.warned  # noqa: SLF001 - see above
        if f"{name}/group" not in warned:
            warned.add(f"{name}/group")
            warnings.warn(
                f"a group of environment {name!r} could not be scored and goes without (further ones are logged only): "
                f"{error}",
                RuntimeWarning,
                stacklevel=2,
            )
        return {}
    return dict(zip(scorable, scores, strict=True))


async def _all(scorings: Sequence[Any]) -> list[Mapping[int, float]]:
    return list(await asyncio.gather(*scorings))
