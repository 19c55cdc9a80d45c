"""What many open sessions cost: the overhead per tool call, and the memory per session, as their number grows.

All sessions call a tool that costs nothing at the same time, several times over; what is left is overhead, the server's
own included. Memory is this process's, beside what it was with no session open.

Run as `python benchmarks/sessions.py`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

from report import Report, Row
from servers import serving

from multienv import EnvSpec
from multienv.sessions import EnvironmentClient, Ledger, LiveSession, session_loop, shut_down

NUM_ROUNDS = 5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Load:
    """What a number of sessions cost.

    Attributes:
        num_sessions: Sessions open at once.
        open_s: Seconds per session to open it, all at once.
        call_s: Seconds per tool call, one of each session at once; median of the rounds.
        memory_bytes: More than with no session open.
    """

    num_sessions: int
    open_s: float
    call_s: float
    memory_bytes: int


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def call_all(sessions: Sequence[LiveSession]) -> None:
    await asyncio.gather(*(session.call("echo", {"text": "hello"}) for session in sessions))


async def open_all(client: EnvironmentClient, num_sessions: int) -> list[LiveSession]:
    return list(await asyncio.gather(*(client.open(index % 10) for index in range(num_sessions))))


def measure(num_sessions: int, url: str) -> Load:
    """Open so many sessions at once and let all of them call a tool at once."""
    ledger = Ledger()
    client = EnvironmentClient("env", EnvSpec(url, discover_task_tools=False), ledger)
    client.connect()
    before_bytes = resident_bytes()
    started = time.perf_counter()
    sessions = session_loop().run(open_all(client, num_sessions))
    open_s = (time.perf_counter() - started) / num_sessions
    rounds = []
    for _ in range(NUM_ROUNDS):
        started = time.perf_counter()
        session_loop().run(call_all(sessions))
        rounds.append((time.perf_counter() - started) / num_sessions)
    memory_bytes = resident_bytes() - before_bytes
    client.close()
    shut_down(ledger, patience_s=30)
    return Load(num_sessions, open_s, statistics.median(rounds), memory_bytes)


def run(numbers: Sequence[int] = (16, 64, 256, 1_000)) -> Report:
    """Measure each number of sessions against the same server.

    Args:
        numbers: Numbers of sessions, the first the baseline.
    """
    with serving(1, 10) as (server,):
        measure(numbers[0], server.url)  # the first use imports and warms up
        loads = [measure(number, server.url) for number in numbers]
    rows = []
    for load in loads:
        memory = (
            f"{load.memory_bytes / 2**20:.0f} MiB more, {load.memory_bytes / load.num_sessions / 1024:.0f} KiB each"
        )
        rows.append(Row(f"tool call, {load.num_sessions:,} sessions", load.call_s, loads[0].call_s, memory))
    rows += [Row(f"opening, {load.num_sessions:,} sessions at once", load.open_s, loads[0].open_s) for load in loads]
    last = loads[-1]
    result = (
        f"{last.num_sessions:,} sessions take {last.memory_bytes / 2**20:.0f} MiB, and a call "
        f"{last.call_s / loads[0].call_s:.2f} times what it takes with {loads[0].num_sessions}"
    )
    return Report("Many open sessions", rows, result)


if __name__ == "__main__":
    run().show()
