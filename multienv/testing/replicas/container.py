"""Decides what the replicas of EndlessTerminals and SWE-rebench-V2 offer: the same five tools, and a binary verdict.

Flow: `replica("endless-terminals")` and `replica("swe-rebench-v2")` give the classes.
"""
# The SDK carries no types, so its class and its decorators are Any to mypy.
# mypy: allow-subclassing-any, allow-untyped-decorators

from __future__ import annotations

import math

from openreward.environments import JSONObject, ToolOutput, tool

from multienv.testing.replicas.base import Replica
from multienv.testing.replicas.parameters import BashD, CreateFileD, StrReplaceD, ViewD
from multienv.testing.replicas.shell import run


class _Container(Replica):
    """Five tools on the files of a container. The submission is scored 1.0 if all checks pass, and 0.0 otherwise."""

    @tool
    async def bash(self, params: BashD) -> ToolOutput:
        """Run a shell command in the task container."""
        return await self._told(lambda: run(params.command, self._tree))

    @tool
    async def create_file(self, params: CreateFileD) -> ToolOutput:
        """Create a file."""
        return await self._told(lambda: self._tree.write(params.path, params.file_text))

    @tool
    async def str_replace(self, params: StrReplaceD) -> ToolOutput:
        """Replace one unique string in a file."""
        return await self._told(lambda: self._tree.replace(params.path, params.old_str, params.new_str))

    @tool(exclusive=True)
    async def submit_answer(self) -> ToolOutput:
        """Run the held-out tests and end the episode."""
        return await self._graded(lambda score: float(math.isclose(score, 1.0)))

    @tool
    async def view(self, params: ViewD) -> ToolOutput:
        """Show a file or a directory listing."""
        return await self._told(lambda: self._shown(params))

    def _shown(self, params: ViewD) -> str:
        if self._tree.path(params.path) in self._tree.folders:
            return "\n".join(self._tree.listing(params.path))
        first, last = params.view_range or (1, -1)
        lines = self._tree.read(params.path).splitlines()
        return "\n".join(lines[max(first - 1, 0) : None if last < 0 else last])


class EndlessTerminals(_Container):
    """Create files with words."""

    preset_name = "endless-terminals"


class SWERebenchV2(_Container):
    """Mend the wrong lines of a repository. Its tasks can be had by index only, as those of the real one."""

    preset_name = "swe-rebench-v2"

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """Refuse: the real environment has too many tasks to list."""
        raise NotImplementedError(f"split {split!r} is too large to list; use num_tasks and get_task")
