"""Decides what `multienv report` does with its options: one page, and a sentence on what is in it.

Flow: `cli.report` → `run_report` → `make_report` → the page's file.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multienv.commands.screen import working
from multienv.reporting.page import make_report, save
from multienv.reporting.page.curves import STATUSES

if TYPE_CHECKING:
    from rich.console import Console


def run_report(
    directory: Path, *, output: Path | None = None, max_episodes: int = 2_000, console: Console, is_json: bool = False
) -> int:
    """Write the page of a run, and say where it is.

    Args:
        directory: The output directory of a training or an evaluation, which may still be going on.
        output: Where to write the page; `report.html` in that directory if not said.
        max_episodes: How many episodes can be read in the page at most.
        console: Where to say it.
        is_json: True for one JSON document with all figures instead of sentences.

    Returns:
        The exit code.

    Raises:
        RecordError: There is no record, it cannot be read, or the page cannot be written.
        SpecError: max_episodes is below 0.
    """
    path = directory / "report.html" if output is None else output
    with working("reading the record"):
        report = make_report(directory, max_episodes=max_episodes)
        save(report.html, path)
    if is_json:
        document: dict[str, Any] = {
            "path": str(path),
            "run": report.run,
            "num_episodes": report.num_episodes,
            "num_in_page": report.num_in_page,
            "statuses": [str(status) for status in STATUSES],
            "phases": [dataclasses.asdict(phase) for phase in report.figures],
        }
        console.file.write(json.dumps(document, allow_nan=False) + "\n")
        return 0
    left_out = report.num_episodes - report.num_in_page
    episodes = f"{report.num_episodes:,} {'episode' if report.num_episodes == 1 else 'episodes'}"
    said = f"{episodes}, {left_out:,} of them in the figures only" if left_out else episodes
    console.print(f"report: {path}", highlight=False, markup=False, soft_wrap=True)
    console.print(said, highlight=False, markup=False, soft_wrap=True)
    return 0
