"""Environments that tests serve or run in process."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from openreward.environments import Environment, JSONObject, Split, TextBlock, ToolOutput, tool
from openreward.environments.types import ListToolsOutput, ToolSpec
from pydantic import BaseModel


class EchoParams(BaseModel):
    text: str


class Word(BaseModel):
    word: str


class Base(Environment):
    """Three tasks; counts what happens to it."""

    events: ClassVar[list[str]] = []
    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "hello"}, {"target": "world"}, {"target": "moon"}]

    @classmethod
    def list_splits(cls) -> list[Split | str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return list(cls.tasks) if split == "train" else list(cls.tasks[:1])

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Echo '{self.task_spec['target']}' to win.")]


def output(text: str, reward: float | None = None, *, finished: bool = False, **metadata: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished, metadata=metadata or None)


class EchoEnvironment(Base):
    """The guide's environment."""

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Submit a string. Reward 1.0 + finished if it matches the target.

        Args:
            text: The string to echo back.
        """
        correct = params.text == self.task_spec["target"]
        return output("match" if correct else "no match", 1.0 if correct else 0.0, finished=correct)


class Steps(BaseModel):
    n: int = 1


class ClimbEnvironment(Base):
    """Dense step rewards, and a second tool named like the other environment's."""

    def __init__(self, task_spec: JSONObject, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec)
        self.height = 0
        self.secrets = secrets or {}

    def setup(self) -> None:
        self.events.append("setup")

    def teardown(self) -> None:
        self.events.append("teardown")

    @tool
    def up(self, params: Steps) -> ToolOutput:
        """Go up."""
        self.height += params.n
        return output(str(self.height), self.height / 4, finished=self.height >= 4, height=self.height)

    @tool
    def echo(self, params: EchoParams) -> ToolOutput:
        """Say something; nothing comes of it."""
        return output(params.text)

    @tool
    def secret(self, params: Word) -> ToolOutput:
        """Say what a secret is."""
        return output(self.secrets.get(params.word, "no such secret"))

    @tool
    def indented(self) -> ToolOutput:
        """Show a long indented text."""
        return output(" " * 5_000 + "x" + "\n        y" * 2_000)

    @tool
    def breaks(self) -> ToolOutput:
        """Break."""
        raise ValueError("the tool broke")

    @tool
    async def cancels(self) -> ToolOutput:
        """Get cancelled."""
        raise asyncio.CancelledError

    @tool
    async def hangs(self) -> ToolOutput:
        """Never come back."""
        await asyncio.sleep(3600)
        return output("never")


class OneEnvironment(Base):
    """First of two on one server."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "one", "level": 1}]

    @tool
    def one(self) -> ToolOutput:
        """Win."""
        return output("one", 1.0, finished=True)


class TwoEnvironment(Base):
    """Second of two on one server; its task specs clash with the first one's."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "two", "level": "hard", "prompt": "reserved", "extra": [1]}]

    @tool
    def two(self) -> ToolOutput:
        """Win."""
        return output("two", 0.5, finished=True)


class LargeEnvironment(Base):
    """Too large to list: `/tasks` answers 400."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return 1_000_000

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        return {"target": str(index)}

    @tool
    def win(self) -> ToolOutput:
        """Win."""
        return output("won", 1.0, finished=True)


class EmptyEnvironment(Base):
    """Without tasks."""

    tasks: ClassVar[list[dict[str, Any]]] = []

    @tool
    def win(self) -> ToolOutput:
        """Win."""
        return output("won", 1.0, finished=True)


class BrokenSetupEnvironment(Base):
    """Its `setup()` raises for the first task."""

    def setup(self) -> None:
        if self.task_spec["target"] == "hello":
            raise RuntimeError("no sandbox left")

    @tool
    def win(self) -> ToolOutput:
        """Win."""
        return output("won", 1.0, finished=True)


class SlowEnvironment(Base):
    """Its constructor takes a second, and a tool blocks its event loop for two."""

    def __init__(self, task_spec: JSONObject, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec)
        time.sleep(1.0)

    @tool
    async def block(self) -> ToolOutput:
        """Block the event loop."""
        time.sleep(2.0)  # noqa: ASYNC251 - that is the point
        return output("done", 1.0, finished=True)


class TaskToolsEnvironment(Base):
    """A tool that only one of its tasks has."""

    @tool
    def shared(self) -> ToolOutput:
        """Look around."""
        return output("nothing")

    def list_task_tools(self) -> ListToolsOutput:
        if self.task_spec["target"] != "world":
            return ListToolsOutput(tools=[])
        return ListToolsOutput(tools=[ToolSpec(name="special", description="Win.", input_schema=None)])

    @tool(shared=False)
    def special(self) -> ToolOutput:
        """Win."""
        return output("won", 1.0, finished=True)


class LingeringEnvironment(Base):
    """Its constructor takes a second, and its tool never comes back."""

    def __init__(self, task_spec: JSONObject, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec)
        time.sleep(1.0)

    @tool
    async def hangs(self) -> ToolOutput:
        """Never come back."""
        await asyncio.sleep(3600)
        return output("never")
