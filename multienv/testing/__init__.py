"""For those who write environments or train on them: a server that fails on demand, the ORS contract, offline replicas.

Importing this package imports nothing heavy; a name is loaded when it is first read.

Flow: tests, the user's own included → `FaultServer`, `check_environment`, `replica`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multienv.testing.check import check_environment
    from multienv.testing.faults import Fault, FaultKind, Phase
    from multienv.testing.replicas import replica
    from multienv.testing.report import Check, Finding, Report
    from multienv.testing.server import FaultServer
    from multienv.testing.small import Dialect, ToolRun

__all__ = [
    "Check",
    "Dialect",
    "Fault",
    "FaultKind",
    "FaultServer",
    "Finding",
    "Phase",
    "Report",
    "ToolRun",
    "check_environment",
    "replica",
]

_HOMES = {
    "Check": "multienv.testing.report",
    "Dialect": "multienv.testing.small",
    "Fault": "multienv.testing.faults",
    "FaultKind": "multienv.testing.faults",
    "FaultServer": "multienv.testing.server",
    "Finding": "multienv.testing.report",
    "Phase": "multienv.testing.faults",
    "Report": "multienv.testing.report",
    "ToolRun": "multienv.testing.small",
    "check_environment": "multienv.testing.check",
    "replica": "multienv.testing.replicas",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
