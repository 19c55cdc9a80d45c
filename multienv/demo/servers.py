"""Decides how the demo's servers live: one process each, started together, ended with the demo whatever happens.

Flow: `run` enters `serving` → `serve` in every process → `run` asks each `ServerProcess` for its URL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx

from multienv.errors import ServerUnreachableError

OPEN_SESSIONS_PATH: Final = "/health/open_sessions"
"""Where a server tells how many sessions it holds. The SDK sends unknown first segments of a path to an environment."""

_SERVE_MODULE: Final = "multienv.demo.serve"
_START_PATIENCE_S: Final = 90.0
_STOP_PATIENCE_S: Final = 5.0
_NUM_LOG_LINES: Final = 5
_QUIET: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    "OPENREWARD_LOG_LEVEL": "CRITICAL",
}


class ServerProcess:
    """One environment's server, starting in the background from construction on.

    Args:
        name: Name of the environment.
        log_path: Where the process writes what it has to say.
    """

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._first_line: Future[str] = Future()
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this package
                [sys.executable, "-m", _SERVE_MODULE, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | _QUIET,
                # Ctrl-C in a terminal reaches a whole group; the server must outlive it to see its sessions closed.
                start_new_session=True,
            )
        threading.Thread(target=self._read_first_line, daemon=True).start()

    def url(self, *, patience_s: float = _START_PATIENCE_S) -> str:
        """Wait until the server listens.

        Args:
            patience_s: Longest wait, in seconds.

        Returns:
            Its address.

        Raises:
            ServerUnreachableError: The process ended, or was not ready in time.
        """
        try:
            return f"http://127.0.0.1:{int(self._first_line.result(patience_s))}"
        except FutureTimeoutError:
            problem = f"was not ready within {patience_s:g} s"
        except ValueError:
            problem = "ended before it was ready"
        raise ServerUnreachableError(
            f"the demo's server of environment {self.name!r} {problem}; its log {self.log_path} ends with: "
            f"{self._log_end()}. Run `python -m {_SERVE_MODULE} {self.name}` to see it start",
            environment=self.name,
        )

    def num_open_sessions(self) -> int:
        """Ask the server how many sessions it holds.

        Raises:
            ServerUnreachableError: It does not answer.
        """
        try:
            with httpx.Client(trust_env=False, timeout=_STOP_PATIENCE_S) as client:
                answer = client.get(self.url() + OPEN_SESSIONS_PATH).raise_for_status()
        except httpx.HTTPError as error:
            raise ServerUnreachableError(
                f"the demo's server of environment {self.name!r} does not answer: {error}; see its log {self.log_path}",
                environment=self.name,
            ) from error
        return int(answer.json()["open_sessions"])

    def ask_to_stop(self) -> None:
        """Close the server's standard input, on which it leaves, or end it if it is not listening yet; do not wait."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self._first_line.done():
            self._process.terminate()

    def stop(self) -> None:
        """End the process, by asking, by SIGTERM and by SIGKILL, each with patience for the one before."""
        self.ask_to_stop()
        for insist in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(_STOP_PATIENCE_S)
            except subprocess.TimeoutExpired:
                insist()
        self._process.wait()

    def _read_first_line(self) -> None:
        if self._process.stdout is not None:
            with self._process.stdout as output:
                self._first_line.set_result(output.readline().decode())

    def _log_end(self) -> str:
        lines = self.log_path.read_text(errors="replace").split("\n")
        return " / ".join(line for line in lines[-_NUM_LOG_LINES - 1 :] if line.strip()) or "(empty)"


@contextmanager
def serving(names: Iterable[str], log_dir: Path) -> Iterator[dict[str, ServerProcess]]:
    """Start one server per environment, all at once, and end them on leaving.

    Args:
        names: Names of the environments.
        log_dir: An existing folder for their logs.

    Yields:
        The servers by name, perhaps still starting.
    """
    servers: dict[str, ServerProcess] = {}
    with ExitStack() as stack:
        for name in names:
            servers[name] = ServerProcess(name, log_dir / f"{name}.log")
            stack.callback(servers[name].stop)
        try:
            yield servers
        finally:
            for server in servers.values():
                server.ask_to_stop()
