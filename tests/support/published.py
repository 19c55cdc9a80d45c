"""Environments made from lists of tools: the SDK publishes them as they stand, and what is called is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from openreward.environments import JSONObject, TextBlock, ToolOutput
from openreward.environments.types import ListToolsOutput, RunToolOutput, RunToolSuccess, TerminalToolSpec, ToolSpec

from tests.support.environments import Base

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"


class Published(Base):
    """One task; answers every call with the same text, whatever the arguments."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "none"}]
    published: ClassVar[Sequence[Mapping[str, Any]]] = ()
    terminal: ClassVar[Mapping[str, Any] | None] = None
    received: ClassVar[list[tuple[str, JSONObject]]] = []
    prompt: ClassVar[str] = "Call every tool."
    answer: ClassVar[str] = "ok"

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        terminal = None if cls.terminal is None else TerminalToolSpec(**cls.terminal)
        return ListToolsOutput(tools=[ToolSpec(**tool) for tool in cls.published], terminal_tool=terminal)

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=self.prompt)]

    async def _call_tool(self, name: str, input: JSONObject) -> RunToolOutput:  # noqa: A002 - the SDK's own name
        self.received.append((name, input))
        return RunToolOutput(RunToolSuccess(output=ToolOutput(blocks=[TextBlock(text=self.answer)], reward=0.25)))


def published(
    name: str, tools: Sequence[Mapping[str, Any]], terminal_tool: Mapping[str, Any] | None = None, **members: Any
) -> type[Published]:
    """An environment class of that name with these tools, each `{"name", "description", "input_schema"}`."""
    return type(name, (Published,), {"published": tools, "terminal": terminal_tool, "received": [], **members})


def fixture_tools(path: Path) -> list[dict[str, Any]]:
    """The tools that a file of `tests/fixtures` describes."""
    tools = json.loads(path.read_text())["tools"]
    return [{"description": "", "input_schema": None, **tool} for tool in tools]


def catalogue(file: str) -> type[Published]:
    """The environment of a file of published interfaces."""
    path = FIXTURES / f"{file}.json"
    return published(file, fixture_tools(path), json.loads(path.read_text())["terminal_tool"])
