"""Decides how figures are shown: a table per benchmark, every time beside the baseline of the same run.

Flow: a benchmark → `Report` → standard output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


class Showable(Protocol):
    """What a benchmark found, whatever its figures are."""

    @property
    def result(self) -> str:
        """The one thing to remember, in words."""

    def show(self) -> None:
        """Print the figures and the result."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing.

    Attributes:
        what: What was measured, in words.
        duration_s: Median time, in seconds.
        baseline_s: Median time of what it is compared with, in the same run; the baseline's own row has its own time.
        remark: What else there is to say.
    """

    what: str
    duration_s: float
    baseline_s: float
    remark: str = ""

    @property
    def ratio(self) -> float:
        """How many times the baseline's time."""
        return self.duration_s / self.baseline_s


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found.

    Attributes:
        title: What it is about.
        rows: The measured things, each baseline before what is compared with it.
        result: The one ratio to remember, in words.
    """

    title: str
    rows: Sequence[Row]
    result: str

    def show(self) -> None:
        """Print the table and the result."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        table.add_column("measured")
        table.add_column("median", justify="right")
        table.add_column("ratio", justify="right")
        table.add_column("remark")
        for row in self.rows:
            table.add_row(row.what, _in_words(row.duration_s), f"{row.ratio:.3g}", row.remark)
        console = Console()
        console.print(table)
        console.print(self.result, highlight=False)


def _in_words(duration_s: float) -> str:
    if duration_s < 1e-4:
        return f"{duration_s * 1e6:,.0f} µs"
    duration_ms = duration_s * 1000
    return f"{duration_ms:,.{0 if duration_ms >= 100 else 1}f} ms"
