"""Decides what the policy is shown of a tool, and what its call means: the published schema, name for name.

Flow: `Presentation.toolbox` makes one per set of tools → the trainer renders `functions` → `EnvironmentAdapter` looks a
call up by its shown name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from multienv.router.arguments import ArgumentCheck
from multienv.router.spelling import Restorer, Spelling
from multienv.router.typed import typed_arguments
from multienv.types import JSONObject, ToolSpec

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class ShownTool:
    """A published tool as the policy knows it.

    Args:
        spec: The tool as published.
        name: The name it is shown under: the published one, as `Spelling` writes it.
        spelling: How reserved strings are written.
    """

    def __init__(self, spec: ToolSpec, name: str, spelling: Spelling) -> None:
        self.spec = spec
        self.name = name
        self._spelling = spelling

    @cached_property
    def function(self) -> JSONObject:
        """The tool as chat templates take it: published name, description and schema, keys in the published order.

        A tool published without a schema takes no arguments.
        """
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self._spelling.text(self.spec.description),
                "parameters": self._spelling.json(dict(self.spec.input_schema or _NO_ARGUMENTS)),
            },
        }

    @cached_property
    def arguments(self) -> ArgumentCheck:
        """What the published schema says about arguments."""
        return ArgumentCheck(self.spec.input_schema)

    @cached_property
    def _restorer(self) -> Restorer:
        return self._spelling.restorer(self.spec.input_schema)

    def restored(self, arguments: Mapping[str, Any]) -> JSONObject:
        """Return the policy's arguments with names and choices as published, and of the types these have."""
        restored: JSONObject = self._restorer(dict(arguments))
        typed = typed_arguments(restored, self.spec.input_schema)
        return {name: value if value is restored[name] else self._restorer(value) for name, value in typed.items()}


class Toolbox:
    """The tools one rollout is offered.

    Args:
        tools: The tools as published, with distinct names.
        spelling: How reserved strings are written.

    Attributes:
        tools: By published name, in the published order.
        shown: The same tools by shown name.
    """

    def __init__(self, tools: Sequence[ToolSpec], spelling: Spelling) -> None:
        names = spelling.names(spec.name for spec in tools)
        self.shown = {name: ShownTool(spec, name, spelling) for spec, name in zip(tools, names, strict=True)}
        self.tools = {tool.spec.name: tool for tool in self.shown.values()}

    @cached_property
    def functions(self) -> list[JSONObject]:
        """The tools as chat templates take them."""
        return [tool.function for tool in self.shown.values()]
