"""Decides how long each phase of a session may take.

Flow: part of an `EnvSpec`; `sessions` enforces it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Time limits of one environment's sessions, in seconds.

    The defaults suit sandboxes that take minutes to start under load. Neither the SDK nor TRL bounds these phases.

    Attributes:
        connect_timeout_s: How long a server that accepts connections but is not ready is waited for, once.
        open_timeout_s: From the request for a session until the environment has been constructed.
        prompt_timeout_s: From there until the prompt is there; waits for the environment's `setup()`.
        tool_timeout_s: One tool call. The session is lost when it is exceeded: the server still holds the tool.
        close_timeout_s: Closing a session. Exceeding it costs nothing but the wait.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect_timeout_s: float = Field(default=120.0, gt=0)
    open_timeout_s: float = Field(default=600.0, gt=0)
    prompt_timeout_s: float = Field(default=600.0, gt=0)
    tool_timeout_s: float = Field(default=600.0, gt=0)
    close_timeout_s: float = Field(default=15.0, gt=0)
