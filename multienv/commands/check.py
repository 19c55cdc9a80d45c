"""Decides what `multienv check` shows of a run before it: every environment in a row, and everything that was found.

Flow: `cli.check` → `run_check` → `MultiEnvSpec.survey` → tables or JSON, and an exit status.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from multienv.checks import OF_PLAIN_TRAINERS, Look, Severity, Survey, prompt_lengths
from multienv.commands.rendering import chat_template_of
from multienv.commands.screen import print_json, working
from multienv.specs import ForeignSpec

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def run_check(
    spec: MultiEnvSpec,
    *,
    args: Any,
    processing_class: Any | None,
    max_model_tokens: int | None,
    num_prompts: int = 1,
    console: Console,
    is_json: bool = False,
) -> int:
    """Ask every environment, and show what it answered and what could go wrong with `MultiEnvGRPOTrainer`.

    Args:
        spec: The mixture.
        args: TRL's configuration.
        processing_class: The model's tokenizer or processor; None where nobody named the model.
        max_model_tokens: Most tokens of a prompt and its completion together.
        num_prompts: Prompts of each environment that are measured; each opens a session.
        console: Where it is shown.
        is_json: Show it as JSON instead.

    Returns:
        1 where an error was found, else 0.
    """
    if processing_class is not None:
        template = chat_template_of(processing_class, has_tools=True)
        spec.present_to(processing_class, chat_template=template, has_conversations=True)
    with working("asking every environment"):
        survey = spec.survey(args, num_prompts=num_prompts, max_model_tokens=max_model_tokens)
        concerned = tuple(finding for finding in survey.findings if finding.code not in OF_PLAIN_TRAINERS)
        survey = replace(survey, findings=concerned)
        collisions = _collisions(spec)
    rows = {look.name: _row(look, survey) for look in survey.looks}
    if is_json:
        print_json(
            {
                "environments": rows,
                "foreign": [name for name, each in spec.environments.items() if isinstance(each, ForeignSpec)],
                "max_model_tokens": max_model_tokens,
                "collisions": collisions,
                "findings": [asdict(finding) for finding in survey.findings],
            }
        )
    else:
        _show(survey, rows, collisions, max_model_tokens, console)
    return int(any(finding.severity is Severity.ERROR for finding in survey.findings))


def _row(look: Look, survey: Survey) -> dict[str, Any]:
    """Return what an environment answered, as JSON can say it."""
    reason = look.failure or look.session_failure or look.tasks_failure
    lengths = list(prompt_lengths(look, survey.mixture).values()) if look.failure is None else []
    target = look.spec.target
    held_out = look.spec.evaluation
    return {
        "target": target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}",
        "is_reached": look.failure is None,
        "reason": None if reason is None else str(reason),
        "splits": dict(look.splits),
        "num_tasks": None if look.outline is None else look.outline.num_rows,
        "split": look.spec.first_choice.split,
        "eval_split": None if held_out is None else held_out.split,
        "tools": [tool.name for tool in look.tools],
        "terminal_tool": None if look.terminal_tool is None else look.terminal_tool.name,
        "required_secrets": list(look.required_secrets),
        "open_s": [round(visit.open_s, 3) for visit in look.visits],
        "prompt_tokens": lengths,
    }


def _collisions(spec: MultiEnvSpec) -> list[str]:
    """Return the tools whose name means something else in another environment; empty where nobody can be asked."""
    try:
        report = spec.tools_report()
    except Exception:  # noqa: BLE001 - whatever it is, it is among the findings
        return []
    return [collision.tool for collision in report.collisions if not collision.is_same]


def _show(
    survey: Survey, rows: dict[str, dict[str, Any]], collisions: list[str], most: int | None, console: Console
) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("environment", no_wrap=True)
    for heading in ("where", "splits", "chosen", "tools", "secrets", "open s", "prompt tokens"):
        table.add_column(heading, justify="left" if heading == "where" else "right", overflow="fold")
    for name, row in rows.items():
        if not row["is_reached"]:
            table.add_row(escape(name), escape(row["target"]), "[bold red]not reached[/]", *["-"] * 5)
            continue
        splits = ", ".join(f"{split} {num:,}" for split, num in row["splits"].items())
        tools = f"{len(row['tools'])}{' + terminal' if row['terminal_tool'] else ''}"
        table.add_row(
            escape(name),
            escape(row["target"]),
            escape(splits) or "-",
            "-" if row["num_tasks"] is None else f"{row['num_tasks']:,}",
            tools,
            escape(", ".join(row["required_secrets"])) or "none",
            _range(row["open_s"], ".1f"),
            _range(row["prompt_tokens"], ",d"),
        )
    console.print(table)
    if most is not None:
        console.print(f"the model reads {most:,} tokens, prompt and completion together", highlight=False)
    if collisions:
        listed = ", ".join(collisions)
        console.print(f"tools of one name that differ between environments: {listed}", markup=False, highlight=False)
    for finding in survey.findings:
        owner = f"{finding.environment}: " if finding.environment else ""
        console.print(
            f"{finding.severity} [{finding.code}] {owner}{finding.message}",
            style=_STYLES[finding.severity],
            markup=False,
            highlight=False,
        )
        if finding.fix:
            console.print(f"    {finding.fix}", markup=False, highlight=False)
    counts = {severity: sum(finding.severity is severity for finding in survey.findings) for severity in Severity}
    console.print(", ".join(f"{num} {severity}s" for severity, num in counts.items()), highlight=False)


def _range(values: list[Any], how: str) -> str:
    if not values:
        return "-"
    low, high = format(min(values), how), format(max(values), how)
    return low if low == high else f"{low} to {high}"
