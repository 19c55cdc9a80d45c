"""An OpenAI-compatible server over real HTTP, whose model is a function that a test writes down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.servers import AppServer

Model = Callable[[list[dict[str, Any]], list[dict[str, Any]]], dict[str, Any]]
"""From the messages and the tools of a request to an assistant message."""


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(tool: str, arguments: Any = None, *more: tuple[str, Any]) -> dict[str, Any]:
    """An assistant message that calls tools; arguments that are text are sent as they are."""
    calls = [(tool, {} if arguments is None else arguments), *more]
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": own if isinstance(own, str) else json.dumps(own)},
            }
            for number, (name, own) in enumerate(calls)
        ],
    }


class OpenAIServer(AppServer):
    """Serves one model under the key `key`; `faults` are the statuses of the next answers, None for a good one."""

    def __init__(self, model: Model, *, names: Sequence[str] = ("tiny",), latency_s: float = 0.0) -> None:
        self.model, self.names, self.latency_s = model, list(names), latency_s
        self.faults: list[int | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.key = "sk-local"
        self.num_at_once = self.most_at_once = 0
        super().__init__(
            Starlette(
                routes=[
                    Route("/v1/models", self._models),
                    Route("/v1/chat/completions", self._complete, methods=["POST"]),
                ]
            )
        )

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    async def _models(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in self.names]})

    async def _complete(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        self.bodies.append(body)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return JSONResponse({"error": {"message": f"fault {fault}"}}, fault, headers={"Retry-After": "0"})
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            await asyncio.sleep(self.latency_s)
            message = self.model(body["messages"], body.get("tools", []))
        finally:
            self.num_at_once -= 1
        reason = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
        return JSONResponse(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        )

    def _refused(self, request: Request) -> Response | None:
        if request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "no such key"}}, 401)
