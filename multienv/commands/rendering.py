"""Decides how a prompt looks to a model before any trainer is made: as `MultiEnvGRPOTrainer` will have it tokenized.

Flow: `preview`, `check` → `render` → text and tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multienv.errors import SpecError
from multienv.types import JSONObject

_NO_TOOLS: Final = ("reset", "get_reward")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as a model reads it.

    Attributes:
        text: The text that is tokenized, special tokens included.
        ids: Its tokens; a processor puts several for a picture.
        num_tool_tokens: How many there would be less without the tools; None where the template cannot do without.
        num_system_tokens: How many there would be less, still, without system messages; None as above.
    """

    text: str
    ids: list[int]
    num_tool_tokens: int | None
    num_system_tokens: int | None

    @property
    def num_other_tokens(self) -> int:
        """Tokens of what is left: the conversation, and what the template writes around it."""
        return len(self.ids) - (self.num_tool_tokens or 0) - (self.num_system_tokens or 0)


def methods_shown(adapter_class: type) -> list[str]:
    """Return the names of the methods of an environment's class that TRL takes for its tools, in TRL's order.

    Source:
        `GRPOTrainer.__init__`, where `_env_tools` is filled.
    """
    found = inspect.getmembers(adapter_class, predicate=inspect.isfunction)
    return [name for name, _ in found if name not in _NO_TOOLS and not name.startswith("_")]


def has_tools(factories: Iterable[Any]) -> bool:
    """Tell whether TRL will find any tool in the environments of a mixture, for it then may change the template."""
    return any(methods_shown(factory) for factory in factories)


def chat_template_of(processing_class: Any, *, has_tools: bool) -> str | None:
    """Return the chat template that TRL uses instead of the tokenizer's own; None for that one.

    Raises:
        SpecError: TRL cannot train with the tokenizer's own, nor mend it.

    Source:
        `GRPOTrainer.__init__`, where `chat_template` is set.
    """
    from trl.chat_template_utils import (  # noqa: PLC0415 - imports torch
        get_training_chat_template,
        is_chat_template_prefix_preserving,
    )

    _check_template(processing_class)
    try:
        if has_tools and not is_chat_template_prefix_preserving(processing_class):
            template: str | None = get_training_chat_template(processing_class)
            return template
    except Exception as error:
        raise SpecError(
            f"TRL cannot train with the chat template of {_name(processing_class)}: {_first_line(error)} Choose a "
            "model whose template TRL knows, or give its tokenizer one that TRL has for training"
        ) from error
    return None


def render(
    processing_class: Any,
    messages: Sequence[JSONObject],
    tools: Sequence[Any],
    chat_template_kwargs: Mapping[str, Any] | None = None,
    *,
    chat_template: str | None = None,
) -> Rendered:
    """Render a prompt.

    Args:
        processing_class: The tokenizer or processor.
        messages: The prompt's messages.
        tools: The tools, as chat templates take them.
        chat_template_kwargs: As in `GRPOConfig`.
        chat_template: See `chat_template_of`.

    Raises:
        SpecError: There is no chat template, or it refuses this prompt.

    Source:
        `GRPOTrainer._tokenize_prompts`.
    """
    _check_template(processing_class)
    options = {"chat_template": chat_template, "add_generation_prompt": True, **(chat_template_kwargs or {})}
    conversation = _as_read(processing_class, messages)

    def ids_of(its_messages: Sequence[JSONObject], its_tools: Sequence[Any]) -> list[int]:
        tokenized = processing_class.apply_chat_template(
            conversation=[list(its_messages)], tools=list(its_tools) or None, tokenize=True, return_dict=True, **options
        )
        return [int(token) for token in tokenized["input_ids"][0]]

    def num_without(whole: int | None, its_messages: Sequence[JSONObject]) -> int | None:
        """Return how many tokens fewer there are without something; None where the template refuses that."""
        try:
            return None if whole is None else whole - len(ids_of(its_messages, ()))
        except Exception:  # noqa: BLE001 - a template raises what it likes
            return None

    try:
        ids = ids_of(conversation, tools)
        text = processing_class.apply_chat_template(
            list(conversation), tools=list(tools) or None, tokenize=False, **options
        )
    except Exception as error:
        raise SpecError(
            f"the chat template of {_name(processing_class)} refuses this prompt: {_first_line(error)} Training would "
            "end there; change the prompt, chat_template_kwargs, or the template"
        ) from error
    of_tools = num_without(len(ids), conversation) if tools else 0
    others = [message for message in conversation if message["role"] != "system"]
    of_system: int | None = 0
    if len(others) < len(conversation):
        of_system = num_without(None if of_tools is None else len(ids) - of_tools, others) if others else None
    return Rendered(str(text), ids, of_tools, of_system)


def _as_read(processing_class: Any, messages: Sequence[JSONObject]) -> Sequence[JSONObject]:
    """Return messages as TRL gives them to a tokenizer, or to a processor: as content blocks."""
    from transformers import ProcessorMixin  # noqa: PLC0415 - imports torch
    from trl.data_utils import prepare_multimodal_messages  # noqa: PLC0415 - imports torch

    if not isinstance(processing_class, ProcessorMixin):
        return messages
    prepared: Sequence[JSONObject] = prepare_multimodal_messages(list(messages))
    return prepared


def _check_template(processing_class: Any) -> None:
    if getattr(processing_class, "chat_template", None) is None:
        raise SpecError(
            f"{_name(processing_class)} has no chat template, so it cannot be shown a conversation; choose a model "
            "that was made for chats, or give its tokenizer a chat_template"
        )


def _name(processing_class: Any) -> str:
    return getattr(processing_class, "name_or_path", "") or type(processing_class).__name__


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line if line.endswith((".", "!", "?")) else f"{line}."
