"""Decides how a prompt looks to a model before any trainer is made: as `MultiEnvGRPOTrainer` will have it tokenized.

Flow: `preview`, `check` → `render` → text and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multienv.types import JSONObject


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as a model reads it.

    Attributes:
        text: The text, special tokens included.
        ids: Its tokens.
        num_tool_tokens: Those that the tools take.
    """

    text: str
    ids: list[int]
    num_tool_tokens: int


def chat_template_of(processing_class: Any, *, has_tools: bool) -> str | None:
    """Return the chat template that TRL uses instead of the tokenizer's own; None for that one.

    Source:
        `GRPOTrainer.__init__`, where `chat_template` is set.
    """
    from trl.chat_template_utils import (  # noqa: PLC0415 - imports torch
        get_training_chat_template,
        is_chat_template_prefix_preserving,
    )

    if has_tools and not is_chat_template_prefix_preserving(processing_class):
        template: str | None = get_training_chat_template(processing_class)
        return template
    return None


def render(
    processing_class: Any,
    messages: Sequence[JSONObject],
    functions: Sequence[JSONObject],
    chat_template_kwargs: Mapping[str, Any] | None = None,
    *,
    chat_template: str | None = None,
) -> Rendered:
    """Render a prompt.

    Args:
        processing_class: The tokenizer or processor.
        messages: The prompt's messages.
        functions: The tools, as chat templates take them.
        chat_template_kwargs: As in `GRPOConfig`.
        chat_template: See `chat_template_of`.

    Source:
        `GRPOTrainer._tokenize_prompts`.
    """
    kwargs = dict(chat_template_kwargs or {})

    def ids_of(tools: Sequence[JSONObject]) -> list[int]:
        tokenized = processing_class.apply_chat_template(
            conversation=[list(messages)],
            tools=list(tools) or None,
            chat_template=chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **kwargs,
        )
        return list(tokenized["input_ids"][0])

    ids = ids_of(functions)
    num_tool_tokens = len(ids) - len(ids_of(())) if functions else 0
    return Rendered(processing_class.decode(ids), ids, num_tool_tokens)
