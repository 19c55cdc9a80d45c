"""Hand-written stand-ins for what lies outside: sources, sessions, and the batch TRL hands to reward functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from multienv.errors import SessionError
from multienv.router import EnvironmentAdapter, Route, make_factory
from multienv.types import JSONObject, Message, Prompt, ToolCallError, ToolListing, ToolOutput, ToolRefused, ToolSpec

ANSWER = ToolSpec("answer", "Answer.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@dataclass
class ScriptedSession:
    """A session whose tool calls return, raise or refuse as written down."""

    script: Iterator[Any]
    prompt: Prompt = (Message("user", ("Answer.",)),)
    listing: ToolListing | None = None
    num_tries: int = 1
    id: str = "session"
    calls: list[tuple[str, JSONObject]] = field(default_factory=list)
    is_closed: bool = False

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        assert not self.is_closed, "a closed session was called"
        self.calls.append((tool, arguments))
        outcome = next(self.script, ToolOutput("ok"))
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, ToolOutput)
        return outcome

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        return [float(row) for row in range(len(candidates))]

    @property
    def is_closing(self) -> bool:
        return self.is_closed

    async def close(self) -> None:
        self.is_closed = True

    def start_closing(self) -> None:
        self.is_closed = True


def scripted_factory(
    name: str, outcomes: Sequence[Any] = (), tools: Sequence[ToolSpec] = (ANSWER,)
) -> type[EnvironmentAdapter]:
    """An adapter class whose every episode plays the same outcomes."""
    listing = ToolListing(tuple(tools))
    return make_factory(Route(name, "train", listing, lambda _: ready(ScriptedSession(iter(outcomes)))))


def said(tool: Callable[..., Any], **arguments: Any) -> str:
    """What the policy reads when it calls a tool: the result, or what went wrong."""
    try:
        return str(tool(**arguments))
    except ToolCallError as error:
        return str(error)


async def ready(session: ScriptedSession) -> ScriptedSession:
    """What a route's `open` makes: a coroutine that gives the session."""
    return session


def played(name: str, outcomes: Sequence[Any]) -> EnvironmentAdapter:
    """An adapter that has played through its outcomes."""
    adapter = scripted_factory(name, outcomes)()
    adapter.reset(task_index=0)
    for _ in outcomes:
        said(adapter.answer, n=1)  # type: ignore[attr-defined]  # the tool
    return adapter


class FakeSession:
    """One session of a `FakeSource`."""

    def __init__(self, source: FakeSource, index: int) -> None:
        self.source = source
        self.index = index
        self.id = f"session-{len(source.opened)}"

    async def prompt(self) -> Prompt:
        return (Message("user", (f"Task {self.index}.",)),)

    async def messages(self) -> Prompt:
        return await self.prompt()

    async def list_tools(self) -> ToolListing:
        return await self.source.list_tools()

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        assert self in self.source.live, "a session was called that is not open"
        outcome = self.source.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, ToolOutput)
        return outcome

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        return [float(row) for row in range(len(candidates))]

    async def close(self) -> None:
        self.source.live.discard(self)


class FakeSource:
    """An environment in memory that remembers its sessions."""

    environment = "fake"

    def __init__(self) -> None:
        self.live: set[FakeSession] = set()
        self.opened: list[FakeSession] = []
        self.most_live = 0
        self.outcomes: list[ToolOutput | SessionError | ToolRefused] = []
        self.is_down = False
        self.num_connects = 0

    async def connect(self) -> None:
        self.num_connects += 1

    @asynccontextmanager
    async def catalogue(self) -> AsyncIterator[FakeSource]:
        yield self

    async def list_splits(self) -> list[str]:
        return ["train"]

    async def num_tasks(self, split: str) -> int:
        return 3

    async def task_range(self, split: str, start: int, stop: int) -> list[Any]:
        return [{"n": index} for index in range(start, stop)]

    async def list_tools(self) -> ToolListing:
        return ToolListing((ANSWER,))

    async def open(self, split: str, index: int) -> FakeSession:
        if self.is_down:
            raise SessionError("the server is down")
        session = FakeSession(self, index)
        self.opened.append(session)
        self.live.add(session)
        self.most_live = max(self.most_live, len(self.live))
        return session

    async def aclose(self) -> None:
        return None

    async def list_required_secrets(self) -> tuple[str, ...]:
        return ()


def batch(adapters: Sequence[Any], **columns: Any) -> dict[str, Any]:
    """What TRL passes to a reward function, for these adapters."""
    num_rows = len(adapters)
    return {
        "prompts": [[{"role": "user", "content": str(row)}] for row in range(num_rows)],
        "completions": [[{"role": "assistant", "content": str(row)}] for row in range(num_rows)],
        "completion_ids": [[row] for row in range(num_rows)],
        "environment": [adapter.environment for adapter in adapters],
        "environments": list(adapters),
        "row": list(range(num_rows)),
        "trainer_state": object(),
        **columns,
    }
