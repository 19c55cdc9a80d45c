"""Decides what the page shows of one episode: texts as they are to be read, and numbers that JSON can say.

Flow: `write` → `shown` → the page's reader, which puts each text where it belongs and interprets none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from multienv.reporting.lines import MAX_TEXT_CHARS, plain
from multienv.reporting.page.figures import phase_of
from multienv.router.presentation import shortened
from multienv.types import Episode, JSONObject, Step

MAX_PARTS: Final = 200
"""Most tool calls, and most messages, of one episode; the first and the last are kept."""
_MAX_JSON_CHARS: Final = 2 * MAX_TEXT_CHARS
_T = TypeVar("_T")


def shown(episode: Episode, place: int) -> JSONObject:
    """Return an episode as the reader wants it.

    Args:
        episode: The episode.
        place: Its place in the record, from 0.
    """
    steps, num_steps_left_out = _ends(episode.steps)
    messages, num_messages_left_out = _ends(episode.completion)
    return {
        "place": place,
        "phase": phase_of(episode),
        "environment": _text(episode.environment),
        "task": _text(episode.task_id),
        "status": str(episode.status),
        "reason": _text(episode.reason),
        "error": _text(episode.error),
        "session": _text(episode.session_id or ""),
        "reward": _number(episode.reward),
        "step": episode.training_step,
        "group": episode.group,
        "rank": episode.rank,
        "started_at": _number(episode.started_at),
        "open_s": _number(episode.open_s),
        "retries": episode.num_retries,
        "late": episode.num_late_calls,
        "tokens": episode.num_completion_tokens,
        "calls": episode.num_tool_calls,
        "steps": [_step(number, step) for number, step in steps],
        "steps_left_out": num_steps_left_out,
        "messages": [_message(number, message) for number, message in messages],
        "messages_left_out": num_messages_left_out,
    }


def pretty(value: Any) -> str:
    """Return a value as JSON to read, long texts cut; a text that is JSON itself is laid out as what it says.

    Example:
        >>> print(pretty('{"n": [1, 2.0]}'))
        {
          "n": [
            1,
            2.0
          ]
        }
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return _text(value)
    written = json.dumps(plain(value, max_chars=MAX_TEXT_CHARS), indent=2, ensure_ascii=False)
    return shortened(written, _MAX_JSON_CHARS)


def _step(number: int, step: Step) -> JSONObject:
    flags = {"finished": step.finished, "refused": step.refused, "lost": step.lost, "grading": step.terminal}
    return {
        "number": number,
        "tool": _text(step.tool),
        "arguments": pretty(step.arguments),
        "text": _text(step.text),
        "reward": _number(step.reward),
        "metadata": "" if step.metadata is None else pretty(step.metadata),
        "duration_s": _number(step.duration_s),
        "flags": [flag for flag, is_set in flags.items() if is_set],
    }


def _message(number: int, message: Any) -> JSONObject:
    """Return a chat message: what it says, what it thought, what it calls, and whatever else it carries."""
    rest = dict(message) if isinstance(message, dict) else {"content": message}
    role, content, name = rest.pop("role", ""), rest.pop("content", None), rest.pop("name", "")
    thoughts = (rest.pop(key, None) for key in ("reasoning_content", "reasoning", "thinking"))
    thought = "\n".join([_content(each) for each in thoughts if each])
    calls = rest.pop("tool_calls", None)
    return {
        "number": number,
        "role": _text(role),
        "name": _text(name or ""),
        "thought": thought,
        "content": _content(content),
        "calls": [_call(call) for call in calls] if isinstance(calls, list) else [],
        "rest": pretty(rest) if rest else "",
    }


def _content(content: Any) -> str:
    """Return the text of a message's content; a block that is no text is shown as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, list):
        texts = (block.get("text") if isinstance(block, dict) else block for block in content)
        pairs = zip(texts, content, strict=True)
        return _text("\n".join(text if isinstance(text, str) else pretty(block) for text, block in pairs))
    return pretty(content)


def _call(call: Any) -> JSONObject:
    function = call.get("function", call) if isinstance(call, dict) else {}
    if not isinstance(function, dict) or "name" not in function:
        return {"tool": "", "arguments": pretty(call)}
    return {"tool": _text(function["name"]), "arguments": pretty(function.get("arguments", {}))}


def _ends(parts: Sequence[_T]) -> tuple[list[tuple[int, _T]], int]:
    """Return the first and the last parts with their numbers from 1, and how many between them are left out."""
    numbered = list(enumerate(parts, start=1))
    if len(numbered) <= MAX_PARTS:
        return numbered, 0
    half = MAX_PARTS // 2
    return [*numbered[:half], *numbered[-half:]], len(numbered) - 2 * half


def _text(value: Any) -> str:
    written = plain(value, max_chars=MAX_TEXT_CHARS)
    return written if isinstance(written, str) else str(written)


def _number(value: Any) -> Any:
    """Return a number as JSON can say it: the word for one that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return plain(value)
