"""ORS servers for tests: real ones over HTTP, all on one event loop of this process.

They share a loop because `sse-starlette` keeps a module-global event bound to the first loop that serves a stream.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("OPENREWARD_LOG_LEVEL", "CRITICAL")

import uvicorn
from openreward.environments import Environment, Server

_loop: asyncio.AbstractEventLoop | None = None


def server_loop() -> asyncio.AbstractEventLoop:
    """The one loop all servers of this process run on."""
    global _loop  # noqa: PLW0603 - one per process, by the nature of the thing
    if _loop is None:
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_loop.run_forever, name="ors-servers", daemon=True).start()
    return _loop


def loopback_socket(port: int = 0) -> socket.socket:
    """A bound loopback socket; made with IPPROTO_TCP so that asyncio switches Nagle's algorithm off."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class AppServer:
    """Any ASGI application on a loopback port, with every request it received."""

    def __init__(self, app: Callable[..., Any], port: int = 0) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._app = app
        self._sock = loopback_socket(port)
        self.port: int = self._sock.getsockname()[1]
        config = uvicorn.Config(
            self._record, log_level="critical", access_log=False, timeout_graceful_shutdown=1, interface="asgi3"
        )
        self._uvicorn = uvicorn.Server(config)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.requests]

    async def _record(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {key.decode().lower(): value.decode() for key, value in scope["headers"]}
            self.requests.append((scope["method"], scope["path"], headers))
        await self._app(scope, receive, send)

    def start(self) -> Self:
        self._future = asyncio.run_coroutine_threadsafe(self._uvicorn._serve(sockets=[self._sock]), server_loop())
        deadline = time.monotonic() + 20
        while not self._uvicorn.started:
            if self._future.done():
                self._future.result()
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not start within 20 s")
            time.sleep(0.002)
        return self

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._future.result(20)
        self._sock.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ORSServer(AppServer):
    """A real ORS server with the SDK's own routes."""

    def __init__(self, environments: Sequence[type[Environment]], port: int = 0) -> None:
        self.ors = Server(list(environments))
        super().__init__(self.ors.app, port)

    @property
    def open_sessions(self) -> list[str]:
        return list(self.ors._active_envs)
