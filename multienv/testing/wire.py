"""Decides what goes over the wire: the answer of the small environment, or what a fault makes of it.

Flow: uvicorn → `FaultApp` → `SmallEnvironment`; which fault a request meets is `FaultScript`'s to say.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

from multienv.testing.faults import STATUS, Fault, FaultKind, FaultScript, Phase
from multienv.testing.small import Answer, Request, SmallEnvironment

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PHASES: Final = {
    "/list_environments": Phase.LISTING,
    "/create": Phase.OPENING,
    "/prompt": Phase.PROMPT,
    "/call": Phase.CALL,
    "/delete": Phase.CLOSE,
}
_CHUNK_LENGTH: Final = 7  # small, so that every result comes in several pieces
_NUM_TRICKLES: Final = 20


class FaultApp:
    """The ASGI application of a `FaultServer`.

    Args:
        environment: What is served.
        connections: The open connections, by the client's address.
    """

    def __init__(
        self, environment: SmallEnvironment, connections: MutableMapping[tuple[str, int], asyncio.Transport]
    ) -> None:
        self.environment = environment
        self.script = FaultScript()
        self.requests: list[Request] = []
        self._connections = connections

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = await _read(scope, receive)
        self.requests.append(request)
        reply = _Reply(receive, send, self._connections[tuple(scope["client"])])
        phase = PHASES.get(request.route)
        tool = request.body.get("name") if isinstance(request.body, dict) else None
        fault = phase and self.script.take(phase, self.environment.task_of(request), tool)
        if fault:
            await self._play(fault, request, reply)
        else:
            await reply.send(self.environment.answer(request))

    async def _play(self, fault: Fault, request: Request, reply: _Reply) -> None:
        serve = self.environment.answer
        if fault.forgets:
            self.environment.forget(None if fault.kind is FaultKind.RESTART else request.session_id)
        match fault.kind:
            case FaultKind.REFUSE | FaultKind.RESTART:
                await reply.close()
            case FaultKind.HANG:
                if await reply.is_waited_for(fault.seconds):
                    await reply.send(serve(request))
            case FaultKind.LOST:
                serve(request)
                await reply.close()
            case FaultKind.DROP:
                await reply.send(serve(request), is_cut=True)
            case FaultKind.SLOW:
                await reply.send(serve(request), over_s=fault.seconds)
            case FaultKind.MALFORMED | FaultKind.WRONG_SCHEMA | FaultKind.NAN:
                await reply.send(serve(request), spoil=_SPOILERS[fault.kind])
            case _:
                if fault.kind is FaultKind.BAD_GATEWAY:
                    serve(request)
                await reply.send(_status(fault, request))


def _status(fault: Fault, request: Request) -> Answer:
    headers = {}
    if fault.kind in (FaultKind.TOO_MANY, FaultKind.STARTING):
        headers["Retry-After"] = str(fault.retry_after_s)
    if fault.kind is FaultKind.STARTING:
        headers["X-Backend-State"] = "starting"
    detail = fault.detail.replace("{key}", request.headers.get("x-api-key", ""))
    return Answer({"detail": detail}, fault.status or STATUS[fault.kind], headers)


def _without_number(text: str) -> str:
    result = json.loads(text)
    if result.get("ok"):
        result["output"]["reward"] = math.nan
    return json.dumps(result)


_SPOILERS: Final[dict[FaultKind, Callable[[str], str]]] = {
    FaultKind.MALFORMED: lambda text: text[:-2],
    FaultKind.WRONG_SCHEMA: lambda _: '{"unexpected": true}',
    FaultKind.NAN: _without_number,
}


class _Reply:
    """What one request is answered with."""

    def __init__(self, receive: Receive, send: Send, connection: asyncio.Transport) -> None:
        self._receive = receive
        self._send = send
        self._connection = connection

    async def send(
        self,
        answer: Answer,
        *,
        spoil: Callable[[str], str] = str,
        is_cut: bool = False,
        over_s: float = 0.0,
    ) -> None:
        """Send an answer: as it is, spoiled, only its first half, or over some seconds."""
        pieces = _pieces(answer, spoil("" if answer.content is None else json.dumps(answer.content)))
        kind = "application/json" if answer.run_id is None else "text/event-stream"
        headers = {"Content-Type": kind, **answer.headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        bodies = pieces[: len(pieces) // 2] if is_cut else _trickle(pieces) if over_s else pieces
        for body in bodies:
            await asyncio.sleep(over_s / len(bodies))
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        if is_cut:
            await self.close()
        else:
            await self._send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        """Close the connection, after what has been sent."""
        self._connection.close()
        await self._is_gone()

    async def is_waited_for(self, seconds: float) -> bool:
        """Do nothing for some seconds; True if the client is still there then."""
        try:
            await asyncio.wait_for(self._is_gone(), seconds)
        except TimeoutError:
            return True
        return False

    async def _is_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _read(scope: Message, receive: Receive) -> Request:
    chunks = []
    is_more = True
    while is_more:
        message = await receive()
        chunks.append(message.get("body", b""))
        is_more = message.get("more_body", False)
    content = b"".join(chunks)
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    return Request(scope["method"], scope["path"], headers, json.loads(content) if content else None)


def _pieces(answer: Answer, text: str) -> list[bytes]:
    """Return the body of an answer in at least two pieces; a stream's first piece is the id of its result."""
    if answer.run_id is None:
        middle = len(text) // 2
        return [text[:middle].encode(), text[middle:].encode()]
    chunks = [text[start : start + _CHUNK_LENGTH] for start in range(0, len(text), _CHUNK_LENGTH)] or [""]
    events = [("task_id", answer.run_id), *(("chunk", chunk) for chunk in chunks[:-1]), ("end", chunks[-1])]
    return [f"event: {name}\r\ndata: {data}\r\n\r\n".encode() for name, data in events]


def _trickle(pieces: Sequence[bytes]) -> list[bytes]:
    body = b"".join(pieces)
    length = -(-len(body) // _NUM_TRICKLES)
    return [body[start : start + length] for start in range(0, len(body), length)]
