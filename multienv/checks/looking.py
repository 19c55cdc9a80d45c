"""Decides what is asked of each environment before anything is judged: tools, tasks, secrets, and a few sessions.

Flow: `run.run_checks` → `look_at` → one `Look` per ORS environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from multienv.checks.looks import Look, Visit
from multienv.errors import SpecError
from multienv.sessions import EnvironmentClient, Outline, session_loop
from multienv.types import ToolListing

T = TypeVar("T")
_NO_LIMIT: Final = 1_000_000


def look_at(clients: Mapping[str, EnvironmentClient], num_visits: int = 1, max_open: int | None = None) -> list[Look]:
    """Look at every environment, all at once. What fails is in the look; nothing is raised.

    Each is asked for its tools, its splits, its chosen tasks and its secrets, and a session is opened for the first of
    the tasks, or for several, and closed. There is no session where the server holds no such task.

    Args:
        clients: The environments.
        num_visits: Tasks of each that a session is opened for, evenly over those that are chosen.
        max_open: Most sessions of all of them at once; None for no limit.
    """
    starts = {name: _prepared(client) for name, client in clients.items()}
    return session_loop().run(_all(clients, starts, num_visits, max_open)) if clients else []


def _prepared(client: EnvironmentClient) -> Exception | None:
    """Do what must be done on the caller's thread: the SDK is imported, SIGTERM handled. Return why it cannot be."""
    try:
        client.open(client.spec.first_choice.first).close()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return error
    return None


async def _all(
    clients: Mapping[str, EnvironmentClient],
    failures: Mapping[str, Exception | None],
    num_visits: int,
    max_open: int | None,
) -> list[Look]:
    gate = asyncio.Semaphore(max_open or _NO_LIMIT)
    return list(
        await asyncio.gather(
            *(_Looking(client, gate, num_visits).look(failures[name]) for name, client in clients.items())
        )
    )


class _Looking:
    """Looks at one environment; its coroutines run on the session loop."""

    def __init__(self, client: EnvironmentClient, gate: asyncio.Semaphore, num_visits: int) -> None:
        self._client = client
        self._num_visits = num_visits
        # One more than the limits allow is an error in a batch, whose sessions wait for each other. These do not.
        self._gates = (asyncio.Semaphore(client.opener.max_sessions or _NO_LIMIT), gate)

    async def look(self, failure: Exception | None) -> Look:
        client = self._client
        look = Look(client.name, client.spec, client.takes_messages)
        shared = failure if failure is not None else await _attempt(client.fetch_shared_tools())
        if isinstance(shared, Exception):
            return replace(look, failure=shared)
        look = replace(look, listings={**client.listings, None: shared})
        secrets, splits, outline = await asyncio.gather(
            _attempt(client.fetch_required_secrets()),
            _attempt(client.fetch_splits()),
            _attempt(client.fetch_outline(client.spec.first_choice)),
        )
        if isinstance(secrets, Exception):
            look = replace(look, secrets_failure=secrets)
        else:
            look = replace(look, required_secrets=tuple(secrets))
        if not isinstance(splits, Exception):
            look = replace(look, splits=splits)
        if isinstance(outline, Exception):
            look = replace(look, tasks_failure=outline)
        else:
            look = replace(look, outline=outline)
        if isinstance(outline, SpecError):
            return look
        return await self._with_visits(await self._with_held_out(look), shared)

    async def _with_held_out(self, look: Look) -> Look:
        """Ask for the tasks that it is evaluated on, where it trains on others."""
        if look.spec.training is None or look.spec.evaluation is None:
            return look
        held_out = await _attempt(self._client.fetch_outline(look.spec.evaluation))
        if isinstance(held_out, Exception):
            return replace(look, held_out_failure=held_out)
        return replace(look, held_out=held_out)

    async def _with_visits(self, look: Look, shared: ToolListing) -> Look:
        indices = spread(look.outline, self._num_visits) or [look.spec.first_choice.first]
        visits = await asyncio.gather(*(self._visit(index, shared) for index in indices))
        listings = dict(look.listings)
        for visit in visits:
            if visit.listing is not None and visit.listing is not shared:
                listings[visit.index] = visit.listing
        return replace(look, visits=tuple(visits), listings=listings)

    async def _visit(self, index: int, shared: ToolListing) -> Visit:
        """Open the session of a task when there is room for it, read what the task says, and close it."""
        async with AsyncExitStack() as held:
            for gate in self._gates:
                await held.enter_async_context(gate)
            try:
                live = await self._client.open(index)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                return Visit(index, failure=error)
            listing = live.listing or shared
            try:
                if listing.has_messages:
                    await live.fetch_prompt(as_messages=True)
                return Visit(index, live.prompt, listing, live.open_s, live.num_tries)
            except Exception as error:  # noqa: BLE001 - see above
                return Visit(index, failure=error)
            finally:
                await live.close()


def spread(outline: Outline | None, num: int) -> Sequence[int]:
    """Return so many of the chosen tasks, evenly over all of them, the first one first; fewer where there are fewer."""
    chosen = [] if outline is None else list(dict.fromkeys(outline.chosen))
    most = min(num, len(chosen))
    return [chosen[place * (len(chosen) - 1) // max(1, most - 1)] for place in range(most)]


async def _attempt(coroutine: Coroutine[Any, Any, T]) -> T | Exception:
    try:
        return await coroutine
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return error
