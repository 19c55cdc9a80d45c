"""Measures an evaluation with many attempts at once, beside the same attempts one after the other.

Run as `python benchmarks/evaluation.py`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import Report, Row
from servers import BenchmarkServer, serving

NUM_TURNS = 3


async def _answer(latency_s: float, scope: Any, receive: Any, send: Any) -> None:
    """Answer as an OpenAI-compatible endpoint whose model calls a tool twice, and then says that it is done."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
            continue
        if message["type"] != "http.request":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    document = _models() if scope["path"].endswith("/models") else _completion(json.loads(body))
    if not scope["path"].endswith("/models"):
        await asyncio.sleep(latency_s)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})


def _models() -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "model", "object": "model"}]}


def _completion(request: dict[str, Any]) -> dict[str, Any]:
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if turn < NUM_TURNS - 1:
        call = {"name": "echo", "arguments": json.dumps({"text": "a line"})}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": call}]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "model", "choices": [choice], "usage": usage}


@contextmanager
def endpoint(latency_s: float) -> Iterator[str]:
    """Serve the endpoint on a loopback port."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(functools.partial(_answer, latency_s), port=0, log_level="critical", interface="asgi3")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def seconds(server: BenchmarkServer, base_url: str, num_tasks: int, max_concurrent: int) -> float:
    """Evaluate, and return the seconds that took."""
    from multienv import EnvSpec, MultiEnvSpec
    from multienv.evaluation import EndpointPolicy, EvalSpec, evaluate

    settings = EvalSpec(model="model", base_url=base_url, max_concurrent=max_concurrent)
    with (
        tempfile.TemporaryDirectory() as folder,
        MultiEnvSpec({"bench": EnvSpec(server.url, num_tasks=num_tasks)}) as spec,
    ):
        _ = spec.environment_factory
        started = time.monotonic()
        found = evaluate(spec, EndpointPolicy(settings), settings, Path(folder))
        took = time.monotonic() - started
    assert found.environments["bench"].num_attempts == num_tasks
    return took


def run(num_tasks: int = 16, latency_s: float = 0.2) -> Report:
    """Measure.

    Args:
        num_tasks: Attempts, one at each task.
        latency_s: Seconds that a request takes.
    """
    with serving(1, num_tasks) as [server], endpoint(latency_s) as base_url:
        seconds(server, base_url, num_tasks, num_tasks)  # imports, and connections that are made once
        one, many = (seconds(server, base_url, num_tasks, most) for most in (1, num_tasks))
    path_s = NUM_TURNS * latency_s
    rows = [
        Row(f"{num_tasks} attempts, one after the other", one, one, f"{NUM_TURNS} requests each, {latency_s:g} s"),
        Row("the same at once", many, one),
        Row("the critical path: the requests of one attempt", path_s, one),
    ]
    result = f"{one / many:.1f} times faster at once, {many / path_s:.2f} times the critical path"
    return Report("evaluation", rows, result)


if __name__ == "__main__":
    run().show()
