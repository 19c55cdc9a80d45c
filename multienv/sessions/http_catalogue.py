"""Decides how splits and tasks are read from a server: by range, else from the whole list, else one by one.

Flow: `HttpSource.catalogue` → `HttpCatalogue` → the server's stateless routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import aiohttp
from openreward.api._session.http import request_retryable
from openreward.api.environments.client import AsyncEnvironment

_AT_ONCE: Final = 16
_CANNOT_LIST: Final = frozenset({400, 404, 405})


class HttpCatalogue:
    """The stateless routes of one environment, under one session id."""

    def __init__(
        self, sdk: AsyncEnvironment, sid: str, translated: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._sdk = sdk
        self._sid = sid
        self._translated = translated

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for one of the environment's routes, and decode the answer."""
        sdk = self._sdk
        return await request_retryable(
            sdk.client,
            method,
            path if sdk.variant is None else f"/{sdk.variant}{path}",
            expect_json=True,
            token=sdk.api_key,
            json=dict(body) if body is not None else None,
            sid=self._sid,
            deployment=sdk.deployment_name,
        )

    async def list_splits(self) -> list[str]:
        """Return the names of the splits."""
        with self._translated("reading the catalogue"):
            answer = await self.request("GET", "/splits")
            return [split["name"] if isinstance(split, dict) else str(split) for split in answer]

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""
        with self._translated("reading the catalogue"):
            return int((await self.request("POST", "/num_tasks", {"split": split}))["num_tasks"])

    async def task_range(self, split: str, start: int, stop: int) -> list[Any]:
        """Return task specs by range, else from the whole list, else one by one, as the server can."""
        with self._translated("reading the catalogue"):
            return await self._task_range(split, start, stop)

    async def _task_range(self, split: str, start: int, stop: int) -> list[Any]:
        body = {"split": split, "start": start, "stop": stop}
        if (answer := await self._try("/task_range", body)) is None:
            if (answer := await self._try("/tasks", {"split": split})) is None:
                return await self._tasks_one_by_one(split, range(start, stop))
            return list(answer["tasks"])[start:stop]
        return list(answer["tasks"])

    async def _tasks_one_by_one(self, split: str, indices: range) -> list[Any]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def read(index: int) -> Any:
            async with gate:
                return (await self.request("POST", "/task", {"split": split, "index": index}))["task"]

        return list(await asyncio.gather(*map(read, indices)))

    async def _try(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            return await self.request("POST", path, body)
        except aiohttp.ClientResponseError as error:
            if error.status in _CANNOT_LIST:
                return None
            raise
