"""Decides which tool calls run when: all calls of a turn at once, in order inside each rollout, and who is finished.

TRL appends the assistant message of every rollout to `completions` before it runs the turn's first tool. So when it
calls that first tool, the calls of all rollouts can be read off the list and started; TRL then gets each result as it
asks for it. TRL still counts calls and failures, builds messages and masks, and rolls back.

Flow: `trainer` wraps TRL's tool dicts with `Turns.wrap` for the length of one tool loop.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from multienv.router import EnvironmentAdapter
from multienv.router.tools import tool_coroutine
from multienv.sessions import session_loop

Tools = Mapping[str, Callable[..., Any]]


@dataclass(slots=True)
class _Started:
    """A call that is running, or done, before TRL has asked for it."""

    name: str
    arguments: Any
    result: Future[str] = field(default_factory=Future)


class Turns:
    """The tool calls of one tool loop.

    Only environments' own tools are started ahead. A tool of another making, the user's own or another environment
    class's, runs when TRL calls it and where TRL calls it; what comes after it in the same message waits for it.

    Args:
        tools: TRL's sync tools of each rollout, by name.
        completions: TRL's own list of messages per rollout; read, never written.
    """

    def __init__(self, tools: Sequence[Tools], completions: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        self._tools = tools
        self._completions = completions
        self._started: dict[int, deque[_Started]] = {}
        self._pending: dict[int, deque[tuple[str, Any]]] = {}
        self._done_messages: dict[int, Mapping[str, Any]] = {}

    def wrap(self, rollout: int) -> Mapping[str, Callable[..., Any]]:
        """Return one rollout's tools for TRL to call instead of its own."""
        return _Proxies(self._tools[rollout], functools.partial(self._proxy, rollout))

    def _proxy(self, rollout: int, name: str) -> Callable[..., Any]:
        tool = self._tools[rollout][name]

        @functools.wraps(tool)
        def call(**arguments: Any) -> Any:
            self._start_turn(rollout)
            waiting = self._started.get(rollout)
            if waiting and (waiting[0].name, waiting[0].arguments) == (name, arguments):
                return session_loop().wait(waiting.popleft().result)
            try:
                return tool(**arguments)
            finally:
                self._start_next(rollout)

        return call

    def _start_turn(self, rollout: int) -> None:
        """At the first call of a turn, start the calls of all rollouts."""
        messages = self._completions[rollout]
        if not messages or id(messages[-1]) in self._done_messages:
            return
        for other, its_messages in enumerate(self._completions):
            message = its_messages[-1] if its_messages else None
            # A rollout that TRL dropped as overlong keeps its last message; that one has been seen.
            if message is None or not message.get("tool_calls") or id(message) in self._done_messages:
                continue
            self._done_messages[id(message)] = message  # kept, so that its id is not used again
            self._pending[other] = deque(_calls(message, self._tools[other]))
            self._start_next(other)

    def _start_next(self, rollout: int) -> None:
        """Start a rollout's calls up to the next one that is not ours to start."""
        pending = self._pending.get(rollout)
        if not pending:
            return
        batch: list[tuple[_Started, Any]] = []
        while pending:
            name, arguments = pending.popleft()
            coroutine = tool_coroutine(self._tools[rollout][name], arguments)
            if coroutine is None:
                break
            batch.append((_Started(name, arguments), coroutine))
        if batch:
            self._started[rollout] = deque(started for started, _ in batch)
            session_loop().submit(_run_in_order(batch))


class _Proxies(dict[str, Callable[..., Any]]):
    """A table of tools whose entries are made when they are looked up; it has the names that the table behind has."""

    def __init__(self, tools: Tools, make: Callable[[str], Callable[..., Any]]) -> None:
        super().__init__()
        self._tools = tools
        self._make = make

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __missing__(self, name: str) -> Callable[..., Any]:
        self[name] = proxy = self._make(name)
        return proxy


def _calls(message: Mapping[str, Any], tools: Tools) -> list[tuple[str, Any]]:
    """Return the calls of a message that TRL will really make; the others it answers by itself."""
    calls = []
    for call in message["tool_calls"]:
        function: Mapping[str, Any] = call.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        if call.get("type") == "function" and name in tools and isinstance(arguments, Mapping):
            calls.append((str(name), dict(arguments)))
    return calls


async def _run_in_order(batch: Sequence[tuple[_Started, Any]]) -> None:
    for started, coroutine in batch:
        try:
            result = await coroutine
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
            started.result.set_exception(error)
        else:
            started.result.set_result(result)


class FinishedRollouts:
    """The rollouts of one tool loop whose episode is over: they are not asked for another turn.

    Args:
        environments: The environment of each rollout.
        completions: TRL's own list of messages per rollout; read, never written.
    """

    def __init__(self, environments: Sequence[Any], completions: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        self._environments = environments
        self._completions = completions
        self._num_seen = [len(messages) for messages in completions]
        self.stopped: set[int] = set()

    def rollouts_of_this_turn(self) -> list[int]:
        """Return the rollouts TRL is about to generate for, in its order: those whose last message is a new result."""
        rollouts = [
            rollout
            for rollout, messages in enumerate(self._completions)
            if len(messages) > self._num_seen[rollout] and messages[-1].get("role") == "tool"
        ]
        self._num_seen = [len(messages) for messages in self._completions]
        for rollout in rollouts:
            self._num_seen[rollout] += 1  # TRL appends the assistant message next
        return rollouts

    def is_finished(self, rollout: int) -> bool:
        """True when the rollout's episode is over, and another turn of the policy could change nothing."""
        environment = self._environments[rollout]
        if isinstance(environment, EnvironmentAdapter):
            return environment._is_idle()  # noqa: SLF001 - hidden from TRL, which would show it to the policy
        return getattr(environment, "finished", False) is True  # another class may have a tool of that name

    def trim(
        self, tool_mask: list[list[int]], completion_ids: list[list[int]], logprobs: list[list[float]] | None
    ) -> None:
        """End the completion of each stopped rollout at the policy's own last token, in place.

        Args:
            tool_mask: Per rollout, 1 for the policy's tokens and 0 for results.
            completion_ids: Token ids per rollout.
            logprobs: Log-probabilities per rollout, or None.
        """
        for rollout in self.stopped:
            length = len(tool_mask[rollout])
            while length > 1 and not tool_mask[rollout][length - 1]:
                length -= 1
            del tool_mask[rollout][length:]
            completion_ids[rollout] = completion_ids[rollout][:length]
            if logprobs is not None:
                logprobs[rollout] = logprobs[rollout][:length]
