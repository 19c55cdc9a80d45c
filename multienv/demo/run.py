"""Decides the frame of the demo: servers around it, lessons inside it, a table after it.

Flow: `multienv.cli` → `run_demo` → `servers`, `learning`, `report`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from multienv.demo.report import EnvironmentSummary, summarize, table
from multienv.demo.scoreboard import Scoreboard
from multienv.demo.servers import ServerProcess, serving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

ENVIRONMENT_NAMES: Final = ("echo", "vault", "climb")
"""The environments of the mixture, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo run came to.

    Attributes:
        environments: One summary per environment.
        num_open_sessions: Sessions the servers still held at the end; 0 if all is well.
        duration_s: Seconds from start to end.
        rollouts_path: One line of JSON per rollout.
        model_dir: The trained policy.
        log_dir: What the servers had to say.
    """

    environments: tuple[EnvironmentSummary, ...]
    num_open_sessions: int
    duration_s: float
    rollouts_path: Path
    model_dir: Path
    log_dir: Path


def run_demo(
    max_steps: int, seed: int, output_dir: Path, console: Console, *, cache_dir: Path | None = None
) -> DemoResult:
    """Train a tiny model on three environments, all made on the spot.

    Args:
        max_steps: Training steps, at least 1.
        seed: Seed of everything.
        output_dir: Where the results go; made if missing, files of an earlier run are replaced.
        console: Where progress (on a terminal only) and the table are shown.
        cache_dir: Where warmed-up policies are kept; None for the user's cache folder.

    Returns:
        The result, already shown.

    Raises:
        ServerUnreachableError: A server of the demo did not start, or went away.
        OSError: A folder cannot be written.
    """
    started = time.monotonic()
    rollouts_path, model_dir, log_dir = (output_dir / name for name in ("rollouts.jsonl", "model", "servers"))
    log_dir.mkdir(parents=True, exist_ok=True)
    scoreboard = Scoreboard()
    with serving(ENVIRONMENT_NAMES, log_dir) as servers, _progress(console) as progress:
        # Imported while the servers start up: both take seconds, and neither needs the other.
        from multienv.demo.learning import Settings, learn  # noqa: PLC0415

        settings = Settings(max_steps, seed, model_dir, cache_dir)
        try:
            learn(_urls(servers, progress), settings, scoreboard, progress)
        finally:
            scoreboard.write(rollouts_path)
        num_open_sessions = sum(server.num_open_sessions() for server in servers.values())
    summaries = summarize(scoreboard.rollouts, ENVIRONMENT_NAMES)
    result = DemoResult(summaries, num_open_sessions, time.monotonic() - started, rollouts_path, model_dir, log_dir)
    _show(result, console)
    return result


def _urls(servers: Mapping[str, ServerProcess], progress: Progress) -> dict[str, str]:
    waiting = progress.track(servers.items(), description="starting servers")
    return {name: server.url() for name, server in waiting}


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _show(result: DemoResult, console: Console) -> None:
    console.print(table(result.environments))
    console.print(f"{result.duration_s:.0f} s; sessions still open: {result.num_open_sessions}")
    files = {"rollouts": result.rollouts_path, "trained model": result.model_dir, "server logs": result.log_dir}
    for what, path in files.items():
        console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
