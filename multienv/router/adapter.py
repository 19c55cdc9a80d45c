"""Decides how one rollout is driven: what `reset` opens, what a tool call does, what is left when something breaks.

Flow: TRL → `reset`, tools → `Route.open` and the session → `EpisodeRecorder` → `rewards`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar

from multienv.errors import CircuitOpenError, OrderError, RoutingError, ServerError
from multienv.router.episode import EpisodeRecorder
from multienv.router.routes import Route, RoutedSession
from multienv.sessions import session_loop
from multienv.types import Column, Episode, JSONObject, Step, ToolOutput, ToolRefused

logger = logging.getLogger(__name__)

FAILED_PROMPT = "The environment could not be started, so there is no task. Answer with one short sentence."
REFUSED_PROMPT = "The environment is not available at present, so there is no task. Answer with one short sentence."
FAILED_OUTPUT = "Error: the environment failed and this episode has ended. Do not call any more tools."
FINISHED_OUTPUT = "The episode has finished; no further tool calls are accepted."


class EnvironmentAdapter:
    """What TRL resets and calls for one rollout. A subclass per environment adds one method per tool.

    Only `reset` and the tools are public methods, for TRL shows every public method to the policy. The attributes are
    those of TRL's own OpenReward adapter, and `episode`.
    """

    _route: ClassVar[Route]
    _warned: ClassVar[set[str]] = set()
    environment: ClassVar[str]
    """Name of the environment this rollout belongs to."""

    def __init__(self) -> None:
        self._session: RoutedSession | None = None
        self._recorder = EpisodeRecorder(self._route.name, "")
        self._ahead: tuple[int, Future[str]] | None = None
        self._resetting: asyncio.Task[Any] | None = None
        self._pid = os.getpid()

    def reset(self, /, **row: Any) -> str:
        """Close the previous episode's session, open one for the row's task, and return the prompt.

        A session that cannot be opened fails the episode, not the run: the rollout goes unscored.

        Args:
            **row: The row's columns, of which `task_index` is read.

        Returns:
            The environment's prompt, which TRL appends to the row's last message.

        Raises:
            RoutingError: The row has no task index, or belongs to another environment.
            SessionLimitError: More sessions would be open than `limits.max_sessions` allows.
        """
        index = self._task_index(row)
        if self._pid != os.getpid():  # in a forked child, the session and its loop are the parent's
            self._pid, self._session, self._ahead, self._resetting = os.getpid(), None, None, None
        if self._ahead is None or self._ahead[0] != index:
            self._start_reset(row)
        assert self._ahead is not None  # noqa: S101 - set by the line above
        (_, future), self._ahead = self._ahead, None
        return session_loop().wait(future)

    def _start_reset(self, row: JSONObject) -> None:
        """Start the reset that `reset` will wait for, so that many can run at once."""
        index = self._task_index(row)
        self._ahead = index, session_loop().submit(self._reset(index, self._route.open(index)))

    async def _reset(self, index: int, opening: Coroutine[Any, Any, RoutedSession]) -> str:
        try:
            await self._stop_resetting()
            self._resetting = asyncio.current_task()
            await self._close_session()
            return await self._open(index, opening)
        finally:
            opening.close()  # it may never have begun

    async def _stop_resetting(self) -> None:
        """Cancel a reset that is still running, for nobody waits for it any more; what it opened is closed."""
        resetting = self._resetting
        while resetting is not None and not resetting.done():
            resetting.cancel()  # asyncio drops a cancellation that comes together with a result, so more than once
            await asyncio.wait({resetting}, timeout=1)

    async def _open(self, index: int, opening: Coroutine[Any, Any, RoutedSession]) -> str:
        self._recorder = EpisodeRecorder(self._route.name, self._route.task_id(index))
        started = time.monotonic()
        try:
            self._session = await opening
        except CircuitOpenError as error:
            self._recorder.refuse(str(error))
            return REFUSED_PROMPT
        except ServerError as error:
            self._fail(error)
            return FAILED_PROMPT
        self._recorder.session_id = self._session.id
        self._recorder.open_s = time.monotonic() - started
        return self._session.prompt

    @property
    def episode(self) -> Episode:
        """The record of the episode so far."""
        return self._recorder.freeze()

    @property
    def reward(self) -> float | None:
        """The last step reward; None while nothing was scored, and for a failed episode."""
        return self._recorder.reward()

    @property
    def rewards(self) -> list[float | None]:
        """The step rewards, one entry per tool call."""
        return [step.reward for step in self._recorder.steps]

    @property
    def metadata(self) -> list[JSONObject | None]:
        """The metadata of the results, one entry per tool call."""
        return [step.metadata for step in self._recorder.steps]

    @property
    def finished(self) -> bool:
        """True once the environment declared the episode over."""
        return self._recorder.is_finished

    @property
    def last_output(self) -> str:
        """Text of the most recent tool result; empty before the first."""
        return self._recorder.steps[-1].text if self._recorder.steps else ""

    def __repr__(self) -> str:
        """Stay short: TRL logs this for rows that nobody scored."""
        episode = self.episode
        task = episode.task_id or f"{self._route.name} before reset"
        return f"<{task} {episode.status} steps={len(episode.steps)} reward={self.reward}>"

    def _task_index(self, row: JSONObject) -> int:
        named = row.get(Column.ENVIRONMENT, self._route.name)
        if named != self._route.name:
            raise RoutingError(
                f"a row of environment {named!r} reached the adapter of {self._route.name!r}; let TRL route, or the "
                "meta environment",
                environment=self._route.name,
            )
        index: Any = row.get(Column.TASK_INDEX)
        if isinstance(index, bool) or not hasattr(index, "__index__") or int(index) < 0:
            raise RoutingError(
                f"a row of environment {self._route.name!r} has task_index={index!r}; accepted: an int from 0. Train "
                "on the spec's own train_dataset, or give your rows its columns",
                environment=self._route.name,
            )
        return int(index)

    async def _call_tool(self, tool: str, arguments: JSONObject) -> str:
        """Call a published tool, record the step, return what the policy is shown. Runs on the session loop."""
        if self._recorder.is_over:
            return FINISHED_OUTPUT if self._recorder.is_finished else FAILED_OUTPUT
        if self._session is None:
            raise OrderError(f"tool {tool!r} was called before reset()", environment=self._route.name)
        started = time.monotonic()
        failure: ServerError | None = None
        try:
            output, refused = await self._attempt(self._session, tool, arguments)
        except ServerError as error:
            output, refused, failure = ToolOutput(FAILED_OUTPUT), False, error
        self._recorder.record(
            Step(
                tool=tool,
                arguments=arguments,
                text=output.text,
                reward=output.reward,
                metadata=output.metadata,
                finished=output.finished,
                refused=refused,
                duration_s=time.monotonic() - started,
            )
        )
        if failure is not None:
            self._fail(failure)
        elif output.finished:
            self._session.start_closing()
        return output.text

    async def _attempt(self, session: RoutedSession, tool: str, arguments: JSONObject) -> tuple[ToolOutput, bool]:
        """Call; a refusal is the policy's own mistake and becomes a text for it."""
        try:
            json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            return ToolOutput(f"Error: the arguments are not valid JSON: {error}"), True
        try:
            return await session.call(tool, arguments), False
        except ToolRefused as refusal:
            return ToolOutput(f"Error: {refusal.detail}"), True

    def _fail(self, error: ServerError) -> None:
        self._recorder.fail(str(error))
        logger.warning("%s: episode failed: %s", self._recorder.task_id, error)
        if self._route.name not in self._warned:
            self._warned.add(self._route.name)
            warnings.warn(
                f"an episode failed and goes unscored (further ones of this environment are logged only): {error}",
                RuntimeWarning,
                stacklevel=3,
            )

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
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


RESERVED_MEMBERS = frozenset(name for name in dir(EnvironmentAdapter)) | {"environment", "get_reward"}
"""Names no tool's method may have: the adapter's members, and what TRL takes for something else."""
