"""Decides what the SDK prints about environments of this process: warnings and errors, unless the user has set a level.

The SDK prints a line on stdout for each tool call, which belongs into a server's log. A server of this process goes on
printing its own.

Flow: `inprocess` calls `hush` when it is imported, and `begin_quiet` in whatever it runs of an environment.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any, Final

from openreward.environments import environment

LEVELS: Final = ("OPENREWARD_LOG_LEVEL", "LOG_LEVEL")
"""The variables in which the SDK looks for a level when it is imported; a contract test pins them."""

_is_quiet: Final[ContextVar[bool]] = ContextVar("is_quiet", default=False)


class _Hushed:
    """The SDK's logger, without what is said for information while it is quiet."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def info(self, event: str, **fields: Any) -> None:
        if not _is_quiet.get():
            self._logger.info(event, **fields)


def hush() -> None:
    """Let the SDK's logger of tool calls be quiet where it is asked to; a level that the user has set stays."""
    logger: Any = environment.logger
    if not isinstance(logger, _Hushed) and not any(map(os.environ.get, LEVELS)):
        environment.logger = _Hushed(logger)


def begin_quiet() -> None:
    """Be quiet in the current task, and in those it starts."""
    _is_quiet.set(True)
