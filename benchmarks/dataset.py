"""Measures how long the training dataset takes, and how many requests, beside TRL's `OpenRewardSpec`.

Run as `python benchmarks/dataset.py`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from report import Report, Row
from servers import BenchmarkServer, serving

NUM_ENVIRONMENTS = 3
NUM_SHORT_TURNS = 5
"""A build of milliseconds is repeated more often than one of seconds, for its median to mean something."""
_REDIRECTS = ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL")


@dataclass(slots=True)
class Builds:
    """One way to build the dataset, done several times.

    Attributes:
        what: The way, in words.
        num_rows: Rows of the dataset.
        num_requests: The most requests that one environment had for one dataset.
        durations_s: Time of each build, in seconds.
    """

    what: str
    num_rows: int = 0
    num_requests: int = 0
    durations_s: list[float] = field(default_factory=list)

    def add(self, build: Callable[[], int], servers: Sequence[BenchmarkServer]) -> None:
        """Build once more, from nothing."""
        before = [server.num_requests() for server in servers]
        started = time.perf_counter()
        self.num_rows = build()
        self.durations_s.append(time.perf_counter() - started)
        counts = [server.num_requests() - count for server, count in zip(servers, before, strict=True)]
        self.num_requests = max(self.num_requests, *counts)


@contextmanager
def redirected(url: str) -> Iterator[None]:
    """Point the SDK's process-wide variables at a server, without which TRL's spec reaches none on a single host."""
    before = {name: os.environ.get(name) for name in _REDIRECTS}
    os.environ.update(dict.fromkeys(_REDIRECTS, url))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def build_with_trl(server: BenchmarkServer, num_tasks: int | None) -> int:
    with warnings.catch_warnings(action="ignore"):  # TRL calls the module experimental
        from trl.experimental.openreward import OpenRewardSpec

    with redirected(server.url):
        return len(OpenRewardSpec(server.url, num_tasks=num_tasks).train_dataset)


def build_with_multienv(servers: Sequence[BenchmarkServer], num_tasks: int) -> int:
    from multienv import EnvSpec, MultiEnvSpec

    mixture = {
        f"environment-{number}": EnvSpec(server.url, num_tasks=num_tasks) for number, server in enumerate(servers)
    }
    with MultiEnvSpec(mixture) as spec:
        return len(spec.train_dataset)


def measure(num_tasks: int = 1_000, num_repeats: int = 3) -> list[Builds]:
    """Build the dataset of one environment with TRL and with this library, and of all of them with this library.

    TRL reads a number of tasks one by one, and a whole split by one request; both are measured.

    Args:
        num_tasks: Tasks per environment.
        num_repeats: How often each is built, the short ones `NUM_SHORT_TURNS` times as often; they take turns.
    """
    theirs = Builds("TRL, num_tasks given")
    whole = Builds("TRL, the whole split")
    ours = Builds("multienv, num_tasks given")
    every = Builds(f"multienv, {NUM_ENVIRONMENTS} environments")
    with serving(NUM_ENVIRONMENTS, num_tasks) as servers:
        # Both import what they need, and the servers have made their task lists, before the clock starts.
        build_with_trl(servers[0], 1)
        build_with_multienv(servers, 1)
        for _ in range(num_repeats):
            theirs.add(lambda: build_with_trl(servers[0], num_tasks), servers[:1])
            for _ in range(NUM_SHORT_TURNS):
                whole.add(lambda: build_with_trl(servers[0], None), servers[:1])
                ours.add(lambda: build_with_multienv(servers[:1], num_tasks), servers[:1])
                every.add(lambda: build_with_multienv(servers, num_tasks), servers)
    return [theirs, whole, ours, every]


def run() -> Report:
    builds = measure()
    *_, every = builds
    theirs, _, ours, _ = (median(build.durations_s) for build in builds)
    return Report(
        title="Building the training dataset",
        rows=[
            Row(
                build.what,
                median(build.durations_s),
                theirs,
                f"{build.num_rows:,} rows, {build.num_requests:,} requests{' each' if build is every else ''}",
            )
            for build in builds
        ],
        result=f"{theirs / ours:.0f} times faster than TRL with num_tasks given, on the same environment",
    )


if __name__ == "__main__":
    run().show()
