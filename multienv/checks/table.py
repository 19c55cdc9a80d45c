"""Decides how a tools report looks in a terminal.

Flow: `str(ToolsReport)` → `as_text`.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from multienv.checks.findings import quoted

if TYPE_CHECKING:
    from multienv.checks.report import Effects, ToolRow, ToolsReport

WIDTH: Final = 120
"""Most columns of a report."""
_TRAINERS: Final = ("MultiEnvGRPOTrainer", "TRL's own", "meta_environment_factory")


def as_text(report: ToolsReport) -> str:
    """Return a report as tables; those without rows are one line."""
    parts = [
        _table("Tools", ("environment", "tool", *_TRAINERS), map(_cells, report.rows)),
        _table(
            "Same name in several environments",
            ("tool", "environments", "schemas", "effects"),
            (
                (
                    quoted(one.tool),
                    ", ".join(one.environments),
                    "the same" if one.is_same else "differ. " + ". ".join(one.differences),
                    _effects(one.effects),
                )
                for one in report.collisions
            ),
        ),
        _table(
            "Different between tasks",
            ("environment", "tool", "how", "effects"),
            (
                (one.environment, quoted(one.tool), ". ".join(one.differences), _effects(one.effects))
                for one in report.drift
            ),
        )
        + _looked_at(report.looked_at),
        _table(
            "Renamed",
            ("environment", "tool", "why", "effects"),
            ((one.environment, quoted(one.tool), one.reason, _effects(one.effects)) for one in report.renamed),
        ),
    ]
    return "\n\n".join(parts)


def _looked_at(tasks: Mapping[str, str]) -> str:
    """Say of which tasks the tools are known, one line for the environments of which those of the same tasks are."""
    owners: dict[str, list[str]] = {}
    for name, words in tasks.items():
        owners.setdefault(words, []).append(name)
    lines = [f"known for {', '.join(names)}: {words}" for words, names in owners.items()]
    return "".join(f"\n  {part}" for line in lines for part in textwrap.wrap(line, WIDTH - 2))


def _cells(row: ToolRow) -> tuple[str, ...]:
    if row.failure:
        return (row.environment, row.failure, "-", "-", "-")
    if row.is_terminal:
        return (row.environment, f"{quoted(row.tool)} (terminal)", "not shown", "not shown", "not shown")
    return (row.environment, *(quoted(name) if name else "-" for name in (row.tool, row.exact, row.plain, row.meta)))


def _effects(effects: Effects) -> str:
    """Say what trainers do, those that do the same together."""
    said: dict[str, list[str]] = {}
    for trainer, effect in zip(_TRAINERS, (effects.exact, effects.plain, effects.meta), strict=True):
        if effect:
            said.setdefault(effect, []).append(trainer)
    return "\n".join(f"{', '.join(trainers)}: {effect}" for effect, trainers in said.items())


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from rich import box  # noqa: PLC0415 - printing only
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    filled = list(rows)
    if not filled:
        return f"{title}: none"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in filled:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as printed:
        console.print(table)
    lines = [line.rstrip() for line in printed.get().splitlines()]
    return "\n".join([title, *lines]).rstrip()
