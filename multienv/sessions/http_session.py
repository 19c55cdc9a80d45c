"""Decides how one session on a server is driven, with the SDK's known defects kept out.

The SDK opens, keeps alive and closes; a tool call is posted by `calls.post_call`, because the SDK's own may run a tool
twice and loses white space.

Flow: `HttpSource.open` → `HttpSession` → the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import aiohttp
from openreward.api._session.http import request_retryable
from openreward.api.environments.client import AsyncSession

from multienv.sessions.blocks import parse_listing, parse_messages, parse_output, parse_prompt
from multienv.sessions.calls import post_call
from multienv.sessions.candidates import parse_scores
from multienv.types import JSONObject, Prompt, ToolListing, ToolOutput

_GONE: Final = frozenset({404, 410})


class SDKSession(AsyncSession):  # type: ignore[misc]  # the SDK is untyped here
    """The SDK's session, which deletes in silence, made to remember a deletion that failed."""

    delete_error: Exception | None = None

    async def _pre_delete(self) -> None:
        self.delete_error = None
        try:
            await super()._pre_delete()
        except Exception as error:
            self.delete_error = error
            raise


class HttpSession:
    """One session on a server."""

    def __init__(self, name: str, sdk: SDKSession, translated: Callable[[str], AbstractContextManager[None]]) -> None:
        self._name = name
        self._sdk = sdk
        self._translated = translated

    @property
    def id(self) -> str:
        """The session id, as the server logs it."""
        return str(self._sdk.sid)

    async def prompt(self) -> Prompt:
        """Return the prompt as one user message.

        Source:
            `GET /{environment}/prompt`.
        """
        with self._translated("fetching the prompt"):
            return parse_prompt(await self._get("/prompt"))

    async def messages(self) -> Prompt:
        """Return the prompt as a conversation.

        Source:
            `GET /{environment}/messages`.
        """
        with self._translated("fetching the prompt"):
            return parse_messages(await self._get("/messages"))

    async def _get(self, path: str) -> Any:
        """Ask for something of the session, until it is known to be dead."""
        sdk = self._sdk
        return await sdk._run_or_die(  # noqa: SLF001 - a contract test pins it
            request_retryable(
                sdk.client,
                "GET",
                sdk._env_path(path),  # noqa: SLF001 - see above
                expect_json=True,
                sid=sdk.sid,
                deployment=sdk.deployment,
                token=sdk.api_key,
            )
        )

    async def list_tools(self) -> ToolListing:
        """Return the tools of this session's task.

        Source:
            `GET /{environment}/task_tools`, or `/tools` where the server does not have it.
        """
        with self._translated("listing the task's tools"):
            try:
                return parse_listing(await self._get("/task_tools"), self._name)
            except aiohttp.ClientResponseError as error:
                if error.status != 404:  # noqa: PLR2004 - not found
                    raise
            return parse_listing(await self._get("/tools"), self._name)

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        """Call a tool, at most once.

        Raises:
            ToolRefused: The policy's own mistake; the session lives.

        Source:
            `POST /{environment}/call`.
        """
        with self._translated(f"calling tool {tool!r}"):
            return parse_output(await self._post("/call", {"name": tool, "input": arguments}))

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        """Return one score per candidate, in order.

        Source:
            `POST /{environment}/score_group`.
        """
        with self._translated("scoring a group"):
            return parse_scores(await self._post("/score_group", {"candidates": list(candidates)}), len(candidates))

    async def _post(self, path: str, body: JSONObject) -> JSONObject:
        """Have the environment do something that may take long, at most once."""
        sdk = self._sdk
        headers = {"X-Session-ID": self.id, "X-Deployment": sdk.env.deployment_name}
        if sdk.api_key:
            headers["X-API-Key"] = sdk.api_key
        return await post_call(sdk.client, sdk._env_path(path), headers, body)  # noqa: SLF001 - a contract test pins it

    async def close(self) -> None:
        """Tear the session down and stop its pings.

        Raises:
            ServerError: The server did not carry it out; it may be asked again.

        Source:
            `POST /delete`, `POST /delete_session`.
        """
        with self._translated("closing the session"):
            await self._sdk.__aexit__()
            error = self._sdk.delete_error
            if error is not None and getattr(error, "status", None) not in _GONE:
                raise error
