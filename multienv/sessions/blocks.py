"""Decides how the wire's JSON becomes values, and what an answer must hold.

Flow: `openreward` and `inprocess` parse with the same functions, so that a server and a class behave alike. What is
malformed raises `LookupError`, `TypeError` or `ValueError`; `faults` names it a protocol error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from multienv.sessions.protocol import ToolListing
from multienv.types import ToolOutput, ToolRefused, ToolSpec

NO_OUTPUT = "(no output)"
"""Shown to the policy when a result holds no text."""


def parse_text(blocks: Iterable[Mapping[str, Any]]) -> str:
    """Join the text blocks by newlines; blocks of other kinds hold no text."""
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text block whose text is no string")
    return "\n".join(texts)


def parse_listing(answer: Mapping[str, Any]) -> ToolListing:
    """Read the answer of `/tools` or `/task_tools`."""
    terminal = answer.get("terminal_tool")
    return ToolListing(
        tools=tuple(
            ToolSpec(str(tool["name"]), str(tool.get("description") or ""), dict(tool.get("input_schema") or {}))
            for tool in answer["tools"]
        ),
        terminal_tool=str(terminal["name"]) if terminal else None,
        supports_score_group=bool(answer.get("supports_score_group")),
    )


def parse_output(answer: Mapping[str, Any]) -> ToolOutput:
    """Read the answer of `/call`.

    Raises:
        ToolRefused: The environment refused the call.
    """
    if not answer["ok"]:
        raise ToolRefused(str(answer.get("reason") or "not_found"), str(answer["error"]))
    output = answer["output"]
    metadata = output.get("metadata")
    return ToolOutput(
        text=parse_text(output["blocks"]) or NO_OUTPUT,
        reward=_reward(output.get("reward")),
        finished=bool(output.get("finished", False)),
        metadata=dict(metadata) if isinstance(metadata, Mapping) else None,
    )


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a step reward of {value!r}; expected a finite number or null")
    return float(value)
