"""Decides how the wire's JSON becomes values, and what an answer must hold.

Flow: `openreward` and `inprocess` parse with the same functions, so that a server and a class behave alike. What is
malformed raises `LookupError`, `TypeError` or `ValueError`; `faults` names it a protocol error.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from multienv.types import Image, Message, Parts, Prompt, TerminalTool, ToolListing, ToolOutput, ToolRefused, ToolSpec

logger = logging.getLogger(__name__)

NO_OUTPUT = "(no output)"
"""Shown to the policy when a result holds nothing."""
MOST_NESTED: Final = 300
"""Levels of arrays and objects in a tool's schema; transformers takes two of Python's 1,000 calls to render each."""


_ROLES: Final = ("system", "user", "assistant")


def parse_parts(blocks: Iterable[Mapping[str, Any]]) -> Parts:
    """Read text and image blocks, in order; blocks of kinds that are not known are left out."""
    parts: list[str | Image] = []
    for block in blocks:
        if block["type"] == "text":
            parts.append(_string(block["text"], "a text block whose text"))
        elif block["type"] == "image":
            parts.append(Image(_string(block["data"], "an image block whose data"), str(block["mimeType"])))
    return tuple(parts)


def parse_prompt(blocks: Iterable[Mapping[str, Any]]) -> Prompt:
    """Read the answer of `/prompt`."""
    return (Message("user", parse_parts(blocks)),)


def parse_messages(answer: Iterable[Mapping[str, Any]]) -> Prompt:
    """Read the answer of `/messages`. A tool's result, which ORS puts into a user message, becomes its own.

    A role that ORS does not have is refused: some chat templates drop such a message in silence, others end the run.
    """
    messages: list[Message] = []
    names: dict[str, str] = {}
    for message in answer:
        role, blocks = message["role"], list(message["blocks"])
        if role not in _ROLES:
            raise ValueError(f"a message of role {str(role)[:80]!r}; expected {', '.join(_ROLES)}")
        calls = [block for block in blocks if block["type"] == "tool_call"]
        names.update({str(block["id"]): str(block["name"]) for block in calls})
        results = [block for block in blocks if block["type"] == "tool_result"]
        messages += [
            Message("tool", parse_parts(block["blocks"]), tool=names.get(str(block["tool_call_id"]), ""))
            for block in results
        ]
        if len(results) < len(blocks) or not blocks:
            messages.append(
                Message(
                    role=role,
                    parts=parse_parts(blocks),
                    reasoning="\n".join(str(block["text"]) for block in blocks if block["type"] == "reasoning"),
                    tool_calls=tuple((str(block["name"]), dict(block["input"])) for block in calls),
                )
            )
    if not messages:
        raise ValueError("a conversation without messages")
    return tuple(messages)


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is no string")
    return value


def parse_listing(answer: Mapping[str, Any], environment: str) -> ToolListing:
    """Read the answer of `/tools` or `/task_tools`. Of tools with the same name, the first one counts.

    Args:
        answer: The answer.
        environment: Name of the environment in the mixture, for warnings.
    """
    terminal = answer.get("terminal_tool")
    tools: dict[str, ToolSpec] = {}
    for listed in answer["tools"]:
        name, schema = str(listed["name"]), dict(listed.get("input_schema") or {})
        if _depth(schema) > MOST_NESTED:
            raise ValueError(f"the schema of tool {name[:80]!r} is nested deeper than {MOST_NESTED} levels")
        tool = ToolSpec(name, str(listed.get("description") or ""), schema)
        if tools.setdefault(name, tool) != tool:
            _warn_of_two(environment, name)
    return ToolListing(
        tools=tuple(tools.values()),
        terminal_tool=TerminalTool(str(terminal["name"]), terminal.get("arg")) if terminal else None,
        supports_score_group=bool(answer.get("supports_score_group")),
        has_messages=bool(answer.get("message_block_types")),  # servers without the route never say so
    )


@functools.cache
def _warn_of_two(environment: str, tool: str) -> None:
    """Warn once, not once per session."""
    logger.warning("environment %r lists two tools called %r; the first one counts", environment, tool)


def _depth(value: Any) -> int:
    """Return how deep a JSON value is nested; a loop, for it may be deeper than calls can."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, Mapping | list):
            deepest = max(deepest, depth)
            todo.extend((inside, depth + 1) for inside in (item.values() if isinstance(item, Mapping) else item))
    return deepest


def parse_output(answer: Mapping[str, Any]) -> ToolOutput:
    """Read the answer of `/call`.

    Raises:
        ToolRefused: The environment refused the call.
    """
    if not answer["ok"]:
        raise ToolRefused(str(answer.get("reason") or "not_found"), str(answer["error"]))
    output = answer["output"]
    metadata = output.get("metadata")
    parts = parse_parts(output["blocks"])
    has_images = any(isinstance(part, Image) for part in parts)
    text = "\n".join(part for part in parts if isinstance(part, str))
    return ToolOutput(
        text=text if text or has_images else NO_OUTPUT,
        reward=_reward(output.get("reward")),
        finished=bool(output.get("finished", False)),
        metadata=dict(metadata) if isinstance(metadata, Mapping) else None,
        parts=parts if has_images else (),
    )


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a step reward of {value!r}; expected a finite number or null")
    return float(value)
