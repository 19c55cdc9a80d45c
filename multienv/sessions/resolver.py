"""Decides how host names are resolved, so that sessions can still be closed while the interpreter exits.

Flow: the HTTP client of `openreward.HttpSource` resolves through `ExitSafeResolver`.
"""

from __future__ import annotations

import socket
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver


class ExitSafeResolver(AbstractResolver):
    """Resolve on the loop's executor, and without it once the interpreter has shut the executors down."""

    def __init__(self) -> None:
        self._threaded = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a host name.

        Args:
            host: The name.
            port: The port to put into the results.
            family: Address family, `AF_UNSPEC` for any.

        Raises:
            OSError: The name does not resolve.
        """
        try:
            return await self._threaded.resolve(host, port, family)
        except RuntimeError:  # "cannot schedule new futures after interpreter shutdown": nobody is left to be blocked
            found: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
            return [
                ResolveResult(
                    hostname=host,
                    host=address[0],
                    port=address[1],
                    family=kind,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST,
                )
                for kind, _, proto, _, address in found
            ]

    async def close(self) -> None:
        """Release nothing: there is nothing to release."""
