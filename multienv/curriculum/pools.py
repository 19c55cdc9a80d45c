"""Decides which tasks of an environment are solved or hopeless for the policy as it is, and when those have their turn.

Flow: `tasks.TaskOrder` reports each group and asks before it hands a task out.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Final

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.permutation import place
from multienv.specs.task_rules import TaskRules

_SLACK: Final = 1e-6  # the figures are kept in single precision, and 0.9 must not fall short of a bound of 0.9


class Pools:
    """The success of each task, and the pool it puts the task in.

    Memory: nine bytes a task.

    Args:
        num_tasks: How many tasks there are.
        key: A key of `permutation.place`, for which of the resting tasks come in which pass.
        rules: Which bounds the pools have.
        expected: The success expected of each task, None for unknown; or empty.

    Attributes:
        has_solved: Whether there is a pool of solved tasks.
        has_hopeless: Whether there is a pool of hopeless ones.
        num_solved: How many tasks are solved now.
        num_hopeless: How many are hopeless now.
    """

    def __init__(self, num_tasks: int, key: int, rules: TaskRules, expected: Sequence[float | None]) -> None:
        self.has_solved = rules.solved_at is not None
        self.has_hopeless = rules.hopeless_at is not None
        self._num_tasks = num_tasks
        self._key = key
        self._rest_passes = rules.rest_passes
        self._smoothing = rules.smoothing
        self._solved_at = 2.0 if rules.solved_at is None else rules.solved_at - _SLACK
        self._hopeless_at = -1.0 if rules.hopeless_at is None else rules.hopeless_at + _SLACK
        self._expected = array("f", [nan if value is None else value for value in expected])
        self.load({})

    def rests(self, task: int, number: int) -> bool:
        """Tell whether a pass goes without a task, for it is solved or hopeless and this is not its turn.

        Args:
            task: The task's place.
            number: Number of the pass.
        """
        success = self._success[task]
        if not (success >= self._solved_at or success <= self._hopeless_at):  # nor where it is unknown, a NaN
            return False
        return (number + place(task, self._num_tasks, self._key)) % self._rest_passes != 0

    def observe(self, outcome: Outcome) -> None:
        """Take one group into its task's success, if anything of it was scored."""
        if outcome.num_scored == 0:
            return
        newest = outcome.num_successes / outcome.num_scored
        so_far = self._success[outcome.task]
        if isnan(so_far):
            so_far = newest
        self._set(outcome.task, newest + (1 - self._smoothing) * (so_far - newest))

    def figures(self) -> dict[int, float]:
        """Return the success of each task that was observed."""
        return {task: self._success[task] for task, is_observed in enumerate(self._is_observed) if is_observed}

    def load(self, figures: Mapping[int, float]) -> None:
        """Forget what was observed, and go on from such figures."""
        self._success = self._expected[:] or array("f", [nan]) * self._num_tasks
        self._is_observed = bytearray(self._num_tasks)
        self.num_solved = sum(success >= self._solved_at for success in self._success)
        self.num_hopeless = sum(success <= self._hopeless_at for success in self._success)
        for task, success in figures.items():
            self._set(task, success)

    def _set(self, task: int, success: float) -> None:
        before = self._success[task]
        self._success[task] = success
        after = self._success[task]  # as it was kept
        self.num_solved += (after >= self._solved_at) - (before >= self._solved_at)
        self.num_hopeless += (after <= self._hopeless_at) - (before <= self._hopeless_at)
        self._is_observed[task] = 1
