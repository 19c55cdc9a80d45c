"""Decides whether a server can be reached, before anything long is asked of it.

Flow: `openreward.HttpSource.connect` → `probe` → the environments the server lists.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Any

import httpx

from multienv.errors import AuthenticationError, ProtocolError, ServerUnreachableError
from multienv.sessions.keys import masked

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
"""A host that does not accept a connection in this time is down."""
READ_TIMEOUT_S = 30.0
"""A host that accepted but has not answered in this time is asked again."""
_RETRY_S = 1.0
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What OpenSSL says about an answer in plain http."""
_NOT_READY = frozenset({429, 502, 503, 504})


async def probe(
    url: str, *, environment: str, api_key: str | None, patience_s: float, secrets: Collection[str] = ()
) -> list[str] | None:
    """Ask a server for its environments, waiting for one that is still starting.

    Args:
        url: Base URL.
        environment: Name of the environment in the mixture, for messages.
        api_key: The key of this host, or None.
        patience_s: How long a server that accepts connections but is not ready is waited for.
        secrets: What must not be shown, even if the server's answer repeats it.

    Returns:
        The listed environments; None when the server has no such route, which is no failure.

    Raises:
        ServerUnreachableError: Nobody accepts a connection, or the server did not become ready in time.
        AuthenticationError: The server refuses the key.
        ProtocolError: The answer is no list of names.

    Source:
        `GET /list_environments` of the Open Reward Standard.
    """
    headers = {"X-API-Key": api_key} if api_key else {}
    timeout = httpx.Timeout(min(READ_TIMEOUT_S, patience_s), connect=CONNECT_TIMEOUT_S)
    deadline = time.monotonic() + patience_s
    has_told = False
    # Without TLS there is nothing to verify, and building a TLS context takes longer than the request.
    verify = url.startswith("https:")
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, verify=verify) as client:
        while True:
            try:
                # A server that drips its answer byte by byte never exceeds the time limit of a single read.
                left_s = max(deadline - time.monotonic(), CONNECT_TIMEOUT_S)
                response = await asyncio.wait_for(client.get("/list_environments"), left_s)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if any(mark in str(error) for mark in _NO_TLS):
                    advice = f"the server speaks http; write http://{url.removeprefix('https://')}"
                else:
                    advice = "start the server, or correct the target"
                raise ServerUnreachableError(
                    f"environment {environment!r}: nobody accepts a connection at {url} ({_words(error)}); {advice}",
                    environment=environment,
                ) from error
            except (httpx.HTTPError, TimeoutError) as error:
                state = _words(error)
            else:
                if response.status_code not in _NOT_READY:
                    return _listed(response, url, environment, secrets)
                state = f"status {response.status_code}"
            if time.monotonic() >= deadline:
                raise ServerUnreachableError(
                    f"environment {environment!r}: {url} accepts connections but was not ready within {patience_s:g} s "
                    f"({state}); look at the server's log, or raise limits.connect_timeout_s",
                    environment=environment,
                )
            if not has_told:
                logger.warning("environment %r: waiting for %s (%s)", environment, url, state)
                has_told = True
            await asyncio.sleep(_RETRY_S)


def _listed(response: httpx.Response, url: str, environment: str, secrets: Collection[str]) -> list[str] | None:
    if response.status_code in (401, 403):
        raise AuthenticationError(
            f"environment {environment!r}: {url} refuses access with status {response.status_code}; "
            "give the key of this server as api_key",
            environment=environment,
        )
    if response.is_redirect or response.status_code in (404, 405):
        return None
    names: Any = None
    try:
        response.raise_for_status()
        names = response.json()
    except (httpx.HTTPStatusError, ValueError):
        pass
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ProtocolError(
            f"environment {environment!r}: {url}/list_environments answered {response.status_code} with "
            f"{masked(response.text, secrets)[:80]!r}; expected a JSON list of names: is this an ORS server?",
            environment=environment,
        )
    return names


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
