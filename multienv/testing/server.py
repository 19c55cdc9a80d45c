"""Decides how the scripted-fault server lives: real HTTP on a loopback port, on a thread with its own event loop.

Flow: a test enters `FaultServer` → uvicorn serves `FaultApp` → the test reads what was received.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from multienv.errors import OrderError
from multienv.testing.faults import Fault, FaultScript
from multienv.testing.small import Dialect, Request, SmallEnvironment, ToolRun
from multienv.testing.wire import FaultApp

_START_PATIENCE_S: Final = 20.0


class FaultServer:
    """An ORS server whose faults are written down beforehand, and which counts what it received and what really ran.

    It serves one environment, `fault`, with one split, `train`. The task with index 3 has the spec `{"n": 3}` and the
    prompt `Task 3. Win.` The tool `win` takes nothing, gives reward 1.0 and finishes; `work` takes `hours`, gives 0.25
    and does not finish. Calls may come in any order.

    Args:
        num_tasks: Number of tasks.
        faults: What goes wrong; for each request the first one that fits and is not used up.
        port: Port to listen on; 0 for a free one.
        dialect: How it differs from the SDK's own server.
        reap_after_s: A session that it has not heard of for so long is forgotten, as the SDK's server does after 900 s.
            Openings, pings, prompts and calls count. None for no reaper.

    Example:
        >>> from multienv import EnvSpec, MultiEnvSpec
        >>> from multienv.testing import Fault, FaultKind, FaultServer, Phase
        >>> with FaultServer(faults=[Fault(FaultKind.ERROR, Phase.OPENING)]) as server:
        ...     with MultiEnvSpec({"env": EnvSpec(server.url, discover_task_tools=False)}) as spec:
        ...         adapter = spec.environment_factory["env"]()
        ...         prompt = adapter.reset(task_index=2)
        ...     print(prompt, server.num_requests["/create"], server.open_sessions)
        Task 2. Win. 2 {}
    """

    def __init__(
        self,
        *,
        num_tasks: int = 3,
        faults: Iterable[Fault] = (),
        port: int = 0,
        dialect: Dialect | None = None,
        reap_after_s: float | None = None,
    ) -> None:
        self._environment = SmallEnvironment(num_tasks, dialect or Dialect(), reap_after_s)
        self._connections: dict[tuple[str, int], asyncio.Transport] = {}
        self._app = FaultApp(self._environment, self._connections)
        self._sock = _listen(port)
        self._port: int = self._sock.getsockname()[1]
        self._server: _Uvicorn | None = None
        self._thread: threading.Thread | None = None
        self.faults = tuple(faults)

    @property
    def port(self) -> int:
        """The port, the same after a restart."""
        return self._port

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What goes wrong from now on; setting it forgets how often each fault has played."""
        return self._app.script.faults

    @faults.setter
    def faults(self, faults: Iterable[Fault]) -> None:
        self._app.script = FaultScript(faults)

    @property
    def num_played(self) -> dict[Fault, int]:
        """How often each fault has played; equal faults count together."""
        script = self._app.script
        counts: Counter[Fault] = Counter()
        for fault, played in zip(script.faults, script.num_played, strict=True):
            counts[fault] += played
        return dict(counts)

    @property
    def dialect(self) -> Dialect:
        """How it differs from the SDK's own server; may be set at any time."""
        return self._environment.dialect

    @dialect.setter
    def dialect(self, dialect: Dialect) -> None:
        self._environment.dialect = dialect

    @property
    def requests(self) -> list[Request]:
        """Every request, in order of arrival."""
        return list(self._app.requests)

    @property
    def num_requests(self) -> Counter[str]:
        """How many requests each route has received, the environment's name left out."""
        return Counter(request.route for request in self.requests)

    @property
    def keys(self) -> set[str]:
        """The keys that were sent to it."""
        return {request.headers["x-api-key"] for request in self.requests if "x-api-key" in request.headers}

    @property
    def runs(self) -> list[ToolRun]:
        """Every tool that really ran, in order."""
        return list(self._environment.runs)

    @property
    def open_sessions(self) -> dict[str, int]:
        """From the id of each session that is open now to its task index."""
        return {session_id: session.task_index for session_id, session in self._environment.live_sessions().items()}

    @property
    def secrets(self) -> list[dict[str, Any]]:
        """The secrets that came with each opening of a session, decoded; empty where none came."""
        sent = [request.headers.get("x-secrets") for request in self.requests if request.route == "/create"]
        return [json.loads(base64.b64decode(secrets)) if secrets else {} for secrets in sent]

    def forget_requests(self) -> None:
        """Count requests from zero."""
        self._app.requests.clear()

    def start(self) -> Self:
        """Start serving; after `stop` on the same port, without the sessions it had.

        Raises:
            OrderError: It is serving already.
        """
        if self._thread is not None:
            raise OrderError(f"the server at {self.url} is serving already; stop() it first")
        if self._sock.fileno() < 0:
            self._sock = _listen(self.port)
        self._environment.forget()
        self._server = _Uvicorn(self._app, self._connections)
        self._thread = threading.Thread(target=self._run, args=(self._server,), name="fault-server", daemon=True)
        self._thread.start()
        if not self._server.is_ready.wait(_START_PATIENCE_S):
            raise TimeoutError(f"the server at {self.url} did not start within {_START_PATIENCE_S:g} s")
        return self

    def stop(self) -> None:
        """Go down as if killed: every connection breaks, every session is forgotten. Does nothing if not serving."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(_START_PATIENCE_S)
        self._server = self._thread = None
        self._sock.close()
        self._environment.forget()

    def __enter__(self) -> Self:
        """Start, if it is not serving already."""
        return self if self._thread is not None else self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        """Show the address."""
        return f"FaultServer({self.url})"

    def _run(self, server: _Uvicorn) -> None:
        asyncio.run(self._serve(server))

    async def _serve(self, server: _Uvicorn) -> None:
        await server.serve([self._sock])
        for connection in list(self._connections.values()):
            connection.abort()
        await asyncio.sleep(0)  # the connections learn that they are lost


def _listen(port: int) -> socket.socket:
    """Listen on loopback; the protocol is named so that asyncio switches Nagle's algorithm off."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class _Uvicorn(uvicorn.Server):
    """A server that says when it is ready, and keeps its connections where they can be closed one by one."""

    def __init__(self, app: FaultApp, connections: dict[tuple[str, int], asyncio.Transport]) -> None:
        class Connection(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                if self.client is not None:
                    connections[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                if self.client is not None:
                    connections.pop(self.client, None)

        super().__init__(
            uvicorn.Config(app, http=Connection, lifespan="off", ws="none", log_level="critical", access_log=False)
        )
        self.is_ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.is_ready.set()
