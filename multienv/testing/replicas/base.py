"""Decides what all replicas share: tasks by index, a file tree per session, and a latency that can be set.

Flow: the SDK, or the in-process sessions, make one `Replica` per session.
"""
# The SDK carries no types, so its class and its decorators are Any to mypy.
# mypy: allow-subclassing-any, allow-untyped-decorators

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from openreward.environments import Environment, JSONObject, Split, TextBlock, ToolOutput

from multienv.testing.replicas.assignments import make_assignment, make_task_spec
from multienv.testing.replicas.tree import FileTree, TreeError

SPLIT = "train"


class Replica(Environment):
    """An offline stand-in for a real environment.

    Attributes:
        preset_name: The preset of the real one.
        num_tasks_per_split: How many tasks it has.
        latency_s: How long the start of a session takes, and each tool call.
    """

    preset_name: ClassVar[str]
    num_tasks_per_split: ClassVar[int] = 48
    latency_s: ClassVar[float] = 0.0

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self._assignment = make_assignment(self.preset_name, self.task_spec)
        self._tree = FileTree(self._assignment.folder, self._assignment.files)

    async def setup(self) -> None:
        """Take as long as a start takes."""
        await asyncio.sleep(self.latency_s)

    def get_prompt(self) -> list[TextBlock]:
        """Say what is to be done, in one block."""
        return [TextBlock(text=self._assignment.prompt)]

    @classmethod
    def list_splits(cls) -> list[Split | str]:
        """List the splits: `train` is the only one."""
        return [Split(name=SPLIT, type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split."""
        return [cls._task(index) for index in range(cls._num_tasks(split))]

    # What follows is the SDK's own by way of a cache on the class, which a subclass with another number would inherit.

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        """Count the tasks of a split."""
        return cls._num_tasks(split)

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        """Return one task."""
        return cls._task(range(cls._num_tasks(split))[index])

    @classmethod
    async def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[JSONObject]:
        """Return the tasks of a range."""
        return [cls._task(index) for index in range(cls._num_tasks(split))[start:stop]]

    @classmethod
    def _num_tasks(cls, split: str) -> int:
        return cls.num_tasks_per_split if split == SPLIT else 0

    @classmethod
    def _task(cls, index: int) -> JSONObject:
        task_spec: JSONObject = make_task_spec(cls.preset_name, index)
        return task_spec

    async def _told(self, act: Callable[[], str | None]) -> ToolOutput:
        """Do something with the file tree and tell how it went, without a reward."""
        await asyncio.sleep(self.latency_s)
        try:
            text = act()
        except TreeError as error:
            text = f"error: {error}"
        return _output("ok" if text is None else text or "nothing")

    async def _graded(self, reward: Callable[[float], float]) -> ToolOutput:
        """Run the checks and end the episode."""
        await asyncio.sleep(self.latency_s)
        passed = self._assignment.passed(self._tree.files)
        score = self._assignment.score(self._tree.files)
        return _output(f"passed {sum(passed)} of {len(passed)}", reward=reward(score), finished=True)


def _output(text: str, **outcome: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **outcome)
