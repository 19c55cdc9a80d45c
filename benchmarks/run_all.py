"""Runs all benchmarks, one after the other, and closes with one table.

Run as `python benchmarks/run_all.py`, or with the names of some: `python benchmarks/run_all.py dataset`. Leaves with
status 1 if a benchmark could not run; a slow one is no failure.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

import async_rollouts
import curricula
import curriculum_cost
import dataset
import evaluation
import import_time
import rendering
import rollouts
import sessions
import slow_environment
import tool_call
from report import Showable
from rich.console import Console
from rich.table import Table

BENCHMARKS: Mapping[str, Callable[[], Showable]] = {
    "import_time": import_time.run,
    "dataset": dataset.run,
    "tool_call": tool_call.run,
    "rollouts": rollouts.run,
    "async_rollouts": async_rollouts.run,
    "evaluation": evaluation.run,
    "rendering": rendering.run,
    "sessions": sessions.run,
    "slow_environment": slow_environment.run,
    "curriculum_cost": curriculum_cost.run,
    "curricula": curricula.run,
}


def main(names: Sequence[str] = (), benchmarks: Mapping[str, Callable[[], Showable]] = BENCHMARKS) -> int:
    """Run benchmarks by name, all of them by default.

    Returns:
        The exit status: 1 if one of them could not run, 2 if there is none of that name.
    """
    if unknown := [name for name in names if name not in benchmarks]:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(benchmarks)}", file=sys.stderr)
        return 2
    results = {name: attempt(benchmarks[name]) for name in names or benchmarks}
    table = Table(title="All benchmarks", title_justify="left")
    table.add_column("benchmark")
    table.add_column("result")
    for name, result in results.items():
        table.add_row(name, result or "could not run")
    Console().print(table)
    return 0 if all(results.values()) else 1


def attempt(benchmark: Callable[[], Showable]) -> str:
    """Run a benchmark and show its table; a failure is shown and must not keep the others from running.

    Returns:
        Its result in words, empty if it could not run.
    """
    try:
        report = benchmark()
    except Exception:  # noqa: BLE001 - whatever it was, the traceback says so, and the exit status
        traceback.print_exc()
        return ""
    report.show()
    return report.result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
