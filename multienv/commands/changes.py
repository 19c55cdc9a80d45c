"""Decides what is told of a prompt and its tools where the model gets something else than the environment published.

Flow: `preview` → `changes` → one sentence each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from multienv.router.presentation import Presentation
from multienv.router.toolbox import Toolbox
from multienv.types import Image, Message, Prompt

_AS_PUBLISHED = Presentation()
"""Shows everything as published, but pictures, which have sentences of their own."""


def changes(prompt: Prompt, offered: Toolbox, presentation: Presentation) -> list[str]:
    """Say what is shown differently.

    Args:
        prompt: The messages as published.
        offered: The tools.
        presentation: How both are shown.
    """
    told = []
    for tool in offered.shown.values():
        if tool.name != tool.spec.name:
            told.append(f"tool {tool.spec.name!r} is shown as {tool.name!r}")
        published = _AS_PUBLISHED.toolbox([tool.spec]).functions[0]["function"]
        if found := _reserved(_without_name(published), presentation.reserved):
            told.append(f"tool {tool.spec.name!r}: {_broken(found)}")
    for message in prompt:
        its_texts = [part for part in message.parts if isinstance(part, str)]
        also = [message.reasoning, message.tool, *([name, arguments] for name, arguments in message.tool_calls)]
        if found := _reserved([*its_texts, *also], presentation.reserved):
            told.append(f"a message of role {message.role!r}: {_broken(found)}")
        if left_out := _left_out(message.role, message.parts, presentation):
            told.append(f"a message of role {message.role!r}: {left_out}")
    return told


def _without_name(function: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in function.items() if key != "name"}


def _reserved(value: Any, reserved: Iterable[str]) -> Counter[str]:
    """Count the special tokens in a JSON value, keys included; a longer one is not counted as a shorter one in it."""
    text = "\n".join(_strings(value))
    found: Counter[str] = Counter()
    for special in reserved:  # longest first
        found[special] = text.count(special)
        text = text.replace(special, "\n")
    return +found


def _strings(value: Any) -> Iterable[str]:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            todo += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            todo += item


def _broken(found: Counter[str]) -> str:
    listed = ", ".join(f"{json.dumps(text, ensure_ascii=False)} ({times} x)" for text, times in found.items())
    return f"special tokens of the tokenizer are broken by a space, so that they stay text: {listed}"


def _left_out(role: str, parts: Iterable[Any], presentation: Presentation) -> str:
    """Say how many pictures of a message are replaced by a placeholder, and why."""
    pictures = [part for part in parts if isinstance(part, Image)]
    if not pictures:
        return ""
    shown: Any = presentation.message("", Message(role, tuple(pictures)))["content"]
    num_shown = sum(block["type"] == "image" for block in shown) if isinstance(shown, list) else 0
    num_lost = len(pictures) - num_shown
    why = "this policy reads text only" if not presentation.has_images else "they cannot be read, or not in this role"
    return f"{num_lost} pictures are left out, a placeholder stands for each: {why}" if num_lost else ""
