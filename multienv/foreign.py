"""Decides how a foreign environment takes part in a mixture: its rows, its factory, its rewards, its end.

Flow: `MultiEnvSpec` makes one `ForeignEnvironment` per `ForeignSpec` and puts it beside the ORS environments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from multienv.dataset import Messages, TaskList
from multienv.errors import OrderError, SpecError
from multienv.rewards import ForeignRows, LogColumns, foreign_reward
from multienv.router import ForeignAdapter, ForeignInstances, instance_of, make_foreign_factory, owns_reward
from multienv.specs import ForeignSpec
from multienv.specs.foreign import EVAL_SPLIT, TRAIN_SPLIT
from multienv.types import Column, Task


class ForeignEnvironment:
    """One environment of a mixture that is no ORS environment.

    Args:
        name: Its name in the mixture.
        spec: Its declaration.
    """

    def __init__(self, name: str, spec: ForeignSpec) -> None:
        self.name = name
        self.spec = spec
        self._instances: ForeignInstances | None = None
        self._is_closed = False

    @property
    def instances(self) -> ForeignInstances:
        """What makes and closes its instances."""
        if self._instances is None:
            self._instances = ForeignInstances(self.name, self.spec.environment_factory)
            if self._is_closed:
                self._instances.close(0.0)
        return self._instances

    @cached_property
    def factory(self) -> type[ForeignAdapter]:
        """The factory of its adapters.

        Raises:
            SpecError: What the user's factory makes is no TRL environment, or does not take its rows.
        """
        return make_foreign_factory(self.spec, self.instances)

    def task_list(self, system_prompt: str | None) -> TaskList:
        """Return its rows for the mixture's dataset.

        Args:
            system_prompt: The mixture's system message.

        Raises:
            SpecError: A prompt is neither a string nor chat messages of text.
        """
        return self._as_list(TRAIN_SPLIT, self.spec.rows(), system_prompt)

    def evaluation_list(self, system_prompt: str | None) -> TaskList | None:
        """Return its rows to evaluate on; None for none. Args and errors are those of `task_list`."""
        dataset = self.spec.eval_dataset
        return None if dataset is None else self._as_list(EVAL_SPLIT, [dict(row) for row in dataset], system_prompt)

    def _as_list(self, split: str, rows: Sequence[Mapping[str, Any]], system_prompt: str | None) -> TaskList:
        option = "train_dataset" if split == TRAIN_SPLIT else "eval_dataset"
        return TaskList(
            self.name,
            split,
            [Task(index, _json_part(row)) for index, row in enumerate(rows)],
            self.spec.system_prompt if self.spec.system_prompt is not None else system_prompt,
            prompts=[_messages(self.name, option, index, row.get(Column.PROMPT)) for index, row in enumerate(rows)],
        )

    def _row(self, index: int, task_id: str | None) -> dict[str, Any]:
        is_evaluation = task_id is not None and task_id.startswith(f"{self.name}/{EVAL_SPLIT}/")
        return self.spec.eval_row(index) if is_evaluation else self.spec.row(index)

    def rewards(self, known: Sequence[str], log_columns: LogColumns) -> list[Callable[..., Any]]:
        """Return its reward functions, each silent about other environments' rows.

        One alone carries the environment's name; where `get_reward` has taken it, or there are several, the functions
        are called `<environment>/<function>`.
        """
        functions = self.spec.reward_funcs
        is_alone = len(functions) == 1 and not owns_reward(self.instances.environment_class)
        rows = ForeignRows(self.name, known, self._row, instance_of)
        return [foreign_reward(function, rows, log_columns, is_alone=is_alone) for function in functions]

    def close(self, patience_s: float) -> None:
        """Close its instances, and make no new ones. An environment that was never used is not even read."""
        self._is_closed = True
        if self._instances is not None:
            self._instances.close(patience_s)

    def check_open(self) -> None:
        """Check that it was not closed.

        Raises:
            OrderError: It was.
        """
        if self._is_closed:
            raise OrderError(f"environment {self.name!r} is closed; make a new MultiEnvSpec", environment=self.name)


def _json_part(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that can be written as JSON; the others reach the environment all the same."""
    return {key: value for key, value in row.items() if key != Column.PROMPT and _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _messages(name: str, option: str, index: int, prompt: Any) -> Messages:
    """Return a row's prompt as chat messages; members that its dataset filled up with None are left out.

    Raises:
        SpecError: It is neither a string nor chat messages of text.
    """
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and all(_is_text(message) for message in prompt):
        return [{key: value for key, value in message.items() if value is not None} for message in prompt]
    raise SpecError(
        f"environment {name!r}: row {index} of {option} has the prompt {repr(prompt)[:200]}; accepted: a "
        "string, or chat messages with a role and a text as content. Blocks, such as images, are returned by reset",
        environment=name,
    )


def _is_text(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    )
