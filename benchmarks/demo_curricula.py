"""Measures what an adaptive mixture is worth in a real run: the demo with a uniform and with an adaptive mixture.

A small real policy, three environments over HTTP, the same seeds for both. Run as
`python benchmarks/demo_curricula.py`, or with seeds: `python benchmarks/demo_curricula.py 0 1`. A run takes about a
minute and a half, so this is not part of `make bench`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from multienv.demo.rewards import REWARDS
from multienv.reporting import read_episodes
from multienv.types import Episode

CURRICULA = ("uniform", "adaptive")
SEEDS = (0, 1, 2, 3, 4)
NUM_STEPS = 50
GOAL = 0.8
_WINDOW = 5


def play(curriculum: str, seed: int, num_steps: int, directory: Path) -> list[Episode]:
    """Run the demo in a process of its own, and return its rollouts."""
    options = {"--curriculum": curriculum, "--seed": seed, "--max-steps": num_steps, "--output-dir": directory}
    arguments = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "multienv.cli", "demo", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return read_episodes(directory)


def rewards(episodes: Sequence[Episode], name: str) -> list[float | None]:
    """Return an environment's mean reward at each step; None where it had no rollout."""
    by_step: dict[int, list[float]] = {step: [] for step in range(1 + max(e.training_step or 0 for e in episodes))}
    for episode in episodes:
        if episode.environment == name and episode.reward is not None:
            by_step[episode.training_step or 0].append(episode.reward)
    return [fmean(own) if own else None for own in by_step.values()]


def steps_until(episodes: Sequence[Episode], goal: float = GOAL) -> int | None:
    """Return the first step at which every environment's mean reward over five steps has reached the goal."""
    curves = [rewards(episodes, name) for name in REWARDS]
    for end in range(_WINDOW, len(curves[0]) + 1):
        known = [[reward for reward in curve[end - _WINDOW : end] if reward is not None] for curve in curves]
        if all(own and fmean(own) >= goal for own in known):
            return end
    return None


def last_fifth(episodes: Sequence[Episode], name: str) -> float:
    """Return an environment's mean reward over the last fifth of the steps."""
    curve = rewards(episodes, name)
    return fmean(reward for reward in curve[-max(1, len(curve) // 5) :] if reward is not None)


def measure(seeds: Sequence[int] = SEEDS, num_steps: int = NUM_STEPS) -> dict[str, list[list[Episode]]]:
    """Run the demo with each mixture and each seed."""
    with TemporaryDirectory() as directory:
        return {
            curriculum: [play(curriculum, seed, num_steps, Path(directory, curriculum, str(seed))) for seed in seeds]
            for curriculum in CURRICULA
        }


def table(runs: dict[str, list[list[Episode]]], seeds: Sequence[int]) -> Table:
    """Lay out the runs, one line each, and the medians."""
    shown = Table(title=f"The demo, {NUM_STEPS} steps", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("mixture", "seed", f"steps until the worst reaches {GOAL}"):
        shown.add_column(heading)
    for name in REWARDS:
        shown.add_column(f"{name}, last fifth (groups)", justify="right")
    shown.add_column("worst, last fifth", justify="right")
    for curriculum, own in runs.items():
        for seed, episodes in zip(seeds, own, strict=True):
            ends = {name: last_fifth(episodes, name) for name in REWARDS}
            counts = {name: sum(e.environment == name for e in episodes) // 8 for name in REWARDS}
            cells = [f"{ends[name]:.2f} ({counts[name]})" for name in REWARDS]
            shown.add_row(curriculum, str(seed), str(steps_until(episodes) or "-"), *cells, f"{min(ends.values()):.2f}")
        worst = median(min(last_fifth(episodes, name) for name in REWARDS) for episodes in own)
        medians = [f"{median(last_fifth(episodes, name) for episodes in own):.2f}" for name in REWARDS]
        steps = median(steps_until(episodes) or NUM_STEPS + 1 for episodes in own)
        shown.add_row(curriculum, "median", f"{steps:g}", *medians, f"{worst:.2f}", end_section=True)
    return shown


def main(seeds: Sequence[int] = SEEDS) -> None:
    Console().print(table(measure(seeds), seeds))


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or SEEDS)
