"""Decides how one host is spoken to: by a client of its own, that follows no redirect elsewhere and survives a fork.

Flow: `openreward.HttpSource.connect` → `make_client` → every request to that host.
"""

from __future__ import annotations

import os
import threading
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from openreward.api._session.http import set_retry_policy
from openreward.api._session.ping import ping_thread

from multienv.errors import ServerError
from multienv.sessions.resolver import ExitSafeResolver

_KEEPALIVE_S: Final = 4.0  # below the 5 s after which a default uvicorn closes idle connections: no race with it


def make_client(url: str) -> aiohttp.ClientSession:
    """Make the HTTP client of one host: unlimited connections, and no redirect that leaves the host.

    The proxy is looked up here, once: left to aiohttp, it is looked up for each request on an executor, which is gone
    by the time sessions are closed at exit.
    """
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_stay_on_host)
    client = aiohttp.ClientSession(
        base_url=url,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, resolver=ExitSafeResolver()),
        timeout=aiohttp.ClientTimeout(total=None),
        proxy=_proxy(url),
        trace_configs=[trace],
    )
    set_retry_policy(client, "env-server")
    return client


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment variables name for a URL, as aiohttp and httpx read them."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _stay_on_host(
    _client: aiohttp.ClientSession, _context: object, params: aiohttp.TraceRequestRedirectParams
) -> None:
    """Refuse to follow a redirect to another host: the key in the headers belongs to this one."""
    headers = params.response.headers
    parts = urlsplit(headers.get("Location") or headers.get("URI") or "")  # the two that aiohttp follows, in its order
    if parts.netloc and (parts.scheme, parts.netloc) != (params.url.scheme, params.url.authority):
        raise ServerError(f"{params.url.origin()} redirects to {parts.netloc}; a key is not sent to another host")


def _renew_ping_thread() -> None:
    """Let a forked child start the SDK's ping thread anew; the parent's is not there."""
    ping_thread._loop = ping_thread._client = None  # noqa: SLF001 - a contract test pins them
    ping_thread._lock = threading.Lock()  # noqa: SLF001 - see above


os.register_at_fork(after_in_child=_renew_ping_thread)
