"""Decides what becomes of a row's own prompt where its environment sends a conversation: one list of messages.

Flow: the trainer and the evaluation → `with_conversation` → the prompt that the policy reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multienv.types import Column, JSONObject


def with_conversation(row: Mapping[str, Any], conversation: Sequence[JSONObject]) -> dict[str, Any]:
    r"""Return a row whose prompt holds an environment's conversation, but for its last content, which `reset` returns.

    Args:
        row: A row of the dataset; its own messages come first, system messages become one.
        conversation: Chat messages; empty where the environment has none.

    Example:
        >>> row = {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]}
        >>> conversation = [{"role": "system", "content": "You sell."}, {"role": "user", "content": "Hi"}]
        >>> with_conversation(row, conversation)["prompt"]
        [{'role': 'system', 'content': 'Be brief.\n\nYou sell.'}, {'role': 'user', 'content': ''}]
    """
    if not conversation:
        return dict(row)
    own = [message for message in row[Column.PROMPT] if message["content"]]
    first, *rest = [*conversation[:-1], {**conversation[-1], "content": ""}]
    is_joined = bool(own) and own[0]["role"] == first["role"] == "system"
    if is_joined and (rest or len(own) == 1):
        messages = [{**first, "content": _joined(own[0]["content"], first["content"])}, *own[1:], *rest]
    else:
        messages = [*own, first, *rest]
    return {**row, Column.PROMPT.value: messages}


def whole_prompt(row: Mapping[str, Any], conversation: Sequence[JSONObject], content: Any) -> list[JSONObject]:
    r"""Return the prompt of a rollout as TRL puts it together from a row and what `reset` returned.

    Args:
        row: A row of the dataset.
        conversation: The environment's conversation; empty where it has none.
        content: What `reset` returned.

    Example:
        >>> whole_prompt({"prompt": [{"role": "user", "content": "Hi. "}]}, [], "Echo 'a'.")
        [{'role': 'user', 'content': "Hi. Echo 'a'."}]
    """
    *before, last = (dict(message) for message in with_conversation(row, conversation)[Column.PROMPT.value])
    own = last["content"]
    if isinstance(own, str) and isinstance(content, str):
        return [*before, {**last, "content": own + content}]
    blocks = [
        [{"type": "text", "text": part}] if isinstance(part, str) and part else part or [] for part in (own, content)
    ]
    return [*before, {**last, "content": [*blocks[0], *blocks[1]]}]


def _joined(content: Any, other: Any) -> Any:
    """Return the contents of two messages as one: a text, or content blocks where either has blocks."""
    if isinstance(content, str) and isinstance(other, str):
        return f"{content}\n\n{other}"
    blocks = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in (content, other)]
    return [*blocks[0], {"type": "text", "text": "\n\n"}, *blocks[1]]
