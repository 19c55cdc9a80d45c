"""Decides what a terminal shows while a model is trained: how far it is, and each environment's latest figures.

Flow: the trainer logs → `LiveView` → standard error, on a terminal only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback

_FIGURES: Final = {
    "rollouts": ("rollouts", ".0f"),
    "reward": ("reward", ".3f"),
    "success": ("success", ".0%"),
    "scored_fraction": ("scored", ".0%"),
    "tool_calls": ("tool calls", ".1f"),
    "tool_failures": ("failed", ".1f"),
    "completion_tokens": ("tokens", ",.0f"),
    "open_s": ("open s", ".2f"),
    "tool_s": ("tools s", ".2f"),
}
"""From a metric below `env/<name>/` to its column and how it is written."""

_WIDE: Final = ("tool_failures", "open_s", "tool_s", "scored_fraction")
"""What is left out on a terminal of less than 100 columns."""
_NUM_WIDE: Final = 100

_OVERALL: Final = {"loss": ".4f", "reward": ".3f", "step_time": ".1f"}


class LiveView(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Shows a training as it goes.

    Args:
        names: The environments, in the order in which they are shown.
        console: Where; a terminal.
    """

    def __init__(self, names: list[str], console: Console) -> None:
        self._console = console
        self._first: dict[str, float] = {}
        self._latest: dict[str, Mapping[str, float]] = {name: {} for name in names}
        self._overall: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        )
        self._task = self._progress.add_task("training", total=None)
        self._live = Live(self._shown(), console=console, transient=True, refresh_per_second=4)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' names
        """Begin."""
        self._progress.update(self._task, total=state.max_steps, completed=state.global_step)
        self._live.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' names
        """Go on by a step."""
        self._progress.update(self._task, completed=state.global_step)
        self._live.update(self._shown())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002 - transformers' names
        """Take over what was logged; figures of an environment that was not played stay."""
        self._overall |= {key: logs[key] for key in _OVERALL if key in logs}
        for name, latest in self._latest.items():
            prefix = f"env/{name}/"
            own = {key.removeprefix(prefix): value for key, value in (logs or {}).items() if key.startswith(prefix)}
            if own.get("rollouts"):
                self._latest[name] = {**latest, **own}
                if "reward" in own:
                    self._first.setdefault(name, own["reward"])
        self._live.update(self._shown())

    def stop(self) -> None:
        """Leave the terminal as it was; safe to call twice, or before the begin."""
        self._live.stop()

    def _shown(self) -> Group:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("environment", no_wrap=True)
        is_narrow = self._console.width < _NUM_WIDE
        figures = {key: figure for key, figure in _FIGURES.items() if not is_narrow or key not in _WIDE}
        for heading, _ in figures.values():
            table.add_column(heading, justify="right")
        table.add_column("reward since\nthe start", justify="right")
        for name, latest in self._latest.items():
            cells = (format(latest[key], how) if key in latest else "-" for key, (_, how) in figures.items())
            change = latest["reward"] - self._first[name] if "reward" in latest and name in self._first else None
            table.add_row(name, *cells, "-" if change is None else f"{change:+.3f}")
        overall = "  ".join(f"{key} {format(value, _OVERALL[key])}" for key, value in self._overall.items())
        return Group(self._progress, table, Text(overall))
