"""How many batches simulated learners need until the worst environment succeeds at 80 %, by curriculum and scenario.

Run as `python benchmarks/curricula.py`. Nothing is timed: each run is a function of its seed. The learners are
those of `multienv simulate`; they follow a law that somebody wrote down, and a model need not. The parameters of a
scenario were chosen for what it is about before any curriculum had been run on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from multienv.simulate import SimulationSpec
from multienv.specs import CurriculumSpec, Stage

NUM_SEEDS = 20
NUM_BATCHES = 400
GOAL = 0.8

ORDINARY: Mapping[str, Any] = {"start": 0.3, "speed": 0.02}
HARD: Mapping[str, Any] = {"start": 0.03, "speed": 0.01}

SCENARIOS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "all alike": {name: {"num_tasks": 500, "learner": ORDINARY} for name in ("a", "b", "c")},
    "one hard and slow": {
        "a": {"num_tasks": 500, "learner": ORDINARY},
        "b": {"num_tasks": 500, "learner": ORDINARY},
        "hard": {"num_tasks": 500, "learner": HARD},
    },
    "unequal task counts": {
        "huge": {"num_tasks": 10_000, "learner": ORDINARY},
        "middling": {"num_tasks": 1_000, "learner": ORDINARY},
        "small": {"num_tasks": 100, "learner": ORDINARY},
    },
    "interference": {
        name: {"num_tasks": 500, "learner": {**ORDINARY, "start": start, "interference": 0.002}}
        for name, start in (("a", 0.2), ("b", 0.3), ("c", 0.4))
    },
    "an outage": {
        "a": {"num_tasks": 500, "learner": ORDINARY},
        "b": {"num_tasks": 500, "learner": ORDINARY},
        "down": {"num_tasks": 500, "learner": {**ORDINARY, "outages": [[10, 40]]}},
    },
    "noise without progress": {
        "a": {"num_tasks": 500, "learner": ORDINARY},
        "b": {"num_tasks": 500, "learner": ORDINARY},
        "noisy": {"num_tasks": 500, "learner": {**ORDINARY, "start": 0.82, "ceiling": 0.85}},
    },
    "a low ceiling": {
        "a": {"num_tasks": 500, "learner": ORDINARY},
        "b": {"num_tasks": 500, "learner": ORDINARY},
        "low": {"num_tasks": 500, "learner": {**ORDINARY, "ceiling": 0.85}},
    },
}
"""By what they are about: one environment differs from the others in one thing, or all are alike."""

_WIDTH = 140

CURRICULA = ("uniform", "proportional", "weights", "uniform+adaptive", "adaptive", "staged")
"""`adaptive` is the preset, which begins with the weights; `uniform+adaptive` begins with equal shares."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The runs of one curriculum in one scenario.

    Attributes:
        batches: Batches until the goal, run by run; None where it was not reached.
    """

    batches: Sequence[int | None]

    @property
    def num_never(self) -> int:
        """Runs that did not reach the goal."""
        return self.batches.count(None)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The quartiles, each the figure of a run; a run that never got there counts as longer than all others."""
        numbers = sorted(math.inf if each is None else float(each) for each in self.batches)
        low, middle, high = (numbers[len(numbers) * quarter // 4] for quarter in (1, 2, 3))
        return low, middle, high

    def in_words(self) -> str:
        """Return median and quartiles, and how many never got there."""
        if self.num_never == len(self.batches):
            return "never"
        low, middle, high = (f"{each:.0f}" if each < math.inf else "never" for each in self.quartiles)
        return f"{middle} ({low}-{high})" + (f", {self.num_never} never" if self.num_never else "")


@dataclass(frozen=True, slots=True)
class CurriculaReport:
    """What came out.

    Attributes:
        reached: By scenario and curriculum.
        num_batches: Batches that a run may take.
        result: Which curriculum was the quickest where, in words.
    """

    reached: Mapping[str, Mapping[str, Reached]]
    num_batches: int
    result: str

    def show(self) -> None:
        """Print the table and the result."""
        title = f"Batches until the worst environment is at {GOAL:.0%}, at most {self.num_batches}: median (quartiles)"
        table = Table("scenario", title=title, title_justify="left", box=SIMPLE_HEAD)
        for curriculum in CURRICULA:
            table.add_column(curriculum, justify="right", min_width=10)
        for scenario, row in self.reached.items():
            table.add_row(scenario, *(row[curriculum].in_words() for curriculum in CURRICULA))
        console = Console(width=_WIDTH)
        console.print(table)
        console.print(self.result, highlight=False)


def declared(environments: Mapping[str, Mapping[str, Any]]) -> SimulationSpec:
    """Declare a scenario; an environment's sampling weight is the share of its rollouts that fail before training.

    Such weights are what somebody would write down who has tried the policy once and knows nothing of its learning.
    """
    weighted = {
        name: {**each, "sampling_weight": 1.0 - each["learner"]["start"]} for name, each in environments.items()
    }
    return SimulationSpec(environments=weighted)


def chosen(curriculum: str, spec: SimulationSpec) -> CurriculumSpec:
    """Return a curriculum for a scenario; stages go from the easiest environment to all, one more at 60 % success."""
    if curriculum == "staged":
        names = sorted(spec.environments, key=lambda name: -spec.environments[name].learner.start)
        stages = [
            Stage(weights=dict.fromkeys(names[: num + 1], 1.0), until={names[num]: 0.6})
            for num in range(len(names) - 1)
        ]
        return CurriculumSpec(stages=(*stages, Stage(weights=dict.fromkeys(names, 1.0))))
    if curriculum.endswith("adaptive"):
        return CurriculumSpec(mixture="uniform" if curriculum.startswith("uniform") else "weights", adaptive=True)
    return CurriculumSpec(mixture=curriculum)


def measure(scenario: str, curriculum: str, num_seeds: int = NUM_SEEDS, num_batches: int = NUM_BATCHES) -> Reached:
    """Play one curriculum in one scenario with several seeds."""
    spec = declared(SCENARIOS[scenario])
    runs = (spec.run(chosen(curriculum, spec), seed=seed, num_batches=num_batches) for seed in range(num_seeds))
    return Reached([each.batches_until(GOAL) for each in runs])


def run(
    num_seeds: int = NUM_SEEDS, num_batches: int = NUM_BATCHES, scenarios: Sequence[str] = tuple(SCENARIOS)
) -> CurriculaReport:
    """Play everything, and put it in a table."""
    reached = {
        scenario: {curriculum: measure(scenario, curriculum, num_seeds, num_batches) for curriculum in CURRICULA}
        for scenario in scenarios
    }
    medians = {
        scenario: {curriculum: each.quartiles[1] for curriculum, each in row.items()}
        for scenario, row in reached.items()
    }
    first = {scenario: [one for one in row if row[one] == min(row.values())] for scenario, row in medians.items()}
    shown = "; ".join(f"{scenario}: {', '.join(names)}" for scenario, names in first.items())
    return CurriculaReport(reached, num_batches, f"fewest batches by the median: {shown}")


if __name__ == "__main__":
    run().show()
