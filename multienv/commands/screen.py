"""Decides what a person sees while a command works: progress on the terminal, nothing where there is none.

Flow: every command → `working`, `progress` → standard error, so that standard output holds results only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def notes() -> Console:
    """Return the console for everything that is no result."""
    return Console(stderr=True, highlight=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal that something takes its time.

    Args:
        what: What is being done, as in "loading the model".
    """
    console = notes()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def progress() -> Progress:
    """Return a progress display for things that are counted; it shows nothing where there is no terminal."""
    console = notes()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


@contextmanager
def counted() -> Iterator[Callable[[str, int, int], None]]:
    """Show on a terminal how far several things are, one after the other.

    Yields:
        What is to be called with the thing, how much of it is done, and how much there is to do.
    """
    with progress() as shown:
        bars: dict[str, Any] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = shown.add_task(what, total=total)
            shown.update(bars[what], completed=done)

        yield on_progress


def print_json(document: Any) -> None:
    """Write one JSON document to standard output."""
    print(json.dumps(document, indent=1, allow_nan=False))  # noqa: T201 - the result of a command
