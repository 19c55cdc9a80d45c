"""Decides which checks there are, and that none keeps another from being made.

Flow: `MultiEnvSpec.check` → `run_checks` → `look_at`, then every check of the two tables → findings, gravest first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from multienv.checks.apart import check_apart
from multienv.checks.batches import check_evaluation_limits, check_rows, check_session_limits
from multienv.checks.findings import Code, Finding, Severity, gravest_first
from multienv.checks.fit import check_fit, measured
from multienv.checks.foreign import check_foreign, check_foreign_tools
from multienv.checks.looking import look_at
from multienv.checks.looks import Look, Mixture
from multienv.checks.metadata import check_metadata
from multienv.checks.needed_secrets import check_secrets
from multienv.checks.pins import check_pins
from multienv.checks.prompts import check_prompt
from multienv.checks.report import ToolsReport
from multienv.checks.rewards import check_reward_sources, check_weights
from multienv.checks.sampling import check_curriculum, check_parts, check_sampling_weights, check_shares
from multienv.checks.servers import check_server, check_session, check_tasks, check_what_is_offered
from multienv.checks.settings import check_columns, check_tool_limits, check_trainer, check_version
from multienv.checks.signatures import check_names, check_signatures
from multienv.checks.templates import check_template
from multienv.checks.tokens import check_policy, check_special_tokens
from multienv.checks.tools import check_schemas, check_tasks_tools, check_terminal_tool

EnvironmentCheck: TypeAlias = Callable[[Look, Mixture], Iterable[Finding]]
"""Judges what one ORS environment answered."""

MixtureCheck: TypeAlias = Callable[[Mixture], Iterable[Finding]]
"""Judges the declarations, the configuration, and how many rows there are."""

ENVIRONMENT_CHECKS: Final[tuple[EnvironmentCheck, ...]] = (
    check_tasks,
    check_session,
    check_what_is_offered,
    check_secrets,
    check_schemas,
    check_names,
    check_signatures,
    check_tasks_tools,
    check_terminal_tool,
    check_special_tokens,
    check_prompt,
    check_template,
    check_fit,
)
"""Made for each environment that could be reached."""

MIXTURE_CHECKS: Final[tuple[MixtureCheck, ...]] = (
    check_trainer,
    check_version,
    check_columns,
    check_tool_limits,
    check_rows,
    check_session_limits,
    check_evaluation_limits,
    check_curriculum,
    check_sampling_weights,
    check_parts,
    check_shares,
    check_weights,
    check_reward_sources,
    check_policy,
    check_foreign,
    check_foreign_tools,
    check_metadata,
    check_apart,
    check_pins,
)
"""Made once."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found of a mixture before a run.

    Attributes:
        looks: What each ORS environment answered.
        findings: What could go wrong, gravest first.
        mixture: What was looked at.
        tools: The tools that are known from the looks, side by side; None where they cannot be shown.
    """

    looks: tuple[Look, ...]
    findings: tuple[Finding, ...]
    mixture: Mixture
    tools: ToolsReport | None = None


def run_checks(mixture: Mixture, num_visits: int = 1) -> Survey:
    """Make every check.

    Args:
        mixture: What is checked.
        num_visits: Tasks of each environment that a session is opened for.

    Returns:
        What was found. Whatever goes wrong is a finding; nothing is raised.
    """
    failed: list[Finding] = []
    looks: list[Look] = []
    try:
        looks = [measured(look, mixture) for look in look_at(mixture.clients, num_visits, mixture.max_open)]
    except Exception as error:  # noqa: BLE001 - see `_contained`
        failed.append(_failed("look_at", None, error))
    mixture = replace(
        mixture,
        outlines={look.name: look.outline for look in looks if look.outline is not None},
        held_out={look.name: look.evaluated for look in looks if look.evaluated is not None},
    )
    if mixture.compare_pins is not None:
        reached = [look.name for look in looks if _knows_tasks(look)]
        try:
            mixture = replace(mixture, pins=mixture.compare_pins(reached))
        except Exception as error:  # noqa: BLE001 - see `_contained`
            failed.append(_failed("compare_pins", None, error))
    findings = gravest_first([*failed, *_findings(mixture, looks)])
    return Survey(tuple(looks), tuple(findings), mixture)


def _knows_tasks(look: Look) -> bool:
    return look.outline is not None and look.held_out_failure is None


def _findings(mixture: Mixture, looks: Iterable[Look]) -> Iterator[Finding]:
    for check in MIXTURE_CHECKS:
        yield from _contained(check.__name__, None, functools.partial(check, mixture))
    for look in looks:
        if look.failure is not None:
            yield from check_server(look)
            continue
        for environment_check in ENVIRONMENT_CHECKS:
            make = functools.partial(environment_check, look, mixture)
            yield from _contained(environment_check.__name__, look.name, make)


def _contained(check: str, environment: str | None, make: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Make one check; what it raises is a finding."""
    findings: list[Finding] = []
    try:
        findings.extend(make())
    except Exception as error:  # noqa: BLE001 - a check that breaks must not keep the others from being made
        findings.append(_failed(check, environment, error))
    return findings


def _failed(check: str, environment: str | None, error: Exception) -> Finding:
    return Finding(
        Severity.WARNING,
        environment,
        Code.CHECK_FAILED,
        f"{check} broke off with {type(error).__name__}: {str(error)[:400]}",
        "The other checks were made; what this one looks at is not known.",
    )
