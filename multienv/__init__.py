"""Train one language model on many Open Reward Standard environments in a single TRL GRPO run.

Importing this package imports nothing heavy; a name is loaded when it is first read.

Flow: the user → `MultiEnvSpec` → a TRL trainer.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multienv import errors
    from multienv.checks import Finding, Severity, ToolsReport
    from multienv.meta import MultiEnvSpec
    from multienv.rewards import discounted
    from multienv.specs import (
        Adaptive,
        CurriculumSpec,
        EnvSpec,
        ForeignSpec,
        Limits,
        RewardSpec,
        Schedule,
        Stage,
        TaskRules,
        preset,
    )
    from multienv.training import MultiEnvGRPOTrainer
    from multienv.types import Adapter, Episode, EpisodeStatus, Step, ToolCallError

__all__ = [
    "Adapter",
    "Adaptive",
    "CurriculumSpec",
    "EnvSpec",
    "Episode",
    "EpisodeStatus",
    "Finding",
    "ForeignSpec",
    "Limits",
    "MultiEnvGRPOTrainer",
    "MultiEnvSpec",
    "RewardSpec",
    "Schedule",
    "Severity",
    "Stage",
    "Step",
    "TaskRules",
    "ToolCallError",
    "ToolsReport",
    "discounted",
    "errors",
    "preset",
]

_HOMES = {
    "Adapter": "multienv.types",
    "Adaptive": "multienv.specs",
    "CurriculumSpec": "multienv.specs",
    "EnvSpec": "multienv.specs",
    "Episode": "multienv.types",
    "EpisodeStatus": "multienv.types",
    "Finding": "multienv.checks",
    "ForeignSpec": "multienv.specs",
    "Limits": "multienv.specs",
    "MultiEnvGRPOTrainer": "multienv.training",
    "MultiEnvSpec": "multienv.meta",
    "RewardSpec": "multienv.specs",
    "Schedule": "multienv.specs",
    "Severity": "multienv.checks",
    "Stage": "multienv.specs",
    "Step": "multienv.types",
    "TaskRules": "multienv.specs",
    "ToolCallError": "multienv.types",
    "ToolsReport": "multienv.checks",
    "discounted": "multienv.rewards",
    "preset": "multienv.specs",
}

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Load a public name from its room."""
    if name == "errors":
        return importlib.import_module("multienv.errors")
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
