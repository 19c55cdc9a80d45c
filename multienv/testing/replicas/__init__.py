"""Offline replicas of the environments that have a preset: the same tools, task types and rewards, nothing to start.

A replica is an ORS `Environment` class. It runs in process or on a server, with no key, no container, no shell and no
disk: each session has a small file tree in memory. Its tasks are easy and few, so that a tiny policy can learn them.

Importing this package imports nothing heavy; `replica` loads the SDK.

Flow: tests and offline runs → `replica` → `MultiEnvSpec`, or a server; `solution` says how a task is solved.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from multienv.errors import SpecError, nearest
from multienv.testing.replicas.assignments import make_assignment
from multienv.types import JSONObject

if TYPE_CHECKING:
    from openreward.environments import Environment

__all__ = ["replica", "solution"]

_CLASSES: Final = {
    "seta": ("multienv.testing.replicas.seta", "SETAEnv"),
    "endless-terminals": ("multienv.testing.replicas.container", "EndlessTerminals"),
    "swe-rebench-v2": ("multienv.testing.replicas.container", "SWERebenchV2"),
}


def replica(preset_name: str) -> type[Environment]:
    """Return the offline replica of a preset's environment.

    Args:
        preset_name: Name of a preset.

    Returns:
        An ORS `Environment` class. A subclass of it may set `num_tasks_per_split`, and `latency_s` for the start of a
        session and for each tool call.

    Raises:
        SpecError: There is no such preset.
    """
    _check(preset_name)
    module, name = _CLASSES[preset_name]
    found: type[Environment] = getattr(importlib.import_module(module), name)
    return found


def solution(preset_name: str, task_spec: JSONObject) -> list[tuple[str, dict[str, Any]]]:
    """List the tool calls that solve a task of a replica, the last of which submits.

    Args:
        preset_name: Name of a preset.
        task_spec: The task spec, as the replica gives it.

    Returns:
        Names of tools with their arguments.

    Raises:
        SpecError: There is no such preset, or the task spec is none of its replica's.

    Example:
        >>> solution("endless-terminals", {"id": "task_000000_0000"})[-1]
        ('submit_answer', {})
    """
    _check(preset_name)
    return [(tool, dict(arguments)) for tool, arguments in make_assignment(preset_name, task_spec).calls]


def _check(preset_name: str) -> None:
    if not isinstance(preset_name, str) or preset_name not in _CLASSES:
        raise SpecError(
            f"there is no replica {preset_name!r}{nearest(str(preset_name), _CLASSES)}; known: {', '.join(_CLASSES)}"
        )
