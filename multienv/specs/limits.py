"""Decides how many sessions an environment may have, how fast they are opened, and how long all of it may take.

Flow: part of an `EnvSpec`; `sessions` enforces it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multienv.errors import SpecError, nearest

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Limits(BaseModel):
    """What one environment's sessions and episodes may take.

    The defaults suit sandboxes that need half a minute to start.
    Several ranks share counts and rates among them. Neither the SDK nor TRL bounds any of this.

    Attributes:
        max_sessions: Most sessions open at once; None for no limit. TRL opens those of a whole batch before the first
            token, so a batch that needs more is an error, not a wait.
        max_concurrent_starts: Most sessions being opened at once; others wait.
        starts_per_s: Most sessions opened per second; others wait. None for no limit.
        max_retries: How often opening is tried again, each time with a fresh session. A tool call is never tried again
            unless it certainly did not run.
        connect_timeout_s: How long a server that accepts connections but is not ready is waited for, once.
        open_timeout_s: From the request for a session until the environment has been constructed.
        prompt_timeout_s: From there until the prompt is there; waits for the environment's `setup()`.
        tool_timeout_s: One tool call. The session is lost when it is exceeded: the server still holds the tool.
        close_timeout_s: Closing a session. Exceeding it costs nothing but the wait.
        max_tool_calls: Most tool calls of an episode; one more ends it as truncated. None for TRL's limit alone, which
            is the same for all environments.
        episode_timeout_s: From the prompt until the episode ends as truncated; a tool call that is running then is
            given up. None for no limit.
        max_observation_chars: Most characters of a tool's result that the policy is shown; head and tail are kept. None
            for no limit.
        failure_window: How many of the last sessions and calls the circuit breaker looks at.
        failure_threshold: The share of them that must have failed for the environment to be left alone; None to go on
            trying whatever happens.
        cool_down_s: How long it is left alone before one session is tried.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_sessions: Count | None = None
    max_concurrent_starts: Count = 64
    starts_per_s: Seconds | None = None
    max_retries: Annotated[int, Field(ge=0)] = 2
    connect_timeout_s: Seconds = 120.0
    open_timeout_s: Seconds = 600.0
    prompt_timeout_s: Seconds = 600.0
    tool_timeout_s: Seconds = 600.0
    close_timeout_s: Seconds = 15.0
    max_tool_calls: Count | None = None
    episode_timeout_s: Seconds | None = None
    max_observation_chars: Annotated[int, Field(ge=200)] | None = None
    failure_window: Count = 20
    failure_threshold: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    cool_down_s: Seconds = 30.0

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            sentences = "; ".join(sentence(problem, sorted(type(self).model_fields)) for problem in error.errors())
            raise SpecError(f"Limits: {sentences}") from None


def sentence(problem: Any, known: list[str]) -> str:
    """Turn one of pydantic's findings into a sentence that says what was wrong and what is accepted.

    Args:
        problem: One of `ValidationError.errors()`.
        known: The accepted options.
    """
    option = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        unknown = str(problem["loc"][-1])
        return f"unknown option {unknown!r}{nearest(unknown, known)}; accepted: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{option} is missing; it has no default"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    return f"{option}={problem['input']!r}: {message[0].lower()}{message[1:]}"
