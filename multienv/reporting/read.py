"""Decides what a record says: the episodes of a run, those of all ranks in order, and what another rule makes of them.

Flow: the files that `record` writes → `read_episodes` → the user, or `rescore`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from multienv.errors import RecordError, nearest
from multienv.reporting.lines import Line
from multienv.reporting.record import file_of, parsed
from multienv.rewards import episode_reward
from multienv.specs import RewardSpec
from multienv.types import Episode


def read_episodes(directory: str | os.PathLike[str], run: str | None = None) -> list[Episode]:
    """Read the episodes that a run has played. It may still be running.

    Args:
        directory: The trainer's output directory.
        run: Which run, by the `run` of its lines; None for the last one. A resumed run is one run.

    Returns:
        The episodes of all ranks by training step, an evaluation before the training of the same step, then by rank,
        then in the order of the batch. Texts are those of the record, the long ones cut.

    Raises:
        RecordError: There is no record, it has no such run, or a later version of this library wrote it.
    """
    if not Path(directory).is_dir():
        raise RecordError(
            f"{os.fspath(directory)!r} is no directory; give the output_dir of a run whose trainer has "
            "record_episodes=True, not a file in it"
        )
    paths = sorted(Path(directory).glob("episodes.rank*.jsonl"))
    if (first := file_of(directory, 0)).exists():
        paths.insert(0, first)
    if not paths:
        raise RecordError(
            f"{os.fspath(directory)!r} holds no episodes.jsonl; give the output_dir of a run whose trainer has "
            "record_episodes=True"
        )
    files = [_lines(path) for path in paths]
    lines = list(chain.from_iterable(files))
    runs = list(dict.fromkeys(line.run for line in lines))
    if run is None:
        newest = files[0][-1:] or lines[-1:]
        run = newest[0].run if newest else ""
    elif run not in runs:
        raise RecordError(f"no run {run!r} in {os.fspath(directory)!r}{nearest(run, runs)}; it has {', '.join(runs)}")
    return [line.episode for line in sorted(lines, key=_order) if line.run == run]


def rescore(
    episodes: Iterable[Episode], rule: RewardSpec | Mapping[str, RewardSpec] | Callable[[Episode], float | None]
) -> list[Episode]:
    """Give episodes the rewards that another rule would have given them.

    Args:
        episodes: Episodes, such as those of a record.
        rule: A `RewardSpec` for all; one for each environment by its name, where those not named keep their rewards; or
            what gives an episode's reward, None for unscored.

    Returns:
        The same episodes with their new rewards.

    Raises:
        RewardFunctionError: A function of the rule broke its contract.

    Example:
        `rescore(read_episodes("out"), {"maze": RewardSpec(reduction="total")})`
    """

    def score(episode: Episode) -> float | None:
        if not isinstance(rule, RewardSpec | Mapping):
            return rule(episode)
        own = rule if isinstance(rule, RewardSpec) else rule.get(episode.environment)
        return episode.reward if own is None else episode_reward(episode, own)

    return [replace(episode, reward=score(episode)) for episode in episodes]


def _lines(path: Path) -> list[Line]:
    return [line for _, line in parsed(path) if line is not None]


def _order(line: Line) -> tuple[int, bool, int, int]:
    episode = line.episode
    step = -1 if episode.training_step is None else episode.training_step
    return step, not episode.is_evaluation, episode.rank, line.row
