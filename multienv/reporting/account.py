"""Decides how the account of a mixture is shown: what was asked for, and what came of it, one line an environment.

Flow: `Curriculum.account` → `account_table` → the console at the end of a run or a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from multienv.curriculum import Line

_LARGE: Final = 100


def account_table(lines: Mapping[str, Line], title: str = "") -> Table:
    """Lay out an account.

    Args:
        lines: By environment, in the order in which they are to appear.
        title: Shown above.

    Returns:
        A table for a rich console: groups asked for and dispatched, then rollouts, then tokens. Percentages are the
        environment's share of all environments' sum.
    """
    table = Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("environment", no_wrap=True)
    for heading in (
        "groups asked\n(share)",
        "dispatched\n(share)",
        "rollouts\nfinished",
        "scored",
        "advantage\nnot 0 (share)",
        "tokens",
    ):
        table.add_column(heading, justify="right")
    asked, dispatched = sum(line.asked for line in lines.values()), sum(line.dispatched for line in lines.values())
    nonzero = sum(line.nonzero for line in lines.values())
    for name, line in lines.items():
        table.add_row(
            name,
            f"{line.asked:,.{0 if line.asked >= _LARGE else 1}f} {_share(line.asked, asked)}",
            f"{line.dispatched:,} {_share(line.dispatched, dispatched)}",
            f"{line.finished:,}",
            f"{line.scored:,}",
            f"{line.nonzero:,} {_share(line.nonzero, nonzero)}",
            f"{line.tokens:,}",
        )
    return table


def account_text(lines: Mapping[str, Line]) -> str:
    """Return an account as plain text, for a log.

    Example:
        >>> account_text({"echo": Line(asked=1.5, dispatched=2, rollouts=16, scored=16, nonzero=8)}).splitlines()[-1]
        'echo             1.5 100%      2 100%         0      16         8 100%       0'
    """
    table = account_table(lines)
    table.box, table.padding = None, (0, 2, 0, 0)
    console = Console(file=StringIO(), width=200)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    return "\n".join(line.rstrip() for line in text.splitlines())


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
