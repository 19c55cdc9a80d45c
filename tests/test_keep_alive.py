"""A session lives as long as its episode, however long the policy thinks; one that is left behind does not."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request

from multienv import EnvSpec, MultiEnvSpec
from tests.support.faulty import FaultyServer

STALE_S = 12.0
"""The SDK pings every 10 s; a real server's reaper waits 900 s."""


class ReapingServer(FaultyServer):
    """Deletes a session that it has not heard of for a while."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        super().__init__()

    async def _ok(self, request: Request) -> Any:
        self.reap()
        if request.url.path == "/ping":
            self.heard[request.headers["X-Session-ID"]] = time.monotonic()
        return await super()._ok(request)

    async def _create(self, request: Request) -> Any:
        self.heard[request.headers["X-Session-ID"]] = time.monotonic()
        return await super()._create(request)

    def reap(self) -> None:
        now = time.monotonic()
        self.live = {sid for sid in self.live if now - self.heard[sid] < STALE_S}


def test_an_idle_session_outlives_the_reaper_and_a_leaked_one_does_not() -> None:
    with ReapingServer() as server, MultiEnvSpec({"env": EnvSpec(server.url, discover_task_tools=False)}) as spec:
        idle: Any = spec.environment_factory["env"]()
        leaked: Any = spec.environment_factory["env"]()
        idle.reset(task_index=0)
        leaked.reset(task_index=1)
        ping_task = leaked._session._session._sdk._ping_task
        ping_task.get_loop().call_soon_threadsafe(ping_task.cancel)  # as if its process had died
        deadline = time.monotonic() + STALE_S + 3
        while time.monotonic() < deadline:
            time.sleep(0.5)
        server.reap()
        assert server.live == {idle._session.id}
        assert (idle.win(), idle.reward) == ("ran", 1.0)
