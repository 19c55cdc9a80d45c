"""Decides the frame of the demo: servers around it, lessons inside it, a table after it.

Flow: `multienv.cli` → `run_demo` → `servers`, `learning`, `report`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from multienv.demo.rewards import REWARDS
from multienv.demo.servers import ServerProcess, serving
from multienv.errors import SpecError
from multienv.reporting import account_table, read_episodes, summary_table
from multienv.specs import declare_curriculum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from multienv.tiny.warmup import Recipe


def run_demo(
    max_steps: int,
    seed: int,
    output_dir: Path,
    console: Console,
    *,
    curriculum: str = "uniform",
    cache_dir: Path | None = None,
    recipe: Recipe | None = None,
) -> None:
    """Train a tiny model on three environments, all made on the spot, and show what came of it.

    Args:
        max_steps: Training steps, at least 1.
        seed: Seed of everything.
        output_dir: Where the results go; made if missing. Files of an earlier run are replaced, but for its rollouts,
            which stay in the record.
        console: Where progress (on a terminal only) and the table are shown.
        curriculum: Preset of the curriculum; see `MultiEnvSpec`.
        cache_dir: Where warmed-up policies are kept; None for the user's cache folder.
        recipe: How the policy is warmed up, if none is kept; None for the demo's own way.

    Raises:
        SpecError: There is no such preset, or the output folder cannot be made.
        ServerUnreachableError: A server of the demo did not start, or went away.
        OSError: A file cannot be written.
    """
    started = time.monotonic()
    declare_curriculum(curriculum, REWARDS)
    log_dir = output_dir / "servers"
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"output_dir={str(output_dir)!r} cannot be written: {error.strerror}; choose another folder"
        ) from None
    with serving(REWARDS, log_dir) as servers, _progress(console) as progress:
        # Imported while the servers start up: both take seconds, and neither needs the other.
        from multienv.demo.learning import Settings, learn  # noqa: PLC0415
        from multienv.tiny.warmup import Recipe  # noqa: PLC0415

        settings = Settings(max_steps, seed, curriculum, output_dir, cache_dir, recipe or Recipe())
        account = learn(_urls(servers, progress), settings, progress)
        num_open_sessions = sum(server.num_open_sessions() for server in servers.values())
    console.print(summary_table(read_episodes(output_dir), REWARDS))
    if account:
        console.print(account_table(account, f"the mixture in groups, curriculum {curriculum!r}"))
    console.print(f"{time.monotonic() - started:.0f} s; sessions still open: {num_open_sessions}")
    files = {"rollouts": "episodes.jsonl", "log": "log.jsonl", "trained model": "model", "server logs": "servers"}
    for what, name in files.items():
        console.print(f"{what}: {output_dir / name}", highlight=False, soft_wrap=True)


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
