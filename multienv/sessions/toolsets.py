"""Decides which of the SDK's toolsets a name stands for, and who has to be asked for tools because of one.

Flow: `openreward` and `inprocess` ask when they connect, so that a wrong name is told before any session is opened.
"""

from __future__ import annotations

from typing import Any

from multienv.errors import SpecError, nearest
from multienv.specs import EnvSpec


def toolset_class(environment: str, toolset: str | None) -> Any:
    """Return the class of a toolset, as a server of this SDK would choose it.

    Args:
        environment: Name of the environment, for the error.
        toolset: Name of one of the SDK's toolsets, or None.

    Returns:
        A subclass of `openreward.environments.Toolset`, or None.

    Raises:
        SpecError: The SDK has no toolset of that name.
    """
    if toolset is None:
        return None
    from openreward.toolsets import BUILTIN_TOOLSETS  # noqa: PLC0415 - takes a third of a second; few need it

    if toolset not in BUILTIN_TOOLSETS:
        known = sorted(BUILTIN_TOOLSETS)
        raise SpecError(
            f"environment {environment!r}: the SDK has no toolset {toolset!r}{nearest(toolset, known)}; accepted: "
            f"{', '.join(known)}",
            environment=environment,
        )
    return BUILTIN_TOOLSETS[toolset]


def asks_sessions(spec: EnvSpec) -> bool:
    """Tell whether each session is asked for its tools: for those of its task, or those of its toolset."""
    return spec.discover_task_tools or spec.toolset is not None
