"""Decides whose last message is graded, and whose was cut short: where the policy has stopped by itself, and where not.

Flow: the first reward function of a batch → `grade_last_messages` → `Play.grade` of each adapter. A trainer that knows
why completions ended says so first, with `note_cutoffs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from multienv.router.adapter import EnvironmentAdapter
from multienv.router.dispatch import MetaEnvironment
from multienv.sessions import session_loop

UNANSWERED: Final = "a limit of the trainer came before the result of its last tool call"


def grade_last_messages(environments: Sequence[Any], completions: Sequence[Any]) -> None:
    """Have terminal tools grade the last plain messages of a batch, all at once; those graded already stay as they are.

    A completion that ends with a tool call was cut short by the trainer: its episode counts as truncated, unless it was
    over. One that ends with a tool's result, or that was cut in the middle, is no answer either: it is left alone.

    Args:
        environments: The environment of each rollout; those of another making are left alone.
        completions: The chat messages of each rollout, or its text.

    Source:
        The SDK's `AsyncSession.call_terminal_tool`.
    """
    note_cutoffs(environments, [UNANSWERED if ends_with_call(completion) else None for completion in completions])
    grading = [
        environment._grade(message)  # noqa: SLF001 - hidden from TRL, which would show it to the policy
        for environment, completion in zip(environments, completions, strict=True)
        if isinstance(environment, EnvironmentAdapter | MetaEnvironment)
        and (message := last_plain_message(completion)) is not None
    ]
    if grading:
        session_loop().run(_all(grading))


def note_cutoffs(environments: Sequence[Any], reasons: Sequence[str | None]) -> None:
    """Note which completions a limit of the trainer cut short, before anything is graded.

    Args:
        environments: The environment of each rollout; those of another making are left alone.
        reasons: Which limit it was, in words; None where the policy stopped by itself.
    """
    for environment, reason in zip(environments, reasons, strict=True):
        if reason is not None and isinstance(environment, EnvironmentAdapter | MetaEnvironment):
            environment._cut_off(reason)  # noqa: SLF001 - hidden from TRL, which would show it to the policy


def ends_with_call(completion: Any) -> bool:
    """Tell whether a completion ends with a tool call that has no result.

    Example:
        >>> ends_with_call([{"role": "assistant", "tool_calls": [{"type": "function"}]}])
        True
    """
    last = completion[-1] if completion and not isinstance(completion, str) else None
    return isinstance(last, Mapping) and bool(last.get("tool_calls"))


def last_plain_message(completion: Any) -> str | None:
    """Return the text of a completion's last message, if it is the policy's own and calls no tool.

    Example:
        >>> last_plain_message([{"role": "assistant", "content": "It is 4."}])
        'It is 4.'
    """
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text") or "") for block in content if block.get("type") == "text")


async def _all(grading: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*grading)
