"""A small ORS server whose faults are written down beforehand, and which counts what really ran."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.servers import AppServer

RESULT = {"ok": True, "output": {"blocks": [{"type": "text", "text": "ran"}], "reward": 1.0, "finished": True}}


def event(name: str, data: str) -> bytes:
    return f"event: {name}\r\ndata: {data}\r\n\r\n".encode()


class FaultyServer(AppServer):
    """One environment with one tool, `win`.

    Attributes:
        probe_script: Answers to `/list_environments`, then the ordinary one: a status, or seconds to wait.
        call_script: What happens to the posts of `/call`, then the ordinary thing. `"429"`, `"starting"`, `"502"` are
            answered without running; `"ran-502"` runs and then answers 502; `"cut-before-id"` runs and breaks the
            stream before its id, `"cut-after-id"` after it; `"garbled"`, `"nan"`, `"401"`, `"404"` as they say;
            `"repeats-key"` answers 500 with the key it was sent.
        names: What `/list_environments` lists; None for a server without that route.
        has_env_name: Whether answers carry `env_name`.
        has_ranges: Whether `/task_range` and `/tasks` exist.
        redirects_to: Another host to which everything but the probe is redirected.
        num_runs: How often the tool ran.
    """

    def __init__(self, port: int = 0) -> None:
        self.probe_script: list[int | float] = []
        self.call_script: list[str] = []
        self.names: Any = ["faulty"]
        self.has_env_name = True
        self.has_ranges = True
        self.redirects_to: str | None = None
        self.num_runs = 0
        self.live: set[str] = set()
        self.secrets: list[str] = []
        self._num_sessions = 0
        routes = [
            Route("/list_environments", self._list),
            Route("/create_session", self._create_session, methods=["POST"]),
            Route("/delete_session", self._ok, methods=["POST"]),
            Route("/create", self._create, methods=["POST"]),
            Route("/delete", self._delete, methods=["POST"]),
            Route("/ping", self._ok, methods=["POST"]),
            *(
                Route(f"{prefix}{path}", endpoint, methods=[method])
                for prefix in ("", "/faulty")
                for path, endpoint, method in (
                    ("/splits", self._splits, "GET"),
                    ("/num_tasks", self._num_tasks, "POST"),
                    ("/task", self._task, "POST"),
                    ("/tasks", self._tasks, "POST"),
                    ("/task_range", self._task_range, "POST"),
                    ("/tools", self._tools, "GET"),
                    ("/task_tools", self._tools, "GET"),
                    ("/prompt", self._prompt, "GET"),
                    ("/call", self._call, "POST"),
                )
            ),
        ]
        super().__init__(Starlette(routes=routes), port)

    async def _list(self, _request: Request) -> Response:
        while self.probe_script:
            step = self.probe_script.pop(0)
            if isinstance(step, int):
                return Response(status_code=step)
            await asyncio.sleep(step)
        return Response(status_code=404) if self.names is None else JSONResponse(self.names)

    async def _create_session(self, request: Request) -> Response:
        if self.redirects_to is not None:
            return RedirectResponse(self.redirects_to + request.url.path, status_code=308)
        self._num_sessions += 1
        sid = f"sid-{self._num_sessions}"
        return StreamingResponse(iter([event("task_id", sid), event("end", "")]), media_type="text/event-stream")

    async def _ok(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _create(self, request: Request) -> Response:
        self.live.add(request.headers["X-Session-ID"])
        self.secrets.append(request.headers.get("X-Secrets", ""))
        return JSONResponse({"sid": request.headers["X-Session-ID"]})

    async def _delete(self, request: Request) -> Response:
        self.live.discard(request.headers["X-Session-ID"])
        return JSONResponse({})

    async def _splits(self, _request: Request) -> Response:
        return JSONResponse([{"name": "train", "type": "train"}])

    async def _num_tasks(self, _request: Request) -> Response:
        return JSONResponse({"num_tasks": 3})

    def _named(self, **answer: Any) -> Response:
        return JSONResponse(answer | ({"env_name": "faulty"} if self.has_env_name else {}))

    async def _task(self, request: Request) -> Response:
        return self._named(task={"n": (await request.json())["index"]})

    async def _tasks(self, _request: Request) -> Response:
        return self._named(tasks=[{"n": n} for n in range(3)]) if self.has_ranges else Response(status_code=400)

    async def _task_range(self, request: Request) -> Response:
        if not self.has_ranges:
            return Response(status_code=404)
        asked = await request.json()
        return self._named(tasks=[{"n": n} for n in range(asked["start"], asked["stop"])])

    async def _tools(self, _request: Request) -> Response:
        return JSONResponse({"tools": [{"name": "win", "description": "Win.", "input_schema": None}]})

    async def _prompt(self, _request: Request) -> Response:
        return JSONResponse([{"type": "text", "text": "Win."}])

    async def _call(self, request: Request) -> Response:
        body = await request.json()
        fault = self.call_script.pop(0) if self.call_script else ""
        if fault == "starting":
            return Response(status_code=503, headers={"X-Backend-State": "starting", "Retry-After": "0"})
        if fault == "repeats-key":
            return Response(f"bad key {request.headers['X-API-Key']}", status_code=500)
        if fault.isdigit():
            return Response(status_code=int(fault), headers={"Retry-After": "0"})
        if "task_id" not in body:
            self.num_runs += 1
        if fault == "ran-502":
            return Response(status_code=502)
        return StreamingResponse(self._stream(fault), media_type="text/event-stream")

    async def _stream(self, fault: str) -> AsyncIterator[bytes]:
        if fault == "cut-before-id":
            yield b": ping\r\n\r\n"
            raise ConnectionResetError
        yield event("task_id", "run-1")
        if fault == "cut-after-id":
            raise ConnectionResetError
        result = json.dumps(RESULT)
        if fault == "garbled":
            result = result[:-5]
        if fault == "nan":
            result = result.replace('"reward": 1.0', '"reward": NaN')
        for start in range(0, len(result) - 7, 7):
            yield event("chunk", result[start : start + 7])
            done = start + 7
        yield event("end", result[done:])
