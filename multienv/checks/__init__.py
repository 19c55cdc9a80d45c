"""WHAT could go wrong, said before it does: findings about servers, tools, prompts, templates, secrets and settings.

Flow: `MultiEnvSpec.check` and `MultiEnvSpec.tools_report` → here; nothing here changes what a run does.
"""

from multienv.checks.findings import OF_PLAIN_TRAINERS, Code, Finding, Severity, gravest_first
from multienv.checks.looks import Look, Mixture, Visit
from multienv.checks.report import Collision, Drift, Effects, Renamed, ToolRow, ToolsReport, make_report
from multienv.checks.run import Survey, run_checks

__all__ = [
    "OF_PLAIN_TRAINERS",
    "Code",
    "Collision",
    "Drift",
    "Effects",
    "Finding",
    "Look",
    "Mixture",
    "Renamed",
    "Severity",
    "Survey",
    "ToolRow",
    "ToolsReport",
    "Visit",
    "gravest_first",
    "make_report",
    "run_checks",
]
