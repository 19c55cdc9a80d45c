"""Decides what is said about tools as methods: new names, and what a signature cannot carry of a schema.

That is what `GRPOTrainer` and `AsyncGRPOTrainer` show by themselves; `MultiEnvGRPOTrainer` shows the schema.

Flow: `run` → here, with the methods that `router.tools` makes of the published tools.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from multienv.checks.findings import Code, Finding, joined, quoted
from multienv.checks.hidden import hidden_parts
from multienv.checks.looks import Look, Mixture
from multienv.router.adapter import RESERVED_MEMBERS
from multienv.router.spelling import Spelling
from multienv.router.tools import BoundTool, bind_tools
from multienv.types import JSONObject, ToolSpec

_FIX = "Nothing, if the names will do; MultiEnvGRPOTrainer shows the published ones."


def transformers_schema(method: Callable[..., Any]) -> JSONObject:
    """Return what transformers reads off a method, as TRL's own trainers show it.

    Raises:
        ValueError: It cannot be read: no docstring, or no type hints.
    """
    from transformers.utils import get_json_schema  # noqa: PLC0415 - heavy; this is the one place that needs it

    shown: JSONObject = get_json_schema(method.__get__(object()))
    return shown


def check_names(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Name the tools and parameters that a method must call otherwise."""
    for tool in _bound(look, mixture):
        if tool.name != tool.spec.name:
            yield look.finding(
                look.plain_severity,
                Code.TOOL_RENAMED,
                f"tool {quoted(tool.spec.name)} is called {tool.name!r} by TRL's own trainers, for it "
                f"{why_renamed(tool.spec.name)}.",
                _FIX,
            )
        renamed = {old: new for old, new in tool.parameters.items() if old != new}
        if renamed:
            listed = joined(f"{quoted(old)} is {new!r}" for old, new in renamed.items())
            yield look.finding(
                look.plain_severity,
                Code.PARAMETER_RENAMED,
                f"parameters of tool {quoted(tool.spec.name)} have other names in TRL's own trainers: {listed}.",
                _FIX,
            )


def check_signatures(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Say, tool by tool, what TRL's own trainers do not show of the published schema."""
    for tool in look.tools:
        if hidden := hidden_by_signature(tool, mixture.presentation.spelling):
            yield look.finding(
                look.plain_severity,
                Code.SIGNATURE_LOSSY,
                f"TRL's own trainers do not show of tool {quoted(tool.name)}: {joined(hidden)}.",
                "Train with MultiEnvGRPOTrainer, or give the trainer to make_concurrent: they show the schema itself.",
            )


def hidden_by_signature(tool: ToolSpec, spelling: Spelling) -> list[str]:
    """Return what a method's signature and docstring do not carry of a tool's schema; see `hidden_parts`."""

    def show(schema: Mapping[str, Any]) -> str:
        bound = bind_tools([replace(tool, input_schema=schema)], taken=RESERVED_MEMBERS, spelling=spelling)
        return json.dumps(transformers_schema(bound[0].method))

    return hidden_parts(tool.input_schema, show)


def _bound(look: Look, mixture: Mixture) -> list[BoundTool]:
    return bind_tools(look.tools, taken=RESERVED_MEMBERS, spelling=mixture.presentation.spelling)


def why_renamed(name: str) -> str:
    """Say why a published name can be no method's, to go on with after "it"."""
    if name.startswith("_"):
        return "begins with an underscore, and TRL takes it for private"
    if keyword.iskeyword(name):
        return "is a keyword of Python"
    return "is a member of every environment" if name.isidentifier() else "is no identifier of Python"
