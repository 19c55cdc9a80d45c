"""Decides what an evaluation asks of a policy: the next message, and what it took.

Flow: `play` → `Policy.reply` → `EndpointPolicy` or `LocalPolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from multienv.types import JSONObject


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a policy made.

    Attributes:
        tool: The name it gave.
        arguments: Its arguments; None where they cannot be read.
        complaint: Why they cannot be read, in words for the policy.
        call_id: What the endpoint calls the call; empty for a policy that numbers none.
    """

    tool: str
    arguments: JSONObject | None
    complaint: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A policy's message.

    Attributes:
        message: As it goes into the conversation.
        text: Its plain text.
        calls: Its tool calls, in order.
        is_cut: True where a limit on its tokens ended it.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        request_s: Seconds until it was there.
    """

    message: JSONObject
    text: str = ""
    calls: tuple[Call, ...] = ()
    is_cut: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    request_s: float = 0.0


class PolicyFailedError(Exception):
    """The policy could not be asked; no fault of its own, so the attempt goes unscored."""


class PromptTooLongError(Exception):
    """The conversation is longer than the policy can read."""


class Policy(Protocol):
    """What is evaluated. Its coroutines run on one event loop."""

    @property
    def name(self) -> str:
        """What it is called in the results."""

    async def prepare(self) -> None:
        """Check that it can be asked.

        Raises:
            ServerError: It cannot be reached, or refuses the key.
            SpecError: There is no such model.
        """

    async def reply(self, messages: Sequence[JSONObject], tools: Sequence[JSONObject], seed: int | None) -> Reply:
        """Return the next message.

        Args:
            messages: The conversation so far.
            tools: The tools it may call, as chat templates take them.
            seed: Seed of the sampling; None for any.

        Raises:
            PolicyFailedError: It could not be asked.
            PromptTooLongError: The conversation is too long for it.
        """

    async def close(self) -> None:
        """Let go of what it holds."""
