"""Measures what a tool call and a new episode cost through the adapter, beside the SDK's own session alone.

Run as `python benchmarks/tool_call.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from typing import Any

from report import Report, Row
from servers import ENVIRONMENT, BenchmarkServer, serving

NUM_TASKS = 100
TEXT = "a line of the length that a tool usually gets to see"


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one way to drive an environment, in seconds.

    Attributes:
        call_s: Of each tool call.
        episode_s: Of each new episode: the last session closed, the next one opened, its prompt fetched.
    """

    call_s: list[float] = field(default_factory=list)
    episode_s: list[float] = field(default_factory=list)


class SDKSession:
    """The SDK's synchronous session, alone; told the environment's name, which spares it a redirect per request."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._session: Any = None

    def new_episode(self, index: int) -> None:
        """Close the last session, open one and fetch its prompt."""
        self.close()
        self._session = self._environment.session(split="train", index=index).__enter__()
        self._session.get_prompt()

    def call(self) -> None:
        """Call the tool."""
        self._session.call_tool("echo", {"text": TEXT})

    def close(self) -> None:
        """Close the last session."""
        if self._session is not None:
            self._session.__exit__(None, None, None)
            self._session = None


class Adapter:
    """The adapter TRL drives."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def new_episode(self, index: int) -> None:
        """Close the last session, open one and fetch its prompt."""
        self._adapter.reset(task_index=index)

    def call(self) -> None:
        """Call the tool."""
        self._adapter.echo(text=TEXT)


@contextmanager
def drivers(server: BenchmarkServer) -> Iterator[tuple[SDKSession, Adapter]]:
    """Make one driver of each kind on the same server, and close what they opened."""
    from openreward import EnvironmentsAPI

    from multienv import MultiEnvSpec

    with EnvironmentsAPI(server.url, None) as api, MultiEnvSpec({"benchmark": server.url}) as spec:
        sdk = SDKSession(api.get(ENVIRONMENT, variant=ENVIRONMENT))
        try:
            yield sdk, Adapter(spec.environment_factory["benchmark"]())
        finally:
            sdk.close()


def timed(do: Callable[..., None], *arguments: int) -> float:
    started = time.perf_counter()
    do(*arguments)
    return time.perf_counter() - started


def measure(num_episodes: int = 40, num_calls: int = 20) -> tuple[Times, Times]:
    """Drive episodes with the SDK and with the adapter, taking turns at every episode and every call.

    Args:
        num_episodes: Episodes of each, after one untimed.
        num_calls: Tool calls per episode.

    Returns:
        The times of the SDK, and those of the adapter.
    """
    both = Times(), Times()
    indices = cycle(range(NUM_TASKS))
    with serving(1, NUM_TASKS) as (server,), drivers(server) as pair:
        for episode in range(num_episodes + 1):
            index = next(indices)
            opened = [timed(driver.new_episode, index) for driver in pair]
            called = [[timed(driver.call) for driver in pair] for _ in range(num_calls)]
            if episode:
                for number, times in enumerate(both):
                    times.episode_s.append(opened[number])
                    times.call_s.extend(call[number] for call in called)
    return both


def run() -> Report:
    sdk, adapter = measure()
    sdk_call, adapter_call = median(sdk.call_s), median(adapter.call_s)
    sdk_episode, adapter_episode = median(sdk.episode_s), median(adapter.episode_s)
    num_calls, num_episodes = f"{len(sdk.call_s):,} calls", f"{len(sdk.episode_s):,} episodes"
    return Report(
        title="Driving an episode",
        rows=[
            Row("tool call, SDK session alone", sdk_call, sdk_call, num_calls),
            Row("tool call, adapter", adapter_call, sdk_call, num_calls),
            Row("new episode, SDK session alone", sdk_episode, sdk_episode, num_episodes),
            Row("new episode, adapter", adapter_episode, sdk_episode, num_episodes),
        ],
        result=(
            f"the adapter takes {adapter_call / sdk_call:.2f} times the SDK's time for a tool call, "
            f"{adapter_episode / sdk_episode:.2f} times for a new episode"
        ),
    )


if __name__ == "__main__":
    run().show()
