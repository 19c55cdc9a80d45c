"""Decides what a rollout of the demo is worth, and remembers every one of them.

Flow: the trainer calls the reward functions made here → `report` sums up, `run` writes `rollouts.jsonl`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from multienv.types import Adapter, EpisodeStatus

Reduction = Callable[[Sequence[float]], float]
"""From the step rewards of an episode, at least one, to its episode reward."""


class TrainerState(Protocol):
    """What a reward function reads off TRL's `trainer_state`."""

    global_step: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """What became of one rollout.

    Attributes:
        step: Optimizer steps done before it was sampled.
        environment: Name of its environment.
        task_id: Which task it attempted.
        status: How its episode ended.
        num_calls: Tool calls that reached the environment.
        reward: Its reward, None if infrastructure failed.
    """

    step: int
    environment: str
    task_id: str
    status: EpisodeStatus
    num_calls: int
    reward: float | None


def last(step_rewards: Sequence[float]) -> float:
    """Return the last step reward."""
    return step_rewards[-1]


def total(step_rewards: Sequence[float]) -> float:
    """Return the sum of the step rewards.

    Example:
        >>> total([0.5, -0.5, 0.5])
        0.5
    """
    return sum(step_rewards)


class Scoreboard:
    """Every rollout of a run, in the order in which they were scored."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def reward_function(self, reduction: Reduction) -> Callable[..., list[float | None]]:
        """Make the reward function of one environment.

        An episode in which the policy earned no step reward counts 0.0: if it went unscored, a policy that calls no
        tool at all would never learn better. A failed episode stays None: the policy is not to blame.

        Args:
            reduction: How the step rewards of an episode become one number.

        Returns:
            A TRL reward function for the rows of one environment.
        """

        def scored_or_zero(
            environments: Sequence[Adapter], trainer_state: TrainerState, **_: Any
        ) -> list[float | None]:
            rewards = [_reward(adapter, reduction) for adapter in environments]
            for adapter, reward in zip(environments, rewards, strict=True):
                self._record(adapter, trainer_state.global_step, reward)
            return rewards

        return scored_or_zero

    def write(self, path: Path) -> None:
        """Write one line of JSON per rollout; the file appears whole or not at all.

        Args:
            path: Where; replaced if it exists.
        """
        partial = path.with_name(path.name + ".partial")
        _write_lines(partial, (json.dumps(asdict(rollout)) for rollout in self.rollouts))
        os.replace(partial, path)  # noqa: PTH105 - says what it does, unlike Path.replace

    def _record(self, adapter: Adapter, step: int, reward: float | None) -> None:
        episode = adapter.episode
        self.rollouts.append(
            Rollout(step, episode.environment, episode.task_id, episode.status, len(episode.steps), reward)
        )


def _reward(adapter: Adapter, reduction: Reduction) -> float | None:
    if not adapter.episode.is_scorable:
        return None
    step_rewards = [reward for reward in adapter.rewards if reward is not None]
    return reduction(step_rewards) if step_rewards else 0.0


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
