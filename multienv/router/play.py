"""Decides how one episode is played: what opening it gives, what a tool call does, what is left when something breaks.

Flow: `EnvironmentAdapter.reset` and its tools → `Play` → `Route.open` and the session → `EpisodeRecorder`.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from multienv.errors import CircuitOpenError, OrderError, ServerError
from multienv.router.episode import EpisodeRecorder
from multienv.router.presentation import Content, shortened, text_of
from multienv.router.routes import Route, RoutedSession
from multienv.router.toolbox import ShownTool, Toolbox
from multienv.sessions import within
from multienv.types import JSONObject, Message, Step, ToolCallError, ToolOutput, ToolRefused

logger = logging.getLogger(__name__)

FAILED_PROMPT = "The environment could not be started, so there is no task. Answer with one short sentence."
REFUSED_PROMPT = "The environment is not available at present, so there is no task. Answer with one short sentence."
FAILED_OUTPUT = "The environment failed and this episode has ended. Do not call any more tools."
FINISHED_OUTPUT = "The episode has finished; no further tool calls are accepted."
TRUNCATED_OUTPUT = "This episode has ended: {reason}. Do not call any more tools."


class Play:
    """One episode, from its opening to its end. Its coroutines run on the session loop.

    Args:
        route: The environment.
        task_id: `environment/split/index`; empty before the first `reset`.

    Attributes:
        recorder: What has happened so far.
        session: The open session; None before it is open, and after `close`.
        conversation: The prompt as chat messages, unless it is one user message.
    """

    def __init__(self, route: Route, task_id: str) -> None:
        self._route = route
        self._tools: Toolbox | None = None
        self._is_graded = False
        self._max_tool_calls = route.max_tool_calls
        self.recorder = EpisodeRecorder(route.name, task_id)
        self.session: RoutedSession | None = None
        self.conversation: list[JSONObject] = []

    async def open(self, opening: Coroutine[Any, Any, RoutedSession]) -> Content:
        """Wait for the session, and return what the policy is shown first. What breaks fails the episode only."""
        route = self._route
        started, self.recorder.started_at = time.monotonic(), time.time()
        try:
            session = await opening
        except CircuitOpenError as error:
            self.recorder.refuse(str(error), type(error).__name__)
            return REFUSED_PROMPT
        except ServerError as error:
            self.recorder.num_retries = error.num_tries - 1
            self._fail(error)
            return FAILED_PROMPT
        self.session = session
        self.recorder.session_id = session.id
        self.recorder.num_retries = session.num_tries - 1
        self.recorder.opened_at = time.monotonic()
        self.recorder.open_s = self.recorder.opened_at - started
        try:
            return self._shown_prompt(session)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's prompt and tools make of it
            self._fail(ServerError(f"what environment {route.name!r} sent cannot be shown: {error!r}"))
            session.start_closing()
            return FAILED_PROMPT

    def _shown_prompt(self, session: RoutedSession) -> Content:
        """Take the tools and the conversation over, and return the content of the prompt's last message."""
        route = self._route
        self._tools = route.presentation.toolbox((session.listing or route.listing).tools)
        last = session.prompt[-1]
        if session.prompt != (Message("user", last.parts),):
            conversation = [route.presentation.message(route.name, message) for message in session.prompt]
            route.presentation.check_conversation(conversation, self._tools.functions)
            self.conversation = conversation
        content: Content = route.presentation.message(route.name, last)["content"]
        return content

    async def close(self) -> None:
        """Close the session, if there is one, and wait for it."""
        if self.session is not None:
            session, self.session = self.session, None
            await session.close()

    @property
    def offered(self) -> Toolbox:
        """The tools of this rollout: those of its task, or the environment's where there is no session."""
        return self._tools or self._route.presentation.toolbox(self._route.listing.tools)

    async def call_shown(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Call a tool by the name it is shown under in its own schema; see `call`."""
        offered = self.offered.shown
        return await self.call(offered.get(name), name, arguments, offered)

    async def call_tool(self, tool: str, arguments: Mapping[str, Any], method_names: Mapping[str, str]) -> Content:
        """Call a tool by its published name, for a method that stands for it; see `call`.

        Args:
            tool: Published name.
            arguments: By published name.
            method_names: From the published name of each tool to the name its method has.
        """
        offered = self.offered.tools
        names = (method_names.get(name, name) for name in offered)
        return await self.call(offered.get(tool), method_names.get(tool, tool), arguments, names)

    async def call(
        self, tool: ShownTool | None, name: str, arguments: Mapping[str, Any], offered: Iterable[str]
    ) -> Content:
        """Call a tool, record the step, and return what the policy is shown. Runs on the session loop.

        Raises:
            ToolCallError: The call came to nothing; the text is for the policy.
            OrderError: There was no `reset`.
        """
        recorder = self.recorder
        if recorder.is_over:
            recorder.num_late_calls += 1
            raise ToolCallError(self._over_text())
        if self.session is None:
            raise OrderError(f"tool {name!r} was called before reset()", environment=self._route.name)
        if reason := self._reached_limit():
            self._truncate(reason)
            raise ToolCallError(self._over_text())
        restored = dict(arguments) if tool is None else tool.restored(arguments)
        if tool is None:
            listed = ", ".join(offered) or "none"
            raise self._refuse(name, restored, f"{name!r} is not a tool of this task; its tools are: {listed}")
        if complaint := _complaint(tool, restored):
            raise self._refuse(tool.spec.name, restored, complaint)
        return await self._run(self.session, tool.spec.name, restored)

    def refuse(self, name: str, detail: str) -> ToolCallError:
        """Record a call that cannot even be read, as the policy's own mistake; return the error that tells it.

        Args:
            name: The tool it named.
            detail: What is wrong with the call.
        """
        if self.recorder.is_over:
            self.recorder.num_late_calls += 1
            return ToolCallError(self._over_text())
        return self._refuse(name, {}, detail)

    async def _run(
        self, session: RoutedSession, tool: str, arguments: JSONObject, *, is_terminal: bool = False
    ) -> Content:
        """Run a published tool in the session, within what is left of the episode's time."""
        started = time.monotonic()
        try:
            output = await within(self._time_left(), session.call(tool, arguments))
        except ToolRefused as refusal:
            took_s = time.monotonic() - started
            raise self._refuse(tool, arguments, refusal.detail, took_s, is_terminal=is_terminal) from None
        except TimeoutError:
            self._truncate(self._time_text())
            raise self._record_lost(tool, arguments, started, is_terminal=is_terminal) from None
        except ServerError as error:
            lost = self._record_lost(tool, arguments, started, is_terminal=is_terminal)
            self._fail(error)
            raise lost from None
        shown = self._shown(output)
        self.recorder.record(
            Step(
                tool=tool,
                arguments=arguments,
                text=text_of(shown),
                reward=output.reward,
                metadata=output.metadata,
                finished=output.finished or is_terminal,
                duration_s=time.monotonic() - started,
                terminal=is_terminal,
            )
        )
        if (output.finished or is_terminal) and not self._route.scores_groups:
            session.start_closing()
        return shown

    async def grade(self, message: str) -> None:
        """Have the terminal tool, if there is one, grade the policy's last plain message; that ends the episode.

        It is asked once only, also where it refuses the message: the policy has no turn in which to mend it.

        A message that the trainer cut off is not the policy's last word, and is not graded.

        Source:
            The SDK's `AsyncSession.call_terminal_tool`.
        """
        session = self.session
        if self._is_graded or self.recorder.is_over or self.recorder.cutoff is not None or session is None:
            return
        self._is_graded = True
        terminal = (session.listing or self._route.listing).terminal_tool
        left_s = self._time_left()
        if terminal is not None and left_s is not None and left_s <= 0:
            self._truncate(self._time_text())
        elif terminal is not None:
            arguments = {} if terminal.argument is None else {terminal.argument: message}
            with suppress(ToolCallError):  # it is in the record; there is no next turn to show it in
                await self._run(session, terminal.name, arguments, is_terminal=True)

    def _shown(self, output: ToolOutput) -> Content:
        route = self._route
        return route.presentation.content(
            route.name, output.parts or (output.text,), route.limits.max_observation_chars
        )

    def _reached_limit(self) -> str | None:
        """Return which of the episode's limits is reached, in words; None while there is room."""
        if self._max_tool_calls is not None and len(self.recorder.steps) >= self._max_tool_calls:
            return f"its limit of {self._max_tool_calls} tool calls is reached"
        left_s = self._time_left()
        return None if left_s is None or left_s > 0 else self._time_text()

    def _time_left(self) -> float | None:
        """Return the seconds the episode may still take; None for as long as it likes."""
        limit_s = self._route.limits.episode_timeout_s
        return None if limit_s is None else self.recorder.opened_at + limit_s - time.monotonic()

    def _time_text(self) -> str:
        return f"its time limit of {self._route.limits.episode_timeout_s:g} s has passed"

    def _truncate(self, reason: str) -> None:
        self.recorder.truncate(reason)
        if self.session is not None:
            self.session.start_closing()

    def _over_text(self) -> str:
        recorder = self.recorder
        if recorder.truncation is not None:
            return TRUNCATED_OUTPUT.format(reason=recorder.truncation)
        return FINISHED_OUTPUT if recorder.is_finished else FAILED_OUTPUT

    def _refuse(
        self, tool: str, arguments: JSONObject, detail: str, duration_s: float = 0.0, *, is_terminal: bool = False
    ) -> ToolCallError:
        """Record a call that is the policy's own mistake, and return the error that tells it."""
        text = shortened(self._route.presentation.spelling.text(detail), self._route.limits.max_observation_chars)
        step = Step(tool, arguments, text, refused=True, duration_s=duration_s, terminal=is_terminal)
        self.recorder.record(step)
        return ToolCallError(text)

    def _record_lost(self, tool: str, arguments: JSONObject, started: float, *, is_terminal: bool) -> ToolCallError:
        """Record a call of which no result came, and return the error that tells the policy."""
        text = self._over_text()
        took_s = time.monotonic() - started
        self.recorder.record_lost(Step(tool, arguments, text, duration_s=took_s, lost=True, terminal=is_terminal))
        return ToolCallError(text)

    def _fail(self, error: ServerError) -> None:
        self.recorder.fail(str(error), type(error).__name__)
        logger.warning("%s: episode failed: %s", self.recorder.task_id, error)
        if self._route.name not in self._route.warned:
            self._route.warned.add(self._route.name)
            warnings.warn(
                f"an episode failed and goes unscored (further ones of this environment are logged only): {error}",
                RuntimeWarning,
                stacklevel=3,
            )


def _complaint(tool: ShownTool, arguments: JSONObject) -> str | None:
    """Return what is wrong with arguments, in words for the policy; None if they may be sent."""
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"the arguments are not valid JSON: {error}"
    return tool.arguments.complaint(arguments)
