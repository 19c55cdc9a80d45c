"""Environments that tests serve or run in process."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, ClassVar

from openreward.environments import Environment, JSONObject, Split, TextBlock, ToolOutput, terminal, tool
from openreward.environments.types import (
    ListToolsOutput,
    Message,
    ReasoningBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
)
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


class AnswerEnvironment(Base):
    """Graded by the policy's last message; `graded` says what of which task."""

    graded: ClassVar[list[tuple[str, str]]] = []

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return output("a wall", 0.125)

    @tool
    def leave(self) -> ToolOutput:
        """Leave."""
        return output("gone", 0.25, finished=True)

    @tool
    def breaks(self) -> ToolOutput:
        """Break."""
        raise ValueError("the tool broke")

    @terminal
    @tool
    async def submit(self, params: EchoParams) -> ToolOutput:
        """Grade the answer."""
        self.graded.append((self.task_spec["target"], params.text))
        if params.text == "break":
            raise ValueError("the grader broke")
        if params.text == "wait":
            await asyncio.sleep(3600)
        return output("right" if params.text == self.task_spec["target"] else "wrong", float(len(params.text)))


class StateEnvironment(Base):
    """Graded by what was done in it: its terminal tool takes nothing."""

    @tool
    def push(self) -> ToolOutput:
        """Push."""
        self.num_pushes = getattr(self, "num_pushes", 0) + 1
        return output("pushed")

    @terminal
    @tool
    def count(self) -> ToolOutput:
        """Grade by the pushes."""
        return output("counted", float(getattr(self, "num_pushes", 0)))


_numbers = itertools.count()


def shelf(**splits: list[dict[str, Any]]) -> type[Environment]:
    """An environment with these tasks; a new class each time, for the SDK keeps the tasks of a class it has served."""

    class Shelf(Environment):
        """Wins for an echo of its target."""

        @classmethod
        def list_splits(cls) -> list[Split | str]:
            return list(splits)

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return list(splits[split])

        def get_prompt(self) -> list[TextBlock]:
            return [TextBlock(text=f"Echo '{self.task_spec['target']}' to win.")]

        @tool
        def echo(self, params: EchoParams) -> ToolOutput:
            """Submit a string."""
            is_right = params.text == self.task_spec["target"]
            return output("match" if is_right else "no match", float(is_right), finished=True)

    Shelf.__qualname__ = f"Shelf{next(_numbers)}"  # which a class is known by, as where another one lives
    return Shelf


class Number(BaseModel):
    number: int


class NumberEnvironment(Base):
    """Its terminal tool takes numbers only."""

    graded: ClassVar[list[int]] = []

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return output("a wall", 0.125)

    @terminal
    @tool
    def submit(self, params: Number) -> ToolOutput:
        """Grade the answer."""
        self.graded.append(params.number)
        return output("graded", float(params.number))


class AnyArguments(BaseModel, extra="allow"):
    pass


class VariedToolsEnvironment(Base):
    """A tool that is another one in each of two tasks, and one that only the third task has."""

    calls: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []
    schemas: ClassVar[dict[str, dict[str, Any]]] = {
        "hello": {"type": "object", "properties": {"button": {"enum": ["red", "green"]}}, "required": ["button"]},
        "world": {
            "type": "object",
            "properties": {"level": {"type": "integer", "minimum": 1, "maximum": 3}},
            "required": ["level"],
        },
    }

    def list_task_tools(self) -> ListToolsOutput:
        target = self.task_spec["target"]
        if target in self.schemas:
            press = ToolSpec(name="press", description=f"Press, in {target}.", input_schema=self.schemas[target])
            return ListToolsOutput(tools=[press])
        return ListToolsOutput(tools=[ToolSpec(name="special", description="Win.", input_schema=None)])

    def noted(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        self.calls.append((self.task_spec["target"], name, arguments))
        return output(f"did {name}", 1.0)

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return self.noted("look", {})

    @tool(shared=False)
    def press(self, params: AnyArguments) -> ToolOutput:
        """Press something."""
        return self.noted("press", params.model_dump())

    @tool(shared=False)
    def special(self) -> ToolOutput:
        """Win."""
        return self.noted("special", {})


CONVERSATIONS: dict[str, list[Message]] = {
    "hello": [
        Message(role="system", blocks=[TextBlock(text="You sell tea.")]),
        Message(role="user", blocks=[TextBlock(text="Is there any?")]),
        Message(
            role="assistant",
            blocks=[
                ReasoningBlock(text="I must look."),
                TextBlock(text="One moment."),
                ToolCallBlock(id="c1", name="say", input={"text": "tea?"}),
            ],
        ),
        Message(role="user", blocks=[ToolResultBlock(tool_call_id="c1", blocks=[TextBlock(text="two cups")])]),
        Message(role="user", blocks=[TextBlock(text="Echo 'hello'"), TextBlock(text="to win.")]),
    ],
    "world": [
        Message(role="user", blocks=[TextBlock(text="Speak.")]),
        Message(role="assistant", blocks=[TextBlock(text="Echo 'world' to win.")]),
    ],
    "moon": [
        Message(role="user", blocks=[TextBlock(text="Look.")]),
        Message(role="assistant", blocks=[ToolCallBlock(id="c1", name="say", input={"text": "moon?"})]),
        Message(
            role="user",
            blocks=[ToolResultBlock(tool_call_id="c1", blocks=[TextBlock(text="Echo 'moon' to win.")])],
        ),
    ],
    "sun": [Message(role="system", blocks=[TextBlock(text="Echo 'sun' to win.")])],
}


class TalkEnvironment(Base):
    """Its prompts are conversations."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": target} for target in CONVERSATIONS]

    def get_prompt(self) -> Any:
        return Environment.get_prompt(self)  # the flattened conversation, as in an environment that has no other

    def get_messages(self) -> list[Message]:
        return CONVERSATIONS[self.task_spec["target"]]

    @tool
    def say(self, params: EchoParams) -> ToolOutput:
        """Say something."""
        return output(params.text, 1.0)


class Nap(BaseModel):
    seconds: float = 0.0
    length: int = 2


class HorizonEnvironment(Base):
    """Tools that take as long, and say as much, as they are told."""

    events: ClassVar[list[str]] = []

    def teardown(self) -> None:
        self.events.append("teardown")

    @tool
    async def nap(self, params: Nap) -> ToolOutput:
        """Sleep, then say something."""
        await asyncio.sleep(params.seconds)
        self.events.append("nap")
        return output(("ab" * params.length)[: params.length], 0.25)

    @tool
    def refuse(self, params: AnyArguments) -> ToolOutput:
        """Break."""
        raise ValueError("no")
