"""Decides what is said about the length of prompts: those that a model cannot read, and completions without room.

Flow: `run` → here, with the prompts of the sessions that were opened and the policy's tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Look, Mixture, Visit
from multienv.router.conversations import whole_prompt
from multienv.types import Column, JSONObject, Message


def check_fit(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Say which prompts do not fit, alone or with the longest completion."""
    most, lengths = mixture.max_model_tokens, prompt_lengths(look, mixture)
    if most is None or not lengths:
        return
    index, longest = max(lengths.items(), key=lambda item: item[1])
    completion = getattr(mixture.args, "max_completion_length", None) or 0
    measured = f"the prompt of task {index}, the longest of {len(lengths)} that were measured, has {longest:,} tokens"
    if longest >= most:
        yield look.finding(
            Severity.ERROR,
            Code.PROMPT_TOO_LONG,
            f"{measured} with its tools, and the model reads {most:,}.",
            "Leave such tasks out, shorten the system prompt, or train a model with a longer context.",
        )
    elif longest + completion > most:
        yield look.finding(
            Severity.WARNING,
            Code.COMPLETION_MAY_NOT_FIT,
            f"{measured} with its tools, and max_completion_length={completion:,} exceeds the model's {most:,} by "
            f"{longest + completion - most:,}.",
            f"Set max_completion_length to {most - longest:,} at most, or train a model with a longer context.",
        )


def prompt_lengths(look: Look, mixture: Mixture) -> dict[int, int]:
    """Return the length of each prompt that was seen, in tokens with its tools, by task index.

    Empty where nobody knows the policy. The prompt is that of `MultiEnvGRPOTrainer`.
    """
    policy = mixture.presentation.processing_class
    if policy is None:
        return {}
    kwargs = getattr(mixture.args, "chat_template_kwargs", None) or {}
    return {visit.index: len(_ids(look, visit, mixture, policy, kwargs)) for visit in look.visits}


def _ids(look: Look, visit: Visit, mixture: Mixture, policy: Any, kwargs: JSONObject) -> list[int]:
    shown = mixture.presentation
    messages = [shown.message(look.name, message) for message in visit.prompt]
    is_plain = visit.prompt == (Message("user", visit.prompt[-1].parts),)
    declared = look.spec.system_prompt if look.spec.system_prompt is not None else mixture.system_prompt
    system = [] if declared is None else [{"role": "system", "content": declared}]
    row = {Column.PROMPT.value: [*system, {"role": "user", "content": ""}]}
    tokenized = policy.apply_chat_template(
        conversation=[whole_prompt(row, [] if is_plain else messages, messages[-1]["content"])],
        tools=shown.toolbox(visit.listing.tools).functions or None,
        chat_template=shown.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **kwargs,
    )
    return list(tokenized["input_ids"][0])
