"""Decides how a rollout is put before an environment that scores whole groups, and how its scores are read.

Flow: `router.groups` → `LiveSession.score_group` → `candidate` → `POST /{environment}/score_group` → `parse_scores`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multienv.types import JSONObject


def candidate(completion: Iterable[Mapping[str, Any]]) -> JSONObject:
    """Return a completion as a candidate of `score_group`: a transcript, tool calls and results included.

    Args:
        completion: Chat messages of roles `assistant` and `tool`.

    Example:
        >>> candidate([{"role": "assistant", "content": "Four."}])["messages"]
        [{'role': 'assistant', 'blocks': [{'type': 'text', 'text': 'Four.'}]}]
    """
    messages: list[JSONObject] = []
    waiting: deque[str] = deque()
    for message in completion:
        if message["role"] == "tool":
            result = {
                "type": "tool_result",
                "tool_call_id": waiting.popleft() if waiting else "",
                "blocks": _text(message),
            }
            messages.append({"role": "user", "blocks": [result]})
            continue
        blocks = (
            [{"type": "reasoning", "text": message["reasoning_content"]}] if message.get("reasoning_content") else []
        )
        blocks += _text(message)
        for call in message.get("tool_calls") or ():
            waiting.append(f"call-{len(messages)}-{len(blocks)}")
            function: Mapping[str, Any] = call.get("function") or {}
            arguments = function.get("arguments")
            blocks.append(
                {
                    "type": "tool_call",
                    "id": waiting[-1],
                    "name": str(function.get("name")),
                    "input": dict(arguments) if isinstance(arguments, Mapping) else {},
                }
            )
        messages.append({"role": "assistant", "blocks": blocks})
    return {"messages": messages, "metadata": None}


def _text(message: Mapping[str, Any]) -> list[JSONObject]:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(str(block["text"]) if block.get("type") == "text" else "[image]" for block in content)
    return [{"type": "text", "text": content}] if content else []


def parse_scores(answer: Mapping[str, Any], num_candidates: int) -> list[float]:
    """Read the answer of `/score_group`: one finite number per candidate, in order."""
    scores: Sequence[Any] = [score["reward"] for score in answer["scores"]]
    if len(scores) != num_candidates:
        raise ValueError(f"{len(scores)} scores for {num_candidates} candidates")
    for score in scores:
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"a group score of {score!r}; expected a finite number")
    return [float(score) for score in scores]
