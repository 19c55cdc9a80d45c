"""A session lives as long as its episode, however long the policy thinks; one that is left behind does not."""

from __future__ import annotations

import time
from typing import Any

from multienv import EnvSpec, MultiEnvSpec
from multienv.testing import FaultServer

STALE_S = 12.0
"""The SDK pings every 10 s; a real server's reaper waits 900 s."""


def test_an_idle_session_outlives_the_reaper_and_a_leaked_one_does_not() -> None:
    with (
        FaultServer(reap_after_s=STALE_S) as server,
        MultiEnvSpec({"env": EnvSpec(server.url, discover_task_tools=False)}) as spec,
    ):
        idle: Any = spec.environment_factory["env"]()
        leaked: Any = spec.environment_factory["env"]()
        idle.reset(task_index=0)
        leaked.reset(task_index=1)
        opened_at = time.monotonic()
        ping_task = leaked._play.session._session._sdk._ping_task
        ping_task.get_loop().call_soon_threadsafe(ping_task.cancel)  # as if its process had died
        deadline = opened_at + STALE_S + 3
        while len(server.open_sessions) == 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert time.monotonic() - opened_at > STALE_S - 1
        assert server.open_sessions == {idle._play.session.id: 0}
        assert (idle.win(), idle.reward) == ("won", 1.0)
