"""Decides what runs inside the server process: one environment on several loopback ports, every request counted.

Run as `python serve.py NUM_SERVERS NUM_TASKS [SETUP_S/TOOL_S ...]`, the last once per server: how long its `setup()`
and its tool `work` take; nothing by default. The first line on standard output holds the ports. The process leaves
when its standard input closes, which the operating system sees to even if the parent is killed.

Flow: `servers.serving` starts it and reads the ports.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import uvicorn
from openreward.environments import Environment, JSONObject, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel

NUM_REQUESTS_PATH: Final = "/health/num_requests"
"""Where a server tells how many requests it has had, this one not counted."""


class EchoParams(BaseModel):
    """Arguments of `echo`."""

    text: str


class BenchmarkEnvironment(Environment):
    """Many tasks, a tool that costs nothing, and one that takes its time."""

    num_listed: ClassVar[int] = 0
    setup_s: ClassVar[float] = 0.0
    tool_s: ClassVar[float] = 0.0

    @classmethod
    def name(cls) -> str:
        """Give every server's environment the same name."""
        return "BenchmarkEnvironment"

    async def setup(self) -> None:
        """Take as long as a sandbox takes to start."""
        await asyncio.sleep(self.setup_s)

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks; each is about as long as a short exercise."""
        return [
            {"name": f"{split}-{index}", "difficulty": index % 5, "instruction": f"Exercise {index}. " + "Do it. " * 50}
            for index in range(cls.num_listed)
        ]

    def get_prompt(self) -> list[TextBlock]:
        """Show the exercise."""
        return [TextBlock(text=str(self.task_spec["instruction"]))]

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Say the text back."""
        return ToolOutput(blocks=[TextBlock(text=params.text)], reward=0.0, finished=False)

    @tool
    async def work(self) -> ToolOutput:
        """Work for a while."""
        await asyncio.sleep(self.tool_s)
        return ToolOutput(blocks=[TextBlock(text="done")], reward=1.0, finished=False)


class CountingServer(uvicorn.Server):
    """One server on a loopback port of its own."""

    def __init__(self, setup_s: float, tool_s: float) -> None:
        self._num_requests = 0
        members = {"setup_s": setup_s, "tool_s": tool_s}
        ors = Server([type("BenchmarkEnvironment", (BenchmarkEnvironment,), members)])
        self._app: Callable[..., Awaitable[None]] = ors.app

        @ors.app.get(NUM_REQUESTS_PATH)
        def num_requests() -> int:
            return self._num_requests

        # uvicorn's own sockets lack IPPROTO_TCP, and asyncio then leaves Nagle's delay on: 40 ms for every tool call.
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        super().__init__(
            uvicorn.Config(
                self._count, interface="asgi3", log_level="warning", access_log=False, timeout_graceful_shutdown=1
            )
        )

    async def _count(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] != NUM_REQUESTS_PATH:
            self._num_requests += 1
        await self._app(scope, receive, send)


async def serve(delays: list[tuple[float, float]]) -> None:
    servers = [CountingServer(setup_s, tool_s) for setup_s, tool_s in delays]
    sys.stdout.write(" ".join(str(server.socket.getsockname()[1]) for server in servers) + "\n")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads the pipe any more
    threading.Thread(target=stop_with_parent, args=(servers,), daemon=True).start()
    await asyncio.gather(*(server.serve(sockets=[server.socket]) for server in servers))


def stop_with_parent(servers: list[CountingServer]) -> None:
    sys.stdin.buffer.read()
    for server in servers:
        server.should_exit = True


if __name__ == "__main__":
    BenchmarkEnvironment.num_listed = int(sys.argv[2])
    given = [(float(setup_s), float(tool_s)) for setup_s, tool_s in (arg.split("/") for arg in sys.argv[3:])]
    asyncio.run(serve(given or [(0.0, 0.0)] * int(sys.argv[1])))
