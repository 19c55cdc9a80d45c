"""Decides what is said about environments of another making: closed ones, and tools that TRL cannot show.

Flow: `run` → here, with the declarations; no instance is made, and no attribute of the user's objects is read.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from multienv.checks.findings import Code, Finding, Severity, advised, quoted, sentence
from multienv.checks.looks import Mixture
from multienv.checks.signatures import transformers_schema
from multienv.errors import OrderError
from multienv.router.foreign import tool_functions
from multienv.specs import ForeignSpec


def known_class(spec: ForeignSpec) -> type | None:
    """Return the class of its instances; None where that is known only by making one, or by reading an object."""
    made: Any = spec.__dict__.get("environment_factory")
    while isinstance(made, functools.partial):
        made = made.func
    return made if isinstance(made, type) else None


def check_foreign(mixture: Mixture) -> Iterator[Finding]:
    """Say which foreign environments are closed."""
    for name, foreign in mixture.foreign.items():
        try:
            foreign.check_open()
        except OrderError as error:
            yield Finding(Severity.ERROR, name, Code.CLOSED, *advised(error, "Make a new MultiEnvSpec."))


def check_foreign_tools(mixture: Mixture) -> Iterator[Finding]:
    """Say of classes which tools TRL would fail to show, and which have none."""
    for name, foreign in mixture.foreign.items():
        cls = known_class(foreign.spec)
        if cls is None:
            continue
        tools = tool_functions(cls)
        if not tools:
            yield Finding(
                Severity.WARNING,
                name,
                Code.NO_TOOLS,
                f"class {cls.__name__} has no public method beside reset and get_reward, so the policy can call "
                "nothing there.",
                "Give it a method, unless its reward judges the first answer.",
            )
        for tool, function in tools.items():
            if isinstance(inspect.getattr_static(cls, tool), staticmethod):
                continue  # it has no self that could be taken off
            try:
                transformers_schema(function)
            except Exception as error:  # noqa: BLE001 - whatever it is, TRL meets it too
                yield Finding(
                    Severity.ERROR,
                    name,
                    Code.TOOL_UNSHOWABLE,
                    f"tool {quoted(tool)} of class {cls.__name__} cannot be shown to the policy: {sentence(error)}",
                    "Give the method a docstring that describes each parameter under Args:, and type hints; or begin "
                    "its name with an underscore.",
                )
