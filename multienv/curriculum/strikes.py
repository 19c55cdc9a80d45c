"""Decides which tasks are broken: those whose sessions keep failing while the rest of their environment works.

Flow: `tasks.TaskOrder` reports each group, and hands out no task that was set aside while there is another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from multienv.curriculum.outcomes import Outcome

logger = logging.getLogger(__name__)


class Strikes:
    """Failed groups in a row of each task that has any.

    Invariant: between two strikes of a task the environment had a group of which something was scored, so an outage is
    at most one strike of each task.

    Args:
        name: Name of the environment, for the warning.
        limit: With so many strikes a task is set aside, at least 2.
        ids: The tasks' ids by place, for the warning; empty to name them by place.

    Attributes:
        set_aside: Places of the tasks that were set aside.
        num_scored_groups: Groups of the environment of which something was scored.
    """

    def __init__(self, name: str, limit: int, ids: Sequence[str] = ()) -> None:
        self._name = name
        self._ids = ids
        self._limit = limit
        self._strikes: dict[int, tuple[int, int]] = {}  # how many, and how many groups had been scored at the last one
        self.set_aside: set[int] = set()
        self.num_scored_groups = 0

    def observe(self, outcome: Outcome) -> None:
        """Count one group; refused rollouts say nothing about a task, nor does a group that failed in part."""
        if outcome.num_scored:
            self.num_scored_groups += 1
            self._strikes.pop(outcome.task, None)
        elif 0 < outcome.num_rollouts == outcome.num_failed and outcome.task not in self.set_aside:
            num, scored_before = self._strikes.get(outcome.task, (0, -1))
            if self.num_scored_groups > scored_before:
                self._strikes[outcome.task] = (num + 1, self.num_scored_groups)
                if num + 1 >= self._limit:
                    self._set_aside(outcome.task)

    def _set_aside(self, task: int) -> None:
        del self._strikes[task]
        self.set_aside.add(task)
        logger.warning(
            "environment %r: task %s is left out for the rest of the run: %d groups in a row ended with every session "
            "failed while other tasks were scored; see why its sessions fail, or leave it out with exclude",
            self._name,
            repr(self._ids[task]) if self._ids else f"{task}, counted from 0,",
            self._limit,
        )

    def figures(self) -> dict[int, list[int]]:
        """Return, for each task with strikes, how many, and how many groups had been scored at the last one."""
        return {task: list(figures) for task, figures in self._strikes.items()}

    def load(self, figures: Mapping[int, Sequence[int]], set_aside: Iterable[int], num_scored_groups: int) -> None:
        """Forget what was observed, and go on from such figures."""
        self._strikes = {task: (num, scored) for task, (num, scored) in figures.items()}
        self.set_aside = set(set_aside)
        self.num_scored_groups = num_scored_groups
