"""Decides what TRL sees of one rollout: `reset`, the tools, and the attributes of TRL's own OpenReward adapter.

Flow: TRL → `reset`, tools → `Play`, one per episode → `rewards` reads what it recorded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar

from multienv.router.play import Play
from multienv.router.presentation import Content
from multienv.router.routes import Route, RoutedSession, task_key
from multienv.router.toolbox import Toolbox
from multienv.sessions import session_loop
from multienv.types import Episode, JSONObject, TaskKey


class EnvironmentAdapter:
    """What TRL resets and calls for one rollout. A subclass per environment adds one method per tool.

    Only `reset` and the tools are public methods, for TRL shows every public method to the policy. The attributes are
    those of TRL's own OpenReward adapter, and `episode`.
    """

    _route: ClassVar[Route]
    _method_names: ClassVar[Mapping[str, str]] = {}
    environment: ClassVar[str]
    """Name of the environment this rollout belongs to."""

    def __init__(self) -> None:
        self._play = Play(self._route, "")
        self._ahead: tuple[TaskKey, Future[Content]] | None = None
        self._resetting: asyncio.Task[Any] | None = None
        self._pid = os.getpid()

    def reset(self, /, **row: Any) -> Content:
        """Close the previous episode's session, open one for the row's task, and return the prompt.

        A session that cannot be opened fails the episode, not the run: the rollout goes unscored.

        Args:
            **row: The row's columns, of which `task_index` is read, and the split in `task_id`.

        Returns:
            The environment's prompt, which TRL appends to the row's last message: a text, or content blocks where there
            are pictures and a policy that sees them.

        Raises:
            RoutingError: The row has no task index, or belongs to another environment.
            SessionLimitError: More sessions would be open than `limits.max_sessions` allows.
        """
        key = self._task_key(row)
        if self._pid != os.getpid():  # in a forked child, the session and its loop are the parent's
            self._pid, self._play, self._ahead, self._resetting = os.getpid(), Play(self._route, ""), None, None
        if self._ahead is None or self._ahead[0] != key:
            self._start_reset(row)
        assert self._ahead is not None  # noqa: S101 - set by the line above
        (_, future), self._ahead = self._ahead, None
        return session_loop().wait(future)

    def _start_reset(self, row: JSONObject) -> None:
        """Start the reset that `reset` will wait for, so that many can run at once."""
        key = self._task_key(row)
        self._ahead = key, session_loop().submit(self._reset(key, self._route.open(key)))

    async def _reset_here(self, row: JSONObject) -> Content:
        """Do what `reset` does, awaited on any event loop."""
        self._start_reset(row)
        assert self._ahead is not None  # noqa: S101 - set by the line above
        (_, future), self._ahead = self._ahead, None
        return await asyncio.wrap_future(future)

    async def _reset(self, key: TaskKey, opening: Coroutine[Any, Any, RoutedSession]) -> Content:
        try:
            await self._stop_resetting()
            self._resetting = asyncio.current_task()
            await self._close_session()
            return await self._open(key, opening)
        finally:
            opening.close()  # it may never have begun

    async def _stop_resetting(self) -> None:
        """Cancel a reset that is still running, for nobody waits for it any more; what it opened is closed."""
        resetting = self._resetting
        while resetting is not None and not resetting.done():
            resetting.cancel()  # asyncio drops a cancellation that comes together with a result, so more than once
            await asyncio.wait({resetting}, timeout=1)

    async def _open(self, key: TaskKey, opening: Coroutine[Any, Any, RoutedSession]) -> Content:
        self._play = Play(self._route, self._route.task_id(key))
        return await self._play.open(opening)

    def _opened_conversation(self) -> list[JSONObject]:
        """Wait for the reset that was started, and return its prompt as chat messages; empty for one user message."""
        if self._ahead is not None:
            _, future = self._ahead
            session_loop().wait(future)
        return self._play.conversation

    @property
    def episode(self) -> Episode:
        """The record of the episode so far."""
        return self._play.recorder.freeze()

    @property
    def reward(self) -> float | None:
        """The last step reward; None while nothing was scored, and for a failed episode."""
        return self._play.recorder.reward()

    @property
    def rewards(self) -> list[float | None]:
        """The step rewards, one entry per tool call."""
        return [step.reward for step in self._play.recorder.steps]

    @property
    def metadata(self) -> list[JSONObject | None]:
        """The metadata of the results, one entry per tool call."""
        return [step.metadata for step in self._play.recorder.steps]

    @property
    def finished(self) -> bool:
        """True once the environment declared the episode over."""
        return self._play.recorder.is_finished

    @property
    def last_output(self) -> str:
        """Text of the most recent tool result; empty before the first."""
        return self._play.recorder.steps[-1].text if self._play.recorder.steps else ""

    def __repr__(self) -> str:
        """Stay short: TRL logs this for rows that nobody scored."""
        episode = self.episode
        task = episode.task_id or f"{self._route.name} before reset"
        return f"<{task} {episode.status} steps={len(episode.steps)} reward={self.reward}>"

    def _task_key(self, row: JSONObject) -> TaskKey:
        return task_key(row, self._route.name, self._route.split)

    async def _call_shown(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Call a tool by the name it is shown under in its own schema; see `Play.call_shown`."""
        return await self._play.call_shown(name, arguments)

    async def _call_tool(self, tool: str, arguments: Mapping[str, Any]) -> Content:
        """Call a tool by its published name, for a method that stands for it; see `Play.call_tool`."""
        return await self._play.call_tool(tool, arguments, self._method_names)

    def _cut_off(self, reason: str) -> None:
        """Note that a limit of the trainer cut the completion short; see `EpisodeRecorder.cut_off`."""
        self._play.recorder.cut_off(reason)

    def _grade(self, message: str) -> Coroutine[Any, Any, None]:
        """Make the coroutine that grades the policy's last plain message; see `Play.grade`."""
        return self._play.grade(message)

    def _offered(self) -> Toolbox:
        """Return the tools of this rollout; see `Play.offered`."""
        return self._play.offered

    def _is_idle(self) -> bool:
        """Tell whether another turn of the policy could change nothing; see `EpisodeRecorder.wants_no_more`."""
        return self._play.recorder.wants_no_more

    def _close(self) -> None:
        """Close the episode's session, if it has one, and wait for it."""
        session_loop().run(self._close_session())

    def _release(self) -> None:
        """Close the episode's session in the background: nothing more is needed from it."""
        self._ahead = None
        session_loop().submit(self._let_go())

    async def _let_go(self) -> None:
        await self._stop_resetting()
        await self._close_session()

    async def _close_session(self) -> None:
        await self._play.close()


RESERVED_MEMBERS = frozenset(name for name in dir(EnvironmentAdapter)) | {"environment", "get_reward"}
"""Names no tool's method may have: the adapter's members, and what TRL takes for something else."""
