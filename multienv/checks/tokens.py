"""Decides what is said about special tokens: whether the policy's are known, and where an environment writes them.

Flow: `run` → here; how they are shown is `router.spelling`'s to decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from multienv.checks.findings import Code, Finding, Severity, joined, quoted
from multienv.checks.looks import Look, Mixture
from multienv.types import Message


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
    reserved = mixture.presentation.reserved
    places = {f"tool {quoted(tool.name)}": (tool.name, tool.description, tool.input_schema) for tool in look.tools}
    texts = {place: json.dumps(parts, ensure_ascii=False) for place, parts in places.items()}
    texts[f"the prompt of task {look.index}"] = "\n".join(_texts(look.prompt))
    found = {place: [token for token in reserved if token in text] for place, text in texts.items()}
    if written := [f"{place}: {', '.join(map(quoted, tokens))}" for place, tokens in found.items() if tokens]:
        yield look.finding(
            Severity.NOTE,
            Code.SPECIAL_TOKENS,
            f"it writes special tokens of the policy: {joined(written)}. They are shown with a space behind their "
            "first character, so that they stay text; what the policy copies from a schema is sent as published.",
        )


def _texts(prompt: Iterable[Message]) -> Iterator[str]:
    for message in prompt:
        yield from (part for part in message.parts if isinstance(part, str))
        yield message.reasoning
        yield json.dumps(message.tool_calls, ensure_ascii=False)
