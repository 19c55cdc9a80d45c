"""Decides when a tool call is posted again: only when it certainly did not run.

Flow: `HttpSession.call` → `post_call` → `POST /{environment}/call` and its event stream.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from openreward.api.errors import SessionTerminatedError, ToolFailed

from multienv.sessions.sse import read_events

logger = logging.getLogger(__name__)

_HEARTBEAT_S: Final = 30.0  # servers send a comment every 10 s; silence for three of them means a dead connection
_MAX_TRIES: Final = 5
_LONGEST_WAIT_S: Final = 10.0
_SHORTEST_WAIT_S: Final = 0.2
_GONE: Final = frozenset({404, 410})
_TRANSIENT: Final = frozenset({429, 502, 503, 504})


async def post_call(
    client: aiohttp.ClientSession, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Post a tool call and read its result, running the tool at most once.

    Until the server has said under which `task_id` the tool runs, a call is repeated only if it certainly did not run:
    the connection was never made, the server said 429, or its proxy said that the environment is still starting. From
    then on a broken stream is taken up again by that id, which starts nothing.

    Args:
        client: The host's HTTP client.
        path: Route of the call.
        headers: Session id, deployment and key.
        body: `{"name": ..., "input": ...}`.

    Returns:
        The decoded result, `{"ok": ..., ...}`.

    Raises:
        ToolFailed: The tool raised on the server.
        SessionTerminatedError: The session is gone.
        aiohttp.ClientError: The connection broke before anything was known.
        TimeoutError: No sign of life from the server.

    Source:
        `POST /{environment}/call`, server-sent events `task_id`, `chunk`, `end`, `error`.
    """
    task_id: str | None = None
    tries = 0
    while True:
        payload = dict(body) if task_id is None else {**body, "task_id": task_id}
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_read=_HEARTBEAT_S)
            sent = {"Accept": "text/event-stream", **headers}
            async with client.post(path, json=payload, headers=sent, timeout=timeout) as response:
                await _check_status(response, headers.get("X-Session-ID", ""))
                chunks: list[str] = []
                async for event, data in read_events(response.content.iter_any()):
                    if event == "task_id" and task_id is None:
                        task_id, tries = data.strip(), 0
                    elif event == "error":
                        raise ToolFailed(data or "the server gave no reason")
                    elif event in ("chunk", "end"):
                        chunks.append(data)
                        if event == "end":
                            return dict(json.loads("".join(chunks)))
                raise aiohttp.ClientPayloadError("the stream ended before the result")
        except (aiohttp.ClientError, TimeoutError) as error:
            tries += not _is_starting(error)
            if tries >= _MAX_TRIES or not (_did_not_run(error) if task_id is None else _may_pass(error)):
                raise
            logger.debug("tool call on %s: %s; trying again", path, error)
            await asyncio.sleep(_wait_s(error, tries))


async def _check_status(response: aiohttp.ClientResponse, sid: str) -> None:
    if response.ok:
        return
    text = (await response.text())[:500]
    if response.status in _GONE:
        raise SessionTerminatedError(f"status {response.status}: {text}", sid=sid, kind="environment")
    raise aiohttp.ClientResponseError(
        response.request_info, response.history, status=response.status, message=text, headers=response.headers
    )


def _is_starting(error: Exception) -> bool:
    """True when a proxy vouches that the environment was never reached."""
    headers = getattr(error, "headers", None) or {}
    return headers.get("X-Backend-State") == "starting"


def _did_not_run(error: Exception) -> bool:
    return (
        isinstance(error, aiohttp.ClientConnectorError) or getattr(error, "status", None) == 429 or _is_starting(error)  # noqa: PLR2004 - too many requests
    )


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, aiohttp.ClientResponseError) or error.status in _TRANSIENT


def _wait_s(error: Exception, tries: int) -> float:
    headers = getattr(error, "headers", None) or {}
    asked = str(headers.get("Retry-After", ""))
    wait_s = float(asked) if asked.isdigit() else 0.5 * 2 ** max(tries - 1, 0)
    return min(_LONGEST_WAIT_S, max(wait_s, _SHORTEST_WAIT_S))
