"""Measures what importing this library costs, beside an interpreter that imports nothing.

Run as `python benchmarks/import_time.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from report import Report, Row

HEAVY: Final = frozenset({"datasets", "openreward", "torch", "transformers", "trl"})
"""Packages whose import takes seconds."""
BASELINE: Final = "pass"
OURS: Final = "import multienv"
USED: Final = "from multienv import MultiEnvSpec"
SDK: Final = "import openreward"
_PATIENCE_S: Final = 120.0


def python(statement: str) -> str:
    """Run a statement in an interpreter of its own, and return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", statement], check=True, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE_S
    ).stdout


def heavy_modules(statement: str) -> list[str]:
    """Name the heavy packages that a statement loads."""
    loaded = json.loads(python(f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"))
    return sorted(HEAVY.intersection(loaded))


def measure(statements: Sequence[str], num_repeats: int) -> dict[str, list[float]]:
    """Time interpreters that run one statement each, in seconds; the statements take turns.

    Args:
        statements: What to run.
        num_repeats: How often each is run, after once untimed.
    """
    times: dict[str, list[float]] = {statement: [] for statement in statements}
    for repeat in range(num_repeats + 1):
        for statement in statements:
            started = time.perf_counter()
            python(statement)
            if repeat:
                times[statement].append(time.perf_counter() - started)
    return times


def run() -> Report:
    times = measure([BASELINE, OURS, USED], num_repeats=15) | measure([SDK], num_repeats=3)
    baseline = median(times[BASELINE])
    more = median(ours - bare for ours, bare in zip(times[OURS], times[BASELINE], strict=True))
    return Report(
        title="Starting an interpreter",
        rows=[
            Row(statement, median(taken), baseline, "loads " + (", ".join(heavy_modules(statement)) or "nothing heavy"))
            for statement, taken in times.items()
        ],
        result=f"`{OURS}` adds {more * 1000:.0f} ms, {more / baseline:.1f} times a bare interpreter's start",
    )


if __name__ == "__main__":
    run().show()
