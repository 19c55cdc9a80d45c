"""Decides what `multienv compare` shows of two evaluations.

Flow: `cli.compare` → `run_compare` → `compared` → a table or JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from multienv.commands.screen import print_json
from multienv.evaluation import compared, show_comparison

if TYPE_CHECKING:
    from rich.console import Console


def run_compare(before: Path, after: Path, *, console: Console, is_json: bool = False) -> int:
    """Compare two evaluations, task by task.

    Args:
        before: Directory of one.
        after: Directory of the other.
        console: Where it is shown.
        is_json: Show it as JSON instead.

    Returns:
        0.

    Raises:
        RecordError: One cannot be read, or they have no task in common.
    """
    comparison = compared(before, after)
    if is_json:
        print_json(comparison.to_dict())
    else:
        show_comparison(comparison, console)
    return 0
