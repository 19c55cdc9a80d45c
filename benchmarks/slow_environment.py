"""Whether one slow environment holds up the others: three together, one of them ten times slower to start.

The rollouts of a batch open at once. The time until each fast environment's sessions are open is measured with the slow
one beside them and without it.

Run as `python benchmarks/slow_environment.py`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

from report import Report, Row
from servers import serving

from multienv import EnvSpec
from multienv.sessions import EnvironmentClient, Ledger, session_loop, shut_down


async def open_and_time(clients: Sequence[EnvironmentClient], num_each: int) -> list[float]:
    """Open sessions of all environments at once.

    Returns:
        For each environment the seconds until its last session was open.
    """
    started = time.perf_counter()

    async def all_of(client: EnvironmentClient) -> float:
        await asyncio.gather(*(client.open(index) for index in range(num_each)))
        return time.perf_counter() - started

    return list(await asyncio.gather(*map(all_of, clients)))


def measure(urls: Sequence[str], num_each: int) -> list[float]:
    """Open sessions on these servers at once, and close them again."""
    ledger = Ledger()
    clients = [
        EnvironmentClient(str(number), EnvSpec(url, discover_task_tools=False), ledger)
        for number, url in enumerate(urls)
    ]
    for client in clients:
        client.connect()
    try:
        return session_loop().run(open_and_time(clients, num_each))
    finally:
        for client in clients:
            client.close()
        shut_down(ledger, patience_s=30)


def run(start_s: float = 0.3, num_each: int = 10, num_repeats: int = 5) -> Report:
    """Measure with and without the slow environment, in turn.

    Args:
        start_s: How long a fast environment's session takes to start, in seconds; the slow one's takes ten times that.
        num_each: Sessions per environment.
        num_repeats: How often each is measured.
    """
    with serving(3, num_each, [(start_s, 0), (start_s, 0), (10 * start_s, 0)]) as servers:
        urls = [server.url for server in servers]
        measure(urls[:2], num_each)  # the first use imports and warms up
        alone, beside, slow = [], [], []
        for _ in range(num_repeats):
            alone.append(max(measure(urls[:2], num_each)))
            *fast_s, slow_s = measure(urls, num_each)
            beside.append(max(fast_s))
            slow.append(slow_s)
    alone_s, beside_s, slow_s = map(statistics.median, (alone, beside, slow))
    rows = [
        Row("two fast environments alone", alone_s, alone_s, f"{num_each} sessions each, start {start_s:g} s"),
        Row("the same two beside the slow one", beside_s, alone_s),
        Row("the slow one", slow_s, alone_s, f"start {10 * start_s:g} s"),
    ]
    result = f"the fast environments take {beside_s / alone_s:.2f} times as long beside one that takes 10 times longer"
    return Report("One slow environment among three", rows, result)


if __name__ == "__main__":
    run().show()
