"""Decides how a published tool becomes a method that TRL and transformers can read: by signature, never by `exec`.

Flow: `factory.make_factory` → `bind_tools` → methods on the adapter's class → `EnvironmentAdapter._call_tool`.

Source:
    TRL's `GRPOTrainer` collects the functions of `type(environment)`; `transformers.utils.get_json_schema` reads their
    `__signature__`, `__annotations__` and Google-style docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from multienv.router.arguments import ArgumentCheck
from multienv.router.naming import python_names
from multienv.router.presentation import Content
from multienv.router.rollout_tools import ShownCall
from multienv.router.schema import python_type
from multienv.router.spelling import Spelling
from multienv.sessions import session_loop
from multienv.types import ToolSpec

_SECTION_WORDS: Final = re.compile("(Args|Returns|Raises):")  # inside a word too, as transformers looks
_SECTION_NAMES: Final = {"Args": "Arguments", "Returns": "Result", "Raises": "Errors"}
_CHOICES: Final = re.compile(r"\(choices:", re.IGNORECASE)
_TAKEN_PARAMETERS: Final = frozenset({"self", "return"})
_AS_PUBLISHED: Final = Spelling()


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A published tool and the method that stands for it.

    Attributes:
        spec: The tool as published.
        name: The method's name.
        method: A function to set on an adapter's class. It takes `self` and the arguments by keyword.
        parameters: From the published to the shown name of each parameter.
    """

    spec: ToolSpec
    name: str
    method: Callable[..., Content]
    parameters: Mapping[str, str]


def bind_tools(
    tools: Sequence[ToolSpec], *, taken: Collection[str], spelling: Spelling = _AS_PUBLISHED
) -> list[BoundTool]:
    """Make one method per tool.

    Args:
        tools: The published tools, with distinct names.
        spelling: How strings are written that are reserved in the policy's tokenizer.
        taken: Names a method must not have: the adapter's own members, and what TRL looks for.

    Returns:
        One `BoundTool` per tool, in order; none is lost.
    """
    names = python_names((tool.name for tool in tools), taken=taken, suffix="_tool")
    return [_bind(tool, names[tool.name], spelling) for tool in tools]


def tool_coroutine(method: Any, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, Content] | None:
    """Return the coroutine that a bound tool would wait for, to be run on the session loop.

    Args:
        method: A tool bound to its adapter, as TRL holds it.
        arguments: The arguments by their shown names.

    Returns:
        The coroutine; None for a tool of another making.
    """
    if isinstance(method, ShownCall):
        return method.coroutine(arguments)
    function = getattr(getattr(method, "__func__", None), "coroutine", None)
    return None if function is None else function(method.__self__, **arguments)


def _bind(published_tool: ToolSpec, name: str, spelling: Spelling) -> BoundTool:
    tool = replace(
        published_tool,
        description=spelling.text(published_tool.description),
        input_schema=spelling.json(dict(published_tool.input_schema)),
    )
    properties = tool.input_schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    sections = {name for name in map(str, properties) if name.endswith(tuple(_SECTION_NAMES))}
    parameters = python_names(map(str, properties), taken=_TAKEN_PARAMETERS | sections, suffix="_")
    published = {shown: name for name, shown in parameters.items()}
    check = ArgumentCheck(tool.input_schema)

    async def coroutine(self: Any, /, **arguments: Any) -> Content:
        sent = {published.get(shown, shown): value for shown, value in arguments.items()}
        # The signature shows None as the default of what may be left out, and a policy may send what it was shown.
        sent = check.without_empty(sent)
        content: Content = await self._call_tool(tool.name, sent)  # a method of that class
        return content

    def method(self: Any, /, **arguments: Any) -> Content:
        return session_loop().run(coroutine(self, **arguments))

    method.coroutine = coroutine  # type: ignore[attr-defined]  # what the method waits for; see `tool_coroutine`
    method.__name__ = method.__qualname__ = name
    method.__doc__ = _docstring(tool, {parameters[key]: schema for key, schema in properties.items()})
    annotations = {parameters[key]: python_type(schema, tool.input_schema) for key, schema in properties.items()}
    method.__annotations__ = {**annotations, "return": str}
    method.__signature__ = _signature(tool, parameters, annotations)  # type: ignore[attr-defined]
    return BoundTool(published_tool, name, method, parameters)


def _signature(tool: ToolSpec, parameters: Mapping[str, str], annotations: Mapping[str, Any]) -> inspect.Signature:
    """Build what is shown: keyword-only parameters in the published order, with a default where none is required."""
    published_required = tool.input_schema.get("required")
    required = published_required if isinstance(published_required, list) else ()
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if published in required else None,
            annotation=annotations[name],
        )
        for published, name in parameters.items()
    ]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return inspect.Signature([receiver, *shown], return_annotation=str)


def _docstring(tool: ToolSpec, properties: Mapping[str, Any]) -> str:
    """Write a docstring from which transformers reads back the description and one line per parameter."""
    description = _safe(tool.description).strip() or f"Call {_safe(tool.name)}."
    if not properties:
        return description
    lines = (f"    {name}: {_describe(name, schema)}" for name, schema in properties.items())
    return "\n".join([description, "", "Args:", *lines])


def _describe(name: str, schema: Any) -> str:
    """Return a parameter's description on one line, for a new line could be read as another parameter."""
    schema = schema if isinstance(schema, Mapping) else {}
    text = " ".join(_safe(str(schema.get("description") or schema.get("title") or "")).split())
    return _CHOICES.sub("(options:", text) or name


def _safe(text: str) -> str:
    """Reword what transformers' docstring parser would take for the beginning of a section."""
    return _SECTION_WORDS.sub(lambda found: f"{_SECTION_NAMES[found[1]]}:", text)
