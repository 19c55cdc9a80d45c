"""Decides how long a task that is solved again and again is left out.

Flow: `tasks.TaskOrder` reports each group and asks before it hands a task out.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from multienv.curriculum.outcomes import Outcome


class Gates:
    """A gate before each task: shut from the pass after it was solved often enough, open again after a while.

    Invariant: a gate is shut for at most `num_passes` passes in a row, and the pass after those has its task in any
    case.

    Memory: eight bytes a task.

    Args:
        num_tasks: How many tasks there are.
        after: Groups in a row that must have solved a task.
        num_passes: Passes it is then left out.
    """

    def __init__(self, num_tasks: int, after: int, num_passes: int) -> None:
        self._num_tasks = num_tasks
        self._after = after
        self._num_passes = num_passes
        self.load({}, 0)

    def is_shut(self, task: int, number: int) -> bool:
        """Tell whether a pass goes without a task.

        Args:
            task: The task's place.
            number: Number of the pass.
        """
        return 0 < self._opens[task] - number <= self._num_passes

    def is_trial(self, task: int, number: int) -> bool:
        """Tell whether a pass has a task in any case: it is tried again, or will be left out from the next pass on."""
        return self._opens[task] in (number, number + self._num_passes + 1) and self._opens[task] > 0

    def observe(self, outcome: Outcome, number: int) -> None:
        """Count one group, if anything of it was scored.

        Args:
            outcome: What became of the group.
            number: Number of the pass that is being walked; gates shut and open with the next one.
        """
        if outcome.num_scored == 0:
            return
        self._forget(number)
        task = outcome.task
        is_shut = self.is_shut(task, number)
        if outcome.num_successes < outcome.num_scored:
            self._streaks[task] = 0
            if self._opens[task] > number:  # a group drawn before it shut, or for want of another: not solved after all
                self._open(task, number + 1 if is_shut else number)
            return
        self._streaks[task] = min(self._streaks[task] + 1, self._after)
        if self._streaks[task] == self._after and not is_shut:  # a group drawn before it shut makes it last no longer
            self._open(task, number + self._num_passes + 1)

    def num_shut(self, number: int) -> int:
        """Count the tasks that are left out in this pass, or from the next one on."""
        self._forget(number)
        return self._num_by_opening.total()

    def figures(self) -> dict[int, list[int]]:
        """Return, for each task with any, the groups in a row that solved it and the pass in which its gate opens."""
        pairs = enumerate(zip(self._streaks, self._opens, strict=True))
        return {task: [streak, opens] for task, (streak, opens) in pairs if streak or opens}

    def load(self, figures: Mapping[int, Sequence[int]], number: int) -> None:
        """Forget what was observed, and go on from such figures in a pass; no gate lasts longer than the rules say."""
        self._streaks = array("i", [0]) * self._num_tasks
        self._opens = array("i", [0]) * self._num_tasks  # the pass that tries the task again; 0 before the first time
        self._num_by_opening: Counter[int] = Counter()
        for task, (streak, opens) in figures.items():
            self._streaks[task] = min(streak, self._after)
            self._open(task, min(opens, number + self._num_passes + 1))

    def _open(self, task: int, number: int) -> None:
        self._num_by_opening[self._opens[task]] -= 1
        self._opens[task] = number
        self._num_by_opening[number] += 1

    def _forget(self, number: int) -> None:
        """Drop the counts of gates that have opened."""
        for opens in [opens for opens in self._num_by_opening if opens <= number]:
            del self._num_by_opening[opens]
