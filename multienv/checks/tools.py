"""Decides what is said about published tools: schemas nothing can be checked against, and tools that come and go.

Flow: `run` → here, with what `looks` was answered.
"""

from __future__ import annotations

from collections.abc import Iterator

from multienv.checks.differences import drift_of
from multienv.checks.findings import Code, Finding, Severity, joined, quoted
from multienv.checks.looks import Look, Mixture
from multienv.checks.settings import TrainerFamily, family_of
from multienv.router.arguments import ArgumentCheck


def check_schemas(look: Look, _mixture: Mixture) -> Iterator[Finding]:
    """Name the tools whose arguments cannot be checked before they leave."""
    for tool in look.tools:
        if reason := ArgumentCheck(tool.input_schema).unusable:
            yield look.finding(
                Severity.WARNING,
                Code.SCHEMA_UNUSABLE,
                f"arguments of tool {quoted(tool.name)} are not checked before they are sent: {reason}.",
                "Correct the schema on the server; until then the server alone judges them.",
            )


def check_tasks_tools(look: Look, _mixture: Mixture) -> Iterator[Finding]:
    """Say which tools differ between the tasks that are known."""
    differing = [f"{quoted(tool)}: {'; '.join(differences)}" for tool, differences in drift_of(look.listings).items()]
    if differing:
        yield look.finding(
            look.plain_severity,
            Code.TOOLS_DIFFER,
            f"tools differ between its tasks: {joined(differing)}. GRPOTrainer and meta_environment_factory show every "
            "task all of them, each in the form that is known first.",
            "Train with MultiEnvGRPOTrainer, which shows each rollout the tools of its own task.",
        )


def check_terminal_tool(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Say where a terminal tool is not called."""
    family = family_of(mixture.args)
    if look.terminal_tool is None or family not in (TrainerFamily.ASYNC, TrainerFamily.NOT_GIVEN):
        return
    yield look.finding(
        Severity.WARNING if family is TrainerFamily.ASYNC else Severity.NOTE,
        Code.TERMINAL_TOOL_UNGRADED,
        f"its terminal tool {quoted(look.terminal_tool.name)} grades the policy's last plain message, and TRL's own "
        "AsyncGRPO loop never calls it: such rollouts go unscored there.",
        "Give an AsyncGRPOTrainer to multienv.training.make_concurrent; GRPO trainers need nothing.",
    )
