"""Decides what the curriculum is told of a group: counts and sums, equal on all ranks, nothing of how they came about.

Flow: `training` gathers the rollouts of a batch from all ranks → one `Outcome` a group → `Curriculum.observe`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pick:
    """A task chosen for one group.

    Attributes:
        environment: Name of the environment.
        task: The task's place in the environment's list of tasks, from 0.
    """

    environment: str
    task: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one group.

    Attributes:
        environment: Name of the environment.
        task: The task's place in the environment's list of tasks.
        num_rollouts: Rollouts of the group.
        num_finished: Those whose environment said that the episode is over.
        num_failed: Those that infrastructure broke.
        num_refused: Those that were not started, for the environment was known to be down.
        num_scored: Those with a reward.
        num_successes: Those that count as a success by the environment's rule.
        num_nonzero: Those with an advantage other than zero.
        sum_abs_advantage: Sum of |advantage| over the scored ones, as TRL normalised it.
        num_tokens: Tokens that are trained on, of all rollouts.
    """

    environment: str
    task: int
    num_rollouts: int
    num_finished: int = 0
    num_failed: int = 0
    num_refused: int = 0
    num_scored: int = 0
    num_successes: int = 0
    num_nonzero: int = 0
    sum_abs_advantage: float = 0.0
    num_tokens: int = 0

    @property
    def is_lost(self) -> bool:
        """True where infrastructure ended every rollout: the group says nothing about the policy."""
        return self.num_failed + self.num_refused >= self.num_rollouts
