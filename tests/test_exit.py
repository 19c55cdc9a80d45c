"""However a process ends, its sessions end with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.environments import LingeringEnvironment
from tests.support.servers import ORSServer

WAYS = ("cold", "exception", "interrupt-open", "interrupt-call", "terminate", "terminate-chained")


@dataclass
class Child:
    server: ORSServer
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def children() -> Iterator[dict[str, Child]]:
    """One process per way of ending, all at once, each with a server of its own."""
    started = {}
    for how in WAYS:
        server = ORSServer([LingeringEnvironment]).start()
        url = server.url.replace("127.0.0.1", "localhost")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.exit_child", how, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started[how] = Child(server, process)
    yield started
    for child in started.values():
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()
        child.server.stop()


@pytest.mark.parametrize("how", WAYS)
def test_no_session_is_left(children: dict[str, Child], how: str) -> None:
    child = children[how]
    out, err = child.process.communicate(timeout=90)
    assert out == ("open\nchained\n" if how == "terminate-chained" else "open\n"), err
    num_opened = {"interrupt-open": 3, "terminate-chained": 4}
    assert child.server.paths().count("/create") == num_opened.get(how, 2)
    deadline = time.monotonic() + 5  # the server's own bookkeeping may lag behind its answer
    while child.server.open_sessions and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child.server.open_sessions == [], err
    codes = {"cold": (0,), "exception": (1,), "terminate": (-15,), "terminate-chained": (0,)}
    assert child.process.returncode in codes.get(how, (-2, 130))
    assert "Task was destroyed" not in err
