"""Decides what an AsyncGRPO rollout process gets: factories that travel there, whose adapters own their reward.

AsyncGRPO plays rollouts in a process of its own. A factory carries the mixture's declaration and the tools as they were
published; connections and sessions are made where it is called.

Flow: `async_kwargs` makes the factories → TRL pickles them → in its rollout process they make adapters.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from multienv.errors import OrderError, ServerError
from multienv.meta import MultiEnvSpec
from multienv.rewards import episode_reward
from multienv.router import EnvironmentAdapter, make_factory
from multienv.router.presentation import Content
from multienv.router.routes import RoutedSession
from multienv.sessions import EnvironmentClient, LiveSession
from multienv.sessions.ledger import termination
from multienv.specs import RewardSpec
from multienv.types import JSONObject, TaskKey, ToolListing


class AsyncAdapter(EnvironmentAdapter):
    """An adapter whose `reset` can leave opening the session to the rollout that needs it.

    Under TRL's own loop it resets like any other adapter. `ConcurrentRolloutLoop` has it deferred: `reset` then only
    notes the row, and itself in the list it was given, and the rollout's own task opens the session.
    """

    def __init__(self) -> None:
        super().__init__()
        self._deferred: list[AsyncAdapter] | None = None
        self._row: JSONObject | None = None
        self._last_session: RoutedSession | None = None

    def reset(self, /, **row: Any) -> Content:
        """Open a session for the row's task and return the prompt, or note the row if opening is deferred.

        Args:
            **row: The row's columns, of which `task_index` is read, and the split in `task_id`.

        Returns:
            The environment's prompt; empty if opening is deferred.

        Raises:
            RoutingError: The row has no task index, or belongs to another environment.
            SessionLimitError: More sessions would be open than `limits.max_sessions` allows.
        """
        if self._deferred is None:
            return super().reset(**row)
        self._task_key(row)
        self._row = row
        self._deferred[:] = [self]
        return ""

    async def _open_deferred(self) -> Content:
        """Open the session for the row that `reset` noted, and return the prompt; awaited on any loop."""
        row, self._row = self._row, None
        if row is None:
            raise OrderError("a rollout began before reset()", environment=self.environment)
        return await self._reset_here(row)

    async def _close_session(self) -> None:
        if self._play.session is not None:
            self._last_session = self._play.session
        await super()._close_session()

    async def _end(self) -> None:
        """Close the session if there is one, and wait for one that is being opened or closed. On the session loop."""
        await self._stop_resetting()
        await self._close_session()
        if self._last_session is not None:
            await self._last_session.close()


class SelfScoringAdapter(AsyncAdapter):
    """An adapter that owns its reward: AsyncGRPO's only way to it."""

    _rule: ClassVar[RewardSpec]

    async def get_reward(self) -> float | None:
        """Return the episode's reward and let its session go: nothing more is needed from it.

        Returns:
            What the episode is worth by the environment's rule; None for unscored, and for a failed episode.

        Raises:
            OrderError: The session was never opened; the reward would be of no episode.
            RewardFunctionError: A function of the rule broke its contract.
        """
        if self._row is not None:
            raise OrderError(
                f"a rollout of environment {self.environment!r} was played without its session: TRL's rollout loop is "
                "not the one `make_concurrent` was written for; train without `make_concurrent`",
                environment=self.environment,
            )
        self._release()
        return episode_reward(self.episode, self._rule)


class AsyncFactory:
    """The factory of one environment's adapters. Survives pickling; makes its connections in the process it is in.

    Args:
        spec: The mixture.
        name: The environment.
        listing: Its tools as published, so that the other process need not ask for them.
    """

    def __init__(self, spec: MultiEnvSpec, name: str, listing: ToolListing) -> None:
        self.spec = spec
        self.name = name
        self.listing = listing

    def __call__(self) -> AsyncAdapter:
        """Make an adapter; the first call in a process makes its class. No server is asked for anything."""
        termination.install()  # a rollout process that does not stop in time is ended by SIGTERM
        return self._adapter_class()

    def __getstate__(self) -> dict[str, Any]:
        """Keep what can travel: a class made at run time cannot."""
        return {name: value for name, value in self.__dict__.items() if name != "_adapter_class"}

    @property
    def max_sessions(self) -> int | None:
        """Most sessions of this environment open at once; None for no limit."""
        return self._client.opener.max_sessions

    @property
    def max_mixture_sessions(self) -> int | None:
        """Most sessions of the whole mixture open at once; None for no limit."""
        return self.spec.live.ledger.max_sessions

    @property
    def _client(self) -> EnvironmentClient:
        return self.spec.live.clients[self.name]

    @cached_property
    def _adapter_class(self) -> type[AsyncAdapter]:
        declared = self._client.spec
        self._client.listings.setdefault(None, self.listing)
        route = self.spec.route(self.name, self.listing)
        made = make_factory(replace(route, open=_FirstContact(self._client).open))
        base = SelfScoringAdapter if declared.use_environment_reward else AsyncAdapter
        return type(self.name, (base, made), {"__doc__": made.__doc__, "_rule": declared.reward})


class _FirstContact:
    """Opens sessions of an environment that this process may not have reached yet.

    Connecting blocks and can fail, and both must cost no more than the rollouts of this environment: it is done by the
    opening itself, one at a time, and the circuit breaker hears of it. Runs on the session loop.
    """

    def __init__(self, client: EnvironmentClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._is_connected = False

    async def open(self, key: TaskKey) -> LiveSession:
        """Open a session for a task; see `EnvironmentClient.open`."""
        async with self._lock:
            if not self._is_connected:
                await self._connect()
        return await self._client.open(key)

    async def _connect(self) -> None:
        breaker = self._client.opener.breaker
        breaker.check()
        try:
            await asyncio.to_thread(self._client.connect)
        except ServerError:
            breaker.record(is_success=False)
            raise
        breaker.record(is_success=True)
        self._is_connected = True
