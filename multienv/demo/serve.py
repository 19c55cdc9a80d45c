"""Decides what runs inside a server process: one environment on a loopback port, for as long as the parent lives.

Run as `python -m multienv.demo.serve NAME`. The first line on standard output is the port; everything else the process
has to say goes to standard error. It stops when its standard input closes, which the operating system sees to even if
the parent is killed.

Flow: `servers` starts it and reads the port; the sessions of the training run come in over HTTP.
"""

import os
import socket
import sys
import threading
from typing import Final

import uvicorn
from openreward.environments import Server

from multienv.demo.environments import ENVIRONMENTS
from multienv.demo.servers import OPEN_SESSIONS_PATH

_LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 128


def main(name: str) -> None:
    """Serve an environment until standard input closes or a signal comes.

    Args:
        name: Key of `ENVIRONMENTS`.
    """
    ors = Server([ENVIRONMENTS[name]])

    @ors.app.get(OPEN_SESSIONS_PATH)
    def open_sessions() -> dict[str, int]:
        return {"open_sessions": len(ors._active_envs)}  # noqa: SLF001 - the SDK offers no public count

    config = uvicorn.Config(
        ors.app, log_level="warning", access_log=False, timeout_keep_alive=60, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    # uvicorn's own sockets lack IPPROTO_TCP, and asyncio then leaves Nagle's delay on: 40 ms for every tool call.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind((_LOOPBACK, 0))
        listener.listen(_BACKLOG)
        _report(listener.getsockname()[1])
        threading.Thread(target=_stop_with_parent, args=(server,), daemon=True).start()
        server.run(sockets=[listener])


def _report(port: int) -> None:
    """Tell the parent the port, then let later output go to standard error: nobody reads the pipe any more."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _stop_with_parent(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True


if __name__ == "__main__":
    main(sys.argv[1])
