"""WHAT could go wrong, said before it does: findings about servers, tools, prompts, templates, secrets and settings.

Flow: `MultiEnvSpec.check` and `MultiEnvSpec.tools_report` → here; nothing here changes what a run does.
"""

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Mixture
from multienv.checks.report import Collision, Drift, Effects, Renamed, ToolRow, ToolsReport, make_report
from multienv.checks.run import run_checks

__all__ = [
    "Code",
    "Collision",
    "Drift",
    "Effects",
    "Finding",
    "Mixture",
    "Renamed",
    "Severity",
    "ToolRow",
    "ToolsReport",
    "make_report",
    "run_checks",
]
