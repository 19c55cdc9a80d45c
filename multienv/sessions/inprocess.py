"""Decides how an `Environment` class runs in this process: as a server would run it, without the server.

Every class gets an event loop on a thread of its own, so that a tool which blocks stalls no other class's sessions.
What crosses the border goes through JSON, as it would over HTTP.

Flow: `connect` → `InProcessSource` → `InProcessSession` → the user's class.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from openreward.environments import Environment, Toolset
from openreward.environments.session import call_session_tool, list_session_tools
from openreward.environments.types import GroupCandidate, RunToolSuccess
from openreward.environments.utils import run_user_callable

from multienv.errors import MultiEnvError, ServerError, SessionError
from multienv.sessions.blocks import parse_listing, parse_messages, parse_output, parse_prompt
from multienv.sessions.candidates import parse_scores
from multienv.sessions.classes import give_back, take_loop
from multienv.sessions.keys import masked, plain_secrets, secret_values
from multienv.sessions.loop import EventLoopThread
from multienv.sessions.quiet import begin_quiet, hush
from multienv.sessions.toolsets import toolset_class
from multienv.specs import EnvSpec
from multienv.types import JSONObject, Prompt, ToolListing, ToolOutput, ToolRefused

T = TypeVar("T")

hush()


class InProcessSource:
    """An `Environment` class that runs on a loop which it shares with other environments of that class only.

    Args:
        name: Name of the environment in the mixture.
        spec: Its declaration; the target is the class.
    """

    def __init__(self, name: str, spec: EnvSpec) -> None:
        self.name = name
        self._spec = spec
        self._class: type[Environment] = spec.target  # type: ignore[assignment]  # checked by EnvSpec
        self._loop: EventLoopThread | None = None

    @property
    def environment(self) -> str:
        """The class's name, folded, as a server would list it."""
        return str(self._class.name()).lower()

    async def connect(self) -> None:
        """Take the class's loop."""
        toolset_class(self.name, self._spec.toolset)
        if self._loop is None:
            self._loop = take_loop(self._class)

    @asynccontextmanager
    async def catalogue(self) -> AsyncIterator[_ClassCatalogue]:
        """Give access to splits and tasks."""
        yield _ClassCatalogue(self)

    async def list_tools(self) -> ToolListing:
        """Return the tools all tasks share."""

        async def listing() -> ToolListing:
            return parse_listing(self._class.list_tools().model_dump(mode="json"), self.name)

        return await self.run(listing(), "listing the tools")

    async def open(self, split: str, index: int) -> InProcessSession:
        """Construct the environment for one task and start its `setup()`."""

        async def construct() -> tuple[Environment, Toolset | None]:
            spec = through_json(await run_user_callable(self._class.get_task, split, index))
            environment = await run_user_callable(self._class, task_spec=spec, secrets=plain_secrets(self._spec))
            made = toolset_class(self.name, self._spec.toolset)
            return environment, made and made(environment)

        made = await self.run(construct(), f"opening a session for task {index} of split {split!r}")
        session = InProcessSession(self, *made)
        await self.run(session.start(), "starting setup()")
        return session

    async def list_required_secrets(self) -> tuple[str, ...]:
        """Return nothing: a class does not say which secrets it needs."""
        return ()

    async def aclose(self) -> None:
        """Give the loop back."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            give_back(self._class, loop)

    async def run(self, coroutine: Coroutine[Any, Any, T], doing: str) -> T:
        """Run a coroutine on the class's loop; what the user's code raises is a lost session."""
        if self._loop is None:
            coroutine.close()
            raise ServerError(f"environment {self.name!r} is used before connect()", environment=self.name)
        try:
            return await self._loop.await_here(_contained(coroutine))
        except (MultiEnvError, ToolRefused):
            raise
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # this wait was cancelled; otherwise the user's code raised it, which is its own failure
            text = f"{type(error).__name__}: {error}"
            shown = masked(text, secret_values(self._spec, None))
            raise SessionError(
                f"environment {self.name!r} in this process: {doing}: {shown}", environment=self.name
            ) from (error if shown == text else None)


class InProcessSession:
    """One instance of the class, with what a server keeps beside it."""

    def __init__(self, source: InProcessSource, environment: Environment, toolset: Toolset | None) -> None:
        self._source = source
        self._environment = environment
        self._toolset = toolset
        self._id = str(uuid.uuid4())
        self._setup: asyncio.Task[None] | None = None  # lives on the class's loop

    @property
    def id(self) -> str:
        """An id of the same form as a server's."""
        return self._id

    async def start(self) -> None:
        """Start `setup()` in the background, as the server does."""
        self._setup = asyncio.ensure_future(run_user_callable(self._environment.setup))

    async def prompt(self) -> Prompt:
        """Return the prompt as one user message, once `setup()` is done."""
        return parse_prompt(await self._dumped(self._environment.get_prompt))

    async def messages(self) -> Prompt:
        """Return the prompt as a conversation, once `setup()` is done."""
        return parse_messages(await self._dumped(self._environment.get_messages))

    async def _dumped(self, method: Callable[[], Any]) -> list[Any]:
        async def fetch() -> Any:
            await self._ready()
            return [item.model_dump(mode="json") for item in await run_user_callable(method)]

        return list(await self._source.run(fetch(), "fetching the prompt"))

    async def list_tools(self) -> ToolListing:
        """Return the tools of this session's task."""

        async def listing() -> ToolListing:
            listed = await list_session_tools(self._environment, self._toolset)
            return parse_listing(listed.model_dump(mode="json"), self._source.name)

        return await self._source.run(listing(), "listing the task's tools")

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        """Call a tool, once `setup()` is done.

        Raises:
            ToolRefused: The policy's own mistake; the session lives.
        """

        async def call() -> ToolOutput:
            await self._ready()
            result = await call_session_tool(self._environment, self._toolset, tool, through_json(arguments))
            answer = json.loads(result.model_dump_json())
            if isinstance(result.root, RunToolSuccess):
                answer["output"]["reward"] = result.root.output.reward  # pydantic writes null for NaN and infinity
            return parse_output(answer)

        return await self._source.run(call(), f"calling tool {tool!r}")

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        """Return one score per candidate, in order."""

        async def score() -> list[float]:
            await self._ready()
            given = [GroupCandidate.model_validate(through_json(candidate)) for candidate in candidates]
            scores = await run_user_callable(self._environment.score_group, given)
            answer = {"scores": [{"reward": getattr(score, "reward", score)} for score in scores]}
            return parse_scores(answer, len(given))

        return await self._source.run(score(), "scoring a group")

    async def close(self) -> None:
        """Stop `setup()` if it still runs, then run `teardown()`; a second call does nothing."""
        if self._setup is not None:
            await self._source.run(self._tear_down(), "tearing down")

    async def _ready(self) -> None:
        if self._setup is None:
            raise SessionError("the session is closed")
        await asyncio.shield(self._setup)

    async def _tear_down(self) -> None:
        setup, self._setup = self._setup, None
        if setup is None:
            return
        setup.cancel()
        with suppress(asyncio.CancelledError, Exception):  # a failed setup() was reported to whoever waited for it
            await setup
        await _run_even_at_exit(self._environment.teardown)


class _ClassCatalogue:
    """The class methods of an environment."""

    def __init__(self, source: InProcessSource) -> None:
        self._source = source
        self._class = source._class  # noqa: SLF001 - one room, one pair

    async def list_splits(self) -> list[str]:
        """Return the names of the splits."""

        async def listing() -> list[str]:
            return [split if isinstance(split, str) else split.name for split in self._class.list_splits()]

        return await self._source.run(listing(), "listing the splits")

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""
        return int(await self._source.run(run_user_callable(self._class.num_tasks, split), "counting the tasks"))

    async def task_range(self, split: str, start: int, stop: int) -> list[Any]:
        """Return the task specs of a range."""

        async def read() -> Any:
            return through_json(await run_user_callable(self._class.get_task_range, split, start, stop))

        return list(await self._source.run(read(), "reading the tasks"))


def through_json(value: Any) -> Any:
    """Send a value through JSON and back, as HTTP would."""
    return json.loads(json.dumps(value, allow_nan=False))


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it quietly, and keep an attempt to leave the process from ending the class's loop instead."""
    begin_quiet()
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the environment's code raised {type(error).__name__}({error})") from error


async def _run_even_at_exit(function: Callable[[], Any]) -> None:
    """Run a user's callable; inline where the interpreter's exit has shut the threads down."""
    try:
        await run_user_callable(function)
    except RuntimeError:
        if inspect.iscoroutinefunction(function):
            raise
        result = function()
        if inspect.isawaitable(result):
            await result
