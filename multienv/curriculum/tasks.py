"""Decides which task of one environment comes next.

Flow: `Curriculum` asks the order of the environment whose turn it is, and reports what became of each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from multienv.curriculum.gates import Gates
from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.permutation import order_key, place
from multienv.curriculum.pools import Pools
from multienv.curriculum.saved import SavedOrder, read_order
from multienv.curriculum.strikes import Strikes
from multienv.errors import EmptyTaskListError, RoutingError, SpecError, TaskIndexError
from multienv.specs.task_rules import TaskRules

MAX_SKIPS: Final = 128
"""After so many tasks that rest or are gated, one decision looks no further."""

_NO_RULES: Final = TaskRules()
_RESTING: Final = -1  # number of the pass whose order spreads the resting tasks: one that is never walked


class TaskOrder:
    """The tasks of one environment, pass after pass, each pass in an order of its own and without replacement.

    The order of a pass is a function of seed, environment and number of the pass. Walking it, a decision skips tasks
    that are set aside, gated, or solved or hopeless and not yet due. Where a whole pass, or `MAX_SKIPS` of them in a
    row, has nothing else, the first skipped one that is not set aside is taken after all. Where every task is set
    aside, all of them are handed out again: an environment must go on.

    Memory does not grow with the number of groups: nothing per task without rules, 21 bytes a task with all of them.

    Args:
        name: Name of the environment.
        num_tasks: How many tasks it has.
        seed: The seed of the run.
        rules: Which tasks come less often.
        expected: The success expected of each task before anything was observed, None for unknown, see
            `TaskRules.expected`; or empty.
        is_shuffled: False goes through the tasks by their places in every pass.
        ids: The tasks' ids by place, for warnings; empty to name them by place.

    Raises:
        EmptyTaskListError: There are no tasks.
        SpecError: `expected` is for another number of tasks.

    Example:
        >>> order = TaskOrder("seta", num_tasks=4, seed=0)
        >>> order.next(4), order.next(4)
        ([3, 2, 0, 1], [0, 3, 1, 2])
        >>> order.metrics()
        {'passes': 2.0, 'set_aside': 0.0}
    """

    def __init__(
        self,
        name: str,
        num_tasks: int,
        seed: int,
        rules: TaskRules = _NO_RULES,
        expected: Sequence[float | None] = (),
        *,
        is_shuffled: bool = True,
        ids: Sequence[str] = (),
    ) -> None:
        if num_tasks < 1:
            raise EmptyTaskListError(
                f"environment {name!r} has {num_tasks} tasks; accepted: at least one. Choose another split or indices",
                environment=name,
            )
        if expected and len(expected) != num_tasks:
            raise SpecError(
                f"environment {name!r}: expected is for {len(expected)} tasks; accepted: one entry for each of the "
                f"{num_tasks} tasks, or none at all",
                environment=name,
            )
        self._name = name
        self._num_tasks = num_tasks
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._pools = Pools(num_tasks, self._key(_RESTING), rules, expected) if rules.has_pools else None
        self._gates = None if rules.gate_after is None else Gates(num_tasks, rules.gate_after, rules.gate_passes)
        self._strikes = None if rules.set_aside_after is None else Strikes(name, rules.set_aside_after, ids)
        self._begin(0, 0)

    @property
    def set_aside(self) -> tuple[int, ...]:
        """Places of the tasks that are left out for the rest of the run."""
        return tuple(sorted(self._strikes.set_aside)) if self._strikes is not None else ()

    def next(self, num: int = 1) -> list[int]:
        """Return the next tasks' places, from 0; a task may come twice where two passes meet."""
        return [self._choose() for _ in range(num)]

    def observe(self, outcome: Outcome) -> None:
        """Take in what became of one group.

        Raises:
            RoutingError: The group belongs to another environment.
            TaskIndexError: There is no such task.
        """
        if outcome.environment != self._name:
            raise RoutingError(
                f"an outcome of environment {outcome.environment!r} was reported to the tasks of {self._name!r}; "
                "accepted: its own outcomes",
                environment=self._name,
            )
        if not 0 <= outcome.task < self._num_tasks:
            raise TaskIndexError(
                f"environment {self._name!r}: an outcome is of the task at place {outcome.task}; accepted: 0 to "
                f"{self._num_tasks - 1}",
                environment=self._name,
            )
        if self._pools is not None:
            self._pools.observe(outcome)
        if self._gates is not None:
            self._gates.observe(outcome, self._pass)
        if self._strikes is not None:
            self._strikes.observe(outcome)

    def metrics(self) -> dict[str, float]:
        """Return how many passes were walked, and how many tasks each rule that is on holds back now."""
        figures: dict[str, float] = {"passes": self._pass + self._position / self._num_tasks}
        if self._strikes is not None:
            figures["set_aside"] = float(len(self._strikes.set_aside))
        if self._gates is not None:
            figures["gated"] = float(self._gates.num_shut(self._pass))
        if self._pools is not None and self._pools.has_solved:
            figures["solved"] = float(self._pools.num_solved)
        if self._pools is not None and self._pools.has_hopeless:
            figures["hopeless"] = float(self._pools.num_hopeless)
        return figures

    def state_dict(self, ids: Sequence[str] | None = None) -> dict[str, Any]:
        """Return all there is to go on from, as plain JSON.

        Args:
            ids: The tasks' ids by place, so that figures find their tasks again where the list of tasks has changed;
                None to know the tasks by place.

        Raises:
            SpecError: `ids` is for another number of tasks.
        """
        self._check(ids)
        pools, gates, strikes = self._pools, self._gates, self._strikes
        return SavedOrder(
            num_tasks=self._num_tasks,
            number=self._pass,
            position=self._position,
            num_scored_groups=0 if strikes is None else strikes.num_scored_groups,
            set_aside=self.set_aside,
            strikes={} if strikes is None else strikes.figures(),
            success={} if pools is None else pools.figures(),
            gates={} if gates is None else gates.figures(),
        ).as_json(str if ids is None else ids.__getitem__)

    def load_state_dict(self, state: Mapping[str, Any], ids: Sequence[str] | None = None) -> None:
        """Go on from a state, whatever was handed out or observed before.

        Args:
            state: What `state_dict` returned.
            ids: The ids of the tasks there are now; figures of other tasks are dropped, and so are those of rules that
                are off now. Where the number of tasks has changed, a new pass begins.

        Raises:
            CheckpointError: The state is not that of an order of tasks; nothing was changed.
            SpecError: `ids` is for another number of tasks.
        """
        self._check(ids)
        find = self._find if ids is None else {name: task for task, name in enumerate(ids)}.get
        saved = read_order(state, self._name, find)
        if saved.num_tasks == self._num_tasks:
            self._begin(saved.number, saved.position)
        else:
            self._begin(saved.number + 1, 0)
        if self._pools is not None:
            self._pools.load(saved.success)
        if self._gates is not None:
            self._gates.load(saved.gates, self._pass)
        if self._strikes is not None:
            self._strikes.load(saved.strikes, saved.set_aside, saved.num_scored_groups)

    def _choose(self) -> int:
        set_aside: set[int] = self._strikes.set_aside if self._strikes is not None else set()
        if len(set_aside) == self._num_tasks:
            return self._walk()
        first = None
        num_skipped = 0
        # Wherever a walk begins, two passes' worth of tasks holds a whole pass, and that a task not set aside.
        while first is None or num_skipped < min(MAX_SKIPS, 2 * self._num_tasks):
            task = self._walk()
            if task not in set_aside:
                if not self._is_held_back(task):
                    return task
                first = task if first is None else first
            num_skipped += 1
        return first

    def _walk(self) -> int:
        if self._position == self._num_tasks:
            self._begin(self._pass + 1, 0)
        position = self._position
        task = place(position, self._num_tasks, self._pass_key) if self._is_shuffled else position
        self._position += 1
        return task

    def _begin(self, number: int, position: int) -> None:
        self._pass = number
        self._position = position
        self._pass_key = self._key(number)

    def _key(self, number: int) -> int:
        return order_key(self._seed, self._name, number)

    def _is_held_back(self, task: int) -> bool:
        if self._gates is not None:
            if self._gates.is_shut(task, self._pass):
                return True
            if self._gates.is_trial(task, self._pass):
                return False
        return self._pools is not None and self._pools.rests(task, self._pass)

    def _check(self, ids: Sequence[str] | None) -> None:
        if ids is not None and len(ids) != self._num_tasks:
            raise SpecError(
                f"environment {self._name!r}: there are ids for {len(ids)} tasks; accepted: one for each of the "
                f"{self._num_tasks} tasks, or None",
                environment=self._name,
            )

    def _find(self, name: str) -> int | None:
        """Return the place of a task that is known by its place, or None where there is none."""
        is_place = name.isascii() and name.isdecimal() and int(name) < self._num_tasks
        return int(name) if is_place else None
