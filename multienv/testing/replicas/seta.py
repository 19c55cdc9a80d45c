"""Decides what the replica of SETA offers: ten tools, and a verdict that is the weighted fraction of passed checks.

Flow: `replica("seta")` gives the class.
"""
# The SDK carries no types, so its class and its decorators are Any to mypy.
# mypy: allow-subclassing-any, allow-untyped-decorators

from __future__ import annotations

import fnmatch
from typing import Any

from openreward.environments import ToolOutput, tool
from openreward.environments.types import ListToolsOutput

from multienv.testing.replicas.base import Replica
from multienv.testing.replicas.parameters import (
    BashParams,
    EditParams,
    Empty,
    GlobParams,
    GrepParams,
    LSParams,
    MultiEditParams,
    ReadParams,
    TodoWriteParams,
    WriteParams,
)
from multienv.testing.replicas.shell import run
from multienv.testing.replicas.tree import FileTree, TreeError


class SETAEnv(Replica):
    """Write words into files. Only the submission is scored: each check counts by its weight."""

    preset_name = "seta"

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        """List the tools in the published order: the one that submits is the last."""
        listing = super().list_tools()
        tools = sorted(listing.tools, key=lambda spec: (spec.name == "submit_solution", spec.name))
        return listing.model_copy(update={"tools": tools})

    @tool
    async def bash(self, params: BashParams) -> ToolOutput:
        """Run a shell command in the sandbox."""
        return await self._told(lambda: run(params.command, self._tree))

    @tool
    async def edit(self, params: EditParams) -> ToolOutput:
        """Replace an exact string in a file."""
        return await self._told(
            lambda: self._tree.replace(
                params.file_path, params.old_string, params.new_string, replaces_all=params.replace_all
            )
        )

    @tool
    async def glob(self, params: GlobParams) -> ToolOutput:
        """List files whose name matches a pattern."""
        return await self._told(
            lambda: "\n".join(path for path, _ in self._tree.under(params.path or ".", params.pattern))
        )

    @tool
    async def grep(self, params: GrepParams) -> ToolOutput:
        """Search file contents recursively."""
        return await self._told(
            lambda: "\n".join(
                f"{path}:{line}"
                for path, text in self._tree.under(params.path or ".", params.include or "*")
                for line in text.splitlines()
                if params.pattern in line
            )
        )

    @tool
    async def ls(self, params: LSParams) -> ToolOutput:
        """List a directory."""
        return await self._told(
            lambda: "\n".join(
                name
                for name in self._tree.listing(params.path)
                if not any(fnmatch.fnmatchcase(name, pattern) for pattern in params.ignore or ())
            )
        )

    @tool
    async def multi_edit(self, params: MultiEditParams) -> ToolOutput:
        """Apply several replacements to one file."""
        return await self._told(lambda: _edit_all(self._tree, params.file_path, params.edits))

    @tool
    async def read(self, params: ReadParams) -> ToolOutput:
        """Read a file, optionally a line range."""
        return await self._told(lambda: _lines(self._tree.read(params.file_path), params.offset, params.limit))

    @tool
    async def todo_write(self, params: TodoWriteParams) -> ToolOutput:
        """Replace the session's todo list."""
        return await self._told(lambda: "\n".join(f"{item.status}: {item.content}" for item in params.todos))

    @tool
    async def write(self, params: WriteParams) -> ToolOutput:
        """Write a file."""
        return await self._told(lambda: self._tree.write(params.file_path, params.content))

    @tool(exclusive=True)
    async def submit_solution(self, params: Empty) -> ToolOutput:  # noqa: ARG002 - published with an empty schema
        """Run the weighted pytest suite and end the episode."""
        return await self._graded(lambda score: score)


def _edit_all(tree: FileTree, path: str, edits: list[dict[str, Any]]) -> None:
    """Apply all of the edits or none."""
    before = tree.read(path)
    try:
        for edit in edits:
            _edit(tree, path, edit)
    except TreeError:
        tree.write(path, before)
        raise


def _edit(tree: FileTree, path: str, edit: dict[str, Any]) -> None:
    old, new = edit.get("old_string"), edit.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str):
        raise TreeError(f"{path}: an edit needs old_string and new_string")
    tree.replace(path, old, new, replaces_all=edit.get("replace_all") is True)


def _lines(text: str, offset: int | None, limit: int | None) -> str:
    """Return so many lines from that one on, counted from 1."""
    first = max((offset or 1) - 1, 0)
    end = None if limit is None else first + max(limit, 0)
    return "\n".join(text.splitlines()[first:end])
