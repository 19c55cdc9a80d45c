"""Decides whose last message is graded: where an environment has a terminal tool and the policy has stopped by itself.

Flow: the first reward function of a batch → `grade_last_messages` → `Play.grade` of each adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from multienv.router.adapter import EnvironmentAdapter
from multienv.router.dispatch import MetaEnvironment
from multienv.sessions import session_loop


def grade_last_messages(environments: Sequence[Any], completions: Sequence[Any]) -> None:
    """Have terminal tools grade the last plain messages of a batch, all at once; those graded already stay as they are.

    A completion that ends with a tool call or a tool's result is no answer: it is left alone.

    Args:
        environments: The environment of each rollout; those of another making are left alone.
        completions: The chat messages of each rollout, or its text.

    Source:
        The SDK's `AsyncSession.call_terminal_tool`.
    """
    grading = [
        environment._grade(message)  # noqa: SLF001 - hidden from TRL, which would show it to the policy
        for environment, completion in zip(environments, completions, strict=True)
        if isinstance(environment, EnvironmentAdapter | MetaEnvironment)
        and (message := last_plain_message(completion)) is not None
    ]
    if grading:
        session_loop().run(_all(grading))


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
