"""A process that opens sessions and then ends in one of several ways: `python -m tests.support.exit_child HOW URL`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from multienv import EnvSpec, MultiEnvSpec


def main(how: str, url: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
    spec = MultiEnvSpec({"env": EnvSpec(url, discover_task_tools=False)})
    factory = spec.environment_factory["env"]
    adapters: list[Any] = [factory() for _ in range(3)]
    for index, adapter in enumerate(adapters[:2]):
        adapter.reset(task_index=index)
    print("open", flush=True)  # noqa: T201 - read by the test
    if how == "cold":
        time.sleep(11.0)  # longer than a connection and a resolved name are kept: closing has to do both again
        return
    if how == "exception":
        raise RuntimeError("something else broke")
    if how == "terminate":
        signal.raise_signal(signal.SIGTERM)
    if how == "terminate-chained":
        spec.close()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "what was there before is back"
        signal.signal(signal.SIGTERM, lambda *_: print("chained", flush=True))  # noqa: T201 - read by the test
        with MultiEnvSpec({"env": EnvSpec(url, discover_task_tools=False)}) as other:
            adapter = other.environment_factory["env"]()
            adapter.reset(task_index=0)
            signal.raise_signal(signal.SIGTERM)
            assert adapter.reset(task_index=1) == "Echo 'world' to win.", "the process lives on, and so does the spec"
        return
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    if how == "interrupt-open":
        adapters[2].reset(task_index=2)  # the constructor takes a second
    else:
        adapters[0].hangs()


if __name__ == "__main__":
    main(*sys.argv[1:])
