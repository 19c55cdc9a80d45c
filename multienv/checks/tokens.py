"""Decides what is said about special tokens: whether the policy's are known, and where an environment writes them.

Flow: `run` → here; how they are shown is `router.spelling`'s to decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from multienv.checks.findings import Code, Finding, Severity, joined, quoted
from multienv.checks.looks import Look, Mixture
from multienv.types import Message

_LIKE_SPECIAL_TOKENS: Final = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]")
"""What many policies' tokenizers read as special tokens."""


def check_policy(mixture: Mixture) -> Iterator[Finding]:
    """Say so if nothing is known of the policy."""
    if mixture.clients and not mixture.knows_policy:
        yield Finding(
            Severity.NOTE,
            None,
            Code.POLICY_UNKNOWN,
            "no tokenizer is known yet, so special tokens, pictures and the chat template were not checked.",
            "Call spec.present_to(tokenizer), or build a MultiEnvGRPOTrainer first.",
        )


def check_special_tokens(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Say where the environment writes strings that are special tokens of the policy."""
    places = {f"tool {quoted(tool.name)}": (tool.name, tool.description, tool.input_schema) for tool in look.tools}
    texts = {place: json.dumps(parts, ensure_ascii=False) for place, parts in places.items()}
    texts[f"the prompt of task {look.index}"] = "\n".join(_texts(look.prompt))
    found = {place: _special_tokens(text, mixture) for place, text in texts.items()}
    written = [f"{place}: {', '.join(map(quoted, tokens[:20]))}" for place, tokens in found.items() if tokens]
    if written and not mixture.knows_policy:
        yield look.finding(
            look.plain_severity,
            Code.SPECIAL_TOKENS,
            f"it writes what many tokenizers read as special tokens: {joined(written)}. As long as "
            "no tokenizer is known, TRL's own trainers give them to the policy as they are.",
            "Call spec.present_to(tokenizer) before the slots are read; MultiEnvGRPOTrainer does it by itself.",
        )
    elif written:
        yield look.finding(
            Severity.NOTE,
            Code.SPECIAL_TOKENS,
            f"it writes special tokens of the policy: {joined(written)}. They are shown with a space behind their "
            "first character, so that they stay text; what the policy copies from a schema is sent as published.",
        )


def _special_tokens(text: str, mixture: Mixture) -> list[str]:
    if mixture.knows_policy:
        return [token for token in mixture.presentation.reserved if token in text]
    return list(dict.fromkeys(_LIKE_SPECIAL_TOKENS.findall(text)))


def _texts(prompt: Iterable[Message]) -> Iterator[str]:
    for message in prompt:
        yield from (part for part in message.parts if isinstance(part, str))
        yield message.reasoning
        yield json.dumps(message.tool_calls, ensure_ascii=False)
