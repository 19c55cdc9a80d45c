"""Decides what is said about the length of prompts: those that a model cannot read, and completions without room.

Flow: `run` → here, with the prompts of the sessions that were opened and the policy's tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from multienv.checks.findings import Code, Finding, Severity, sentence
from multienv.checks.looks import Look, Mixture, Visit
from multienv.checks.templates import check_template
from multienv.router.conversations import whole_prompt
from multienv.types import Column, JSONObject, Message


def measured(look: Look, mixture: Mixture) -> Look:
    """Return a look with the length of each prompt that was seen: in tokens with its tools, as the trainer has them.

    Source:
        `GRPOTrainer._tokenize_prompts`, with the rows and the tools of `MultiEnvGRPOTrainer`.
    """
    if mixture.presentation.processing_class is None:
        return look
    try:
        lengths = {
            visit.index: len(_ids(whole(look, visit, mixture), visit, mixture))
            for visit in look.visits
            if visit.listing is not None
        }
    except Exception as error:  # noqa: BLE001 - a template fails in more ways than can be listed
        return replace(look, tokens_failure=error)
    return replace(look, num_tokens=lengths)


def whole(look: Look, visit: Visit, mixture: Mixture) -> list[JSONObject]:
    """Return the prompt of a visited task as the trainer puts it together: the row's messages first."""
    shown = mixture.presentation
    messages = [shown.message(look.name, message) for message in visit.prompt]
    is_plain = visit.prompt == (Message("user", visit.prompt[-1].parts),)
    declared = look.spec.system_prompt if look.spec.system_prompt is not None else mixture.system_prompt
    system = [] if declared is None else [{"role": "system", "content": declared}]
    row = {Column.PROMPT.value: [*system, {"role": "user", "content": ""}]}
    return whole_prompt(row, [] if is_plain else messages, messages[-1]["content"])


def _ids(messages: list[JSONObject], visit: Visit, mixture: Mixture) -> list[int]:
    shown = mixture.presentation
    policy: Any = shown.processing_class
    if shown.has_images:  # TRL gives content blocks to processors
        messages = [{**message, "content": _as_blocks(message["content"])} for message in messages]
    tools = () if visit.listing is None else visit.listing.tools
    tokenized = policy.apply_chat_template(
        conversation=[messages],
        tools=shown.toolbox(tools).functions or None,
        chat_template=shown.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **(getattr(mixture.args, "chat_template_kwargs", None) or {}),
    )
    return list(tokenized["input_ids"][0])


def _as_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _tools_fail(look: Look, mixture: Mixture) -> bool:
    """Tell whether it is the tools alone that cannot be rendered, which is said already."""
    return any(finding.code is Code.TEMPLATE_FAILS for finding in check_template(look, mixture))


def check_fit(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Say which prompts do not fit, alone or with the longest completion."""
    if look.tokens_failure is not None and not _tools_fail(look, mixture):
        yield look.finding(
            Severity.ERROR,
            Code.TEMPLATE_FAILS,
            f"the chat template cannot render its prompts: {type(look.tokens_failure).__name__}: "
            f"{sentence(look.tokens_failure)}",
            "Give the trainer a tokenizer whose template takes such conversations and tools.",
        )
    most = mixture.max_model_tokens
    if most is None or not look.num_tokens:
        return
    index, longest = max(look.num_tokens.items(), key=lambda item: item[1])
    completion = getattr(mixture.args, "max_completion_length", None) or 0
    num = len(look.num_tokens)
    which = f"the prompt of task {index}" + (f", the longest of the {num} that were measured," if num > 1 else "")
    if longest >= most:
        yield look.finding(
            Severity.ERROR,
            Code.PROMPT_TOO_LONG,
            f"{which} has {longest:,} tokens with its tools, and the model takes {most:,}.",
            "Leave such tasks out, shorten the system prompt, or train a model with a longer context.",
        )
    elif longest + completion > most:
        yield look.finding(
            Severity.WARNING,
            Code.COMPLETION_MAY_NOT_FIT,
            f"{which} has {longest:,} tokens with its tools; with max_completion_length={completion:,} that is "
            f"{longest + completion - most:,} more than the {most:,} that the model takes.",
            f"Set max_completion_length to {most - longest:,} at most, or train a model with a longer context.",
        )
