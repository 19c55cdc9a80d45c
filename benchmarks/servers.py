"""Decides how the benchmarks' servers live: in one process of their own, ended with the benchmark whatever happens.

Flow: a benchmark enters `serving` → `serve` in the process → the benchmark asks each `BenchmarkServer` what it counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

_SERVE: Final = Path(__file__).with_name("serve.py")
_START_PATIENCE_S: Final = 90.0
_STOP_PATIENCE_S: Final = 5.0
_QUIET: Final = {"OMP_NUM_THREADS": "1", "OPENREWARD_DISABLE_UPDATE_CHECK": "1", "OPENREWARD_LOG_LEVEL": "CRITICAL"}

ENVIRONMENT: Final = "benchmarkenvironment"
"""What every server calls its environment."""


@dataclass(frozen=True, slots=True)
class BenchmarkServer:
    """One server, by its URL."""

    url: str

    def num_requests(self) -> int:
        """Ask how many requests the server has had; asking is not counted."""
        with httpx.Client(trust_env=False, timeout=_STOP_PATIENCE_S) as client:
            return int(client.get(f"{self.url}/health/num_requests").raise_for_status().json())


@contextmanager
def serving(
    num_servers: int, num_tasks: int, delays: Sequence[tuple[float, float]] = ()
) -> Iterator[list[BenchmarkServer]]:
    """Start servers in one process, and end it on leaving.

    Args:
        num_servers: How many, each on a port of its own.
        num_tasks: Tasks each of them lists.
        delays: For each server the seconds its `setup()` and its tool `work` take; nothing by default.

    Yields:
        The servers, listening.

    Raises:
        RuntimeError: The process ended before it listened, or took too long.
    """
    process = subprocess.Popen(
        [sys.executable, str(_SERVE), str(num_servers), str(num_tasks), *(f"{a}/{b}" for a, b in delays)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | _QUIET,
        start_new_session=True,  # Ctrl-C must not reach the servers before their sessions are closed
    )
    try:
        yield [BenchmarkServer(f"http://127.0.0.1:{port}") for port in _ports(process)]
    finally:
        _stop(process)


def _ports(process: subprocess.Popen[bytes]) -> list[int]:
    limit = threading.Timer(_START_PATIENCE_S, process.kill)
    limit.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else b""
    finally:
        limit.cancel()
    if not line:
        raise RuntimeError(
            f"the benchmark's servers did not listen within {_START_PATIENCE_S:g} s; run `python {_SERVE.name} 1 10` "
            "in the folder of the benchmarks to see them start"
        )
    return [int(port) for port in line.split()]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process, by asking, by SIGTERM and by SIGKILL, each with patience for the one before."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    for insist in (process.terminate, process.kill):
        try:
            process.wait(_STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
