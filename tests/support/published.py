"""Environments that publish a given list of tools, as a real one does, and accept any call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openreward.environments.types import ListToolsOutput, RunToolOutput, RunToolSuccess, TerminalToolSpec, ToolSpec

from tests.support.environments import Base, output

FIXTURES = Path(__file__).parent.parent / "fixtures"


def published(name: str, tools: Sequence[Mapping[str, Any]], terminal_tool: Any = None, **members: Any) -> Any:
    """An SDK environment of that name with these tools; `members` are added to the class."""

    def list_tools(cls: Any) -> ListToolsOutput:
        terminal = None if terminal_tool is None else TerminalToolSpec.model_validate(terminal_tool)
        return ListToolsOutput(tools=[ToolSpec.model_validate(dict(tool)) for tool in tools], terminal_tool=terminal)

    async def call(self: Any, tool: str, arguments: Any, *args: Any, **options: Any) -> RunToolOutput:
        return RunToolOutput(root=RunToolSuccess(output=output(json.dumps([tool, arguments]))))

    return type(name, (Base,), {"list_tools": classmethod(list_tools), "_call_tool": call, **members})


def catalogue(file: str) -> Any:
    """The environment of a file of published interfaces."""
    interface = json.loads((FIXTURES / f"{file}.json").read_text(encoding="utf-8"))
    return published(file, interface["tools"], interface["terminal_tool"])
