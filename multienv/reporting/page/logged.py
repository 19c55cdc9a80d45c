"""Decides what a trainer's log adds to the record: the shares that were asked for, and successes by their own rule.

Flow: `log.jsonl`, or the newest checkpoint's `trainer_state.json` → `read_log` → `figures` and `curves`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multienv.reporting.page.spread import finite
from multienv.types import EpisodeStatus

_PREFIX: Final = "env/"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What the log says of the batches since the entry before.

    Attributes:
        step: Optimiser steps done when it was written.
        asked: Share asked for, by environment; they sum to 1. Empty where the log says none.
        success: By environment, how many rollouts it speaks of, and the part of them that were successes.
    """

    step: int
    asked: Mapping[str, float]
    success: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Log:
    """What a trainer's log says.

    Attributes:
        source: The file it was read from; empty where there is none that belongs to the run.
        entries: By step.
    """

    source: str = ""
    entries: tuple[LogEntry, ...] = ()

    @property
    def has_asked(self) -> bool:
        """True where it says which shares were asked for."""
        return any(entry.asked for entry in self.entries)

    def covers(self, environments: Iterable[str], last_step: int) -> bool:
        """Tell whether it says the successes of environments up to the batch played at a training step."""
        known = {name for entry in self.entries if entry.step > last_step for name in entry.success}
        every = {name for entry in self.entries for name in entry.success}
        return bool(known) and every >= set(environments)


def read_log(directory: Path, since: float = 0.0) -> Log:
    """Read the log of the run in a directory; what of it cannot be read is left out.

    Args:
        directory: The run's output directory.
        since: When the run began, in Unix seconds: an older file is another run's.
    """
    for path in _candidates(directory):
        try:
            if path.stat().st_mtime < since:
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        entries = {entry.step: entry for raw in _history(path, text) if (entry := _entry(raw)) is not None}
        if entries:
            source = path.relative_to(directory).as_posix()
            return Log(source, tuple(entries[step] for step in sorted(entries)))
    return Log()


def _candidates(directory: Path) -> list[Path]:
    states = {
        int(number): path
        for path in directory.glob("checkpoint-*/trainer_state.json")
        if (number := path.parent.name.removeprefix("checkpoint-")).isdecimal()
    }
    return [directory / "log.jsonl", *(states[number] for number in sorted(states, reverse=True))]


def _history(path: Path, text: str) -> list[Any]:
    if path.suffix != ".jsonl":
        state = _parsed(text)
        history = state.get("log_history") if isinstance(state, dict) else None
        return history if isinstance(history, list) else []
    return [_parsed(line) for line in text.split("\n")]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _entry(raw: Any) -> LogEntry | None:
    """Return what a line of the log says of environments; None where that is nothing."""
    if not isinstance(raw, dict) or (step := finite(raw.get("step"))) is None:
        return None
    figures: dict[str, dict[str, float]] = {}
    for key, value in raw.items():
        name, slash, what = str(key).removeprefix(_PREFIX).partition("/")
        if slash and str(key).startswith(_PREFIX) and (number := finite(value)) is not None:
            figures.setdefault(name, {})[what] = number
    groups = {name: own["groups_asked"] for name, own in figures.items() if own.get("groups_asked", -1.0) >= 0}
    asked = finite(math.fsum(groups.values())) or 0.0
    success = {name: (_num_scorable(own), own["success"]) for name, own in figures.items() if "success" in own}
    if not asked and not success:
        return None
    return LogEntry(int(step), {name: number / asked for name, number in groups.items()} if asked else {}, success)


def _num_scorable(figures: Mapping[str, float]) -> float:
    broken = sum(figures.get(f"status/{status}", 0.0) for status in (EpisodeStatus.FAILED, EpisodeStatus.REFUSED))
    return max(0.0, figures.get("rollouts", 0.0) * (1 - broken))
