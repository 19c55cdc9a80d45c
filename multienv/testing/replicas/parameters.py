"""Decides what the replicas' tools take: models whose JSON Schemas equal the published ones, titles included.

The published schemas have no description of the whole object, and a title that is the model's name.

Flow: the SDK reads a tool's schema off its model, and hands the tool an instance.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def _without_docstring(schema: dict[str, Any]) -> None:
    schema.pop("description", None)


class _Parameters(BaseModel):
    """A tool's parameters."""

    model_config = ConfigDict(json_schema_extra=_without_docstring)


class _ClosedParameters(_Parameters, extra="forbid"):
    """A tool's parameters that take no others."""


# SETA


class BashParams(_ClosedParameters):
    """Parameters of SETA's `bash`."""

    command: str
    timeout: float | None = None


class EditParams(_ClosedParameters):
    """Parameters of SETA's `edit`."""

    file_path: str
    old_string: str
    new_string: str
    replace_all: bool = False


class GlobParams(_ClosedParameters):
    """Parameters of SETA's `glob`."""

    pattern: str
    path: str | None = None


class GrepParams(_ClosedParameters):
    """Parameters of SETA's `grep`."""

    pattern: str
    path: str | None = None
    include: str | None = None


class LSParams(_ClosedParameters):
    """Parameters of SETA's `ls`."""

    path: str = "."
    ignore: list[str] | None = None


class MultiEditParams(_ClosedParameters):
    """Parameters of SETA's `multi_edit`."""

    file_path: str
    edits: list[dict[str, Any]]


class ReadParams(_ClosedParameters):
    """Parameters of SETA's `read`."""

    file_path: str
    offset: int | None = None
    limit: int | None = None


class TodoItem(_ClosedParameters):
    """One entry of SETA's todo list."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["low", "medium", "high"] = "medium"
    id: str | None = None


class TodoWriteParams(_ClosedParameters):
    """Parameters of SETA's `todo_write`."""

    todos: list[TodoItem]


class WriteParams(_ClosedParameters):
    """Parameters of SETA's `write`."""

    file_path: str
    content: str


class Empty(_Parameters):
    """Parameters of SETA's `submit_solution`: none."""


# EndlessTerminals and SWE-rebench-V2


class BashD(_Parameters):
    """Parameters of the container's `bash`."""

    command: str = Field(description="Bash command to run in container")
    description: str = Field(description="Why I'm running this command")


class CreateFileD(_Parameters):
    """Parameters of the container's `create_file`."""

    description: str = Field(description="Why I'm creating this file")
    path: str = Field(description="Path to the file to create")
    file_text: str = Field(description="Content to write to the file")


class StrReplaceD(_Parameters):
    """Parameters of the container's `str_replace`."""

    path: str = Field(description="Path to the file to edit")
    old_str: str = Field(description="String to replace (must be unique in file)")
    new_str: str = Field(default="", description="String to replace with (empty to delete)")
    description: str = Field(description="Why I'm making this edit")


class ViewD(_Parameters):
    """Parameters of the container's `view`."""

    path: str = Field(description="Absolute path to file or directory")
    view_range: tuple[int, int] | None = Field(
        default=None, description="Optional line range [start_line, end_line], 1-indexed; -1 = to the end."
    )
    description: str = Field(description="Why I need to view this")
