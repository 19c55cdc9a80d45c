"""Decides what an order of tasks looks like in a checkpoint, and refuses what cannot be one.

Flow: `tasks.TaskOrder` ↔ here ↔ the curriculum's checkpoint, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from multienv.errors import CheckpointError

_KEYS: Final = ("num_tasks", "pass", "position", "num_scored_groups", "set_aside", "strikes", "success", "gates")
_LIMIT: Final = 2**30  # what the counters of `Gates` can hold, with room for a gate

_Figures = TypeVar("_Figures")


@dataclass(frozen=True, slots=True)
class SavedOrder:
    """All an order of tasks goes on from; tasks by place.

    Attributes:
        num_tasks: How many tasks there were.
        number: Number of the pass.
        position: How much of the pass was walked.
        num_scored_groups: As in `Strikes`.
        set_aside: Places of the tasks that were set aside.
        strikes: As in `Strikes.figures`.
        success: As in `Pools.figures`.
        gates: As in `Gates.figures`.
    """

    num_tasks: int
    number: int
    position: int
    num_scored_groups: int
    set_aside: Sequence[int]
    strikes: Mapping[int, Sequence[int]]
    success: Mapping[int, float]
    gates: Mapping[int, Sequence[int]]

    def as_json(self, name: Callable[[int], str]) -> dict[str, Any]:
        """Return it as plain JSON.

        Args:
            name: From a task's place to what it is known by in the checkpoint.
        """
        return {
            "num_tasks": self.num_tasks,
            "pass": self.number,
            "position": self.position,
            "num_scored_groups": self.num_scored_groups,
            "set_aside": [name(task) for task in self.set_aside],
            "strikes": {name(task): list(figures) for task, figures in self.strikes.items()},
            "success": {name(task): success for task, success in self.success.items()},
            "gates": {name(task): list(figures) for task, figures in self.gates.items()},
        }


def read_order(state: Any, environment: str, find: Callable[[str], int | None]) -> SavedOrder:
    """Read what `SavedOrder.as_json` returned.

    Args:
        state: The JSON.
        environment: Name of the environment, for errors.
        find: From what a task is known by to its place now, or None where there is no such task any more.

    Raises:
        CheckpointError: It is nothing of that kind.
    """
    reader = _Reader(environment, find)
    reader.check(isinstance(state, Mapping), "the state", state, "what state_dict returned")
    reader.check(state.keys() == set(_KEYS), "the keys", sorted(map(str, state)), ", ".join(_KEYS))
    num_tasks = reader.count("num_tasks", state["num_tasks"])
    position = reader.count("position", state["position"])
    reader.check(position <= num_tasks, "position", position, f"at most the number of tasks, {num_tasks}")
    set_aside = state["set_aside"]
    is_list = isinstance(set_aside, list) and all(isinstance(name, str) for name in set_aside)
    reader.check(is_list, "set_aside", set_aside, "a list of tasks")
    places = [find(name) for name in set_aside]
    return SavedOrder(
        num_tasks,
        reader.count("pass", state["pass"]),
        position,
        reader.count("num_scored_groups", state["num_scored_groups"]),
        [task for task in places if task is not None],
        reader.by_place("strikes", state["strikes"], reader.counts),
        reader.by_place("success", state["success"], reader.success),
        reader.by_place("gates", state["gates"], reader.counts),
    )


class _Reader:
    """Checks one value after the other, and says which one does not fit."""

    def __init__(self, environment: str, find: Callable[[str], int | None]) -> None:
        self._environment = environment
        self._find = find

    def check(self, is_right: object, what: str, found: Any, accepted: str) -> None:
        if not is_right:
            raise CheckpointError(
                f"the checkpoint of environment {self._environment!r} does not fit: {what} is {found!r:.200}; "
                f"accepted: {accepted}. Resume from a checkpoint of the same version, or start afresh",
                environment=self._environment,
            )

    def count(self, what: str, value: Any) -> int:
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LIMIT
        self.check(is_count, what, value, "a count")
        return int(value)

    def counts(self, what: str, value: Any) -> tuple[int, ...]:
        self.check(isinstance(value, list) and len(value) == 2, what, value, "two counts")  # noqa: PLR2004 - a pair
        return tuple(self.count(what, number) for number in value)

    def success(self, what: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        self.check(is_number and 0 <= value <= 1, what, value, "a number from 0 to 1")
        return float(value)

    def by_place(self, what: str, value: Any, read: Callable[[str, Any], _Figures]) -> dict[int, _Figures]:
        is_mapping = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
        self.check(is_mapping, what, value, "a mapping from tasks")
        figures = {name: read(f"{what} of {name!r}", found) for name, found in value.items()}
        places = {name: self._find(name) for name in figures}
        return {task: figures[name] for name, task in places.items() if task is not None}
