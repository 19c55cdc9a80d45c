"""Decides what the policy knows before training: dialogues of players who know the tools but have poor habits.

The dialogues are played on the environments themselves, through the adapters the training run uses, so a prompt of the
warm-up equals a prompt of the run to the letter.

Flow: `demo` and `offline` have their tasks rehearsed here and hand the dialogues to `policy_cache`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol

from multienv.router.toolbox import Toolbox
from multienv.types import JSONObject, ToolCallError

FAREWELL: Final = "done"
"""What a player says when it stops calling tools."""


class Playable(Protocol):
    """What a rehearsal needs of an adapter, besides one method per tool."""

    @property
    def finished(self) -> bool:
        """True once the environment declared the episode over."""

    def reset(self, **row: Any) -> Any:
        """Begin an episode of the row's task and return its prompt, a text here."""

    def _offered(self) -> Toolbox:
        """Return the tools of the episode."""

    def _close(self) -> None:
        """Close the last episode's session."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call a player decided on."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One rehearsed episode in chat format.

    Attributes:
        messages: The user's message, then assistant and tool messages in turn; the last is the assistant's.
        tools: JSON schemas of the environment's tools, as the policy will be shown them.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a player knows when it is its turn.

    Attributes:
        task_spec: The task spec, which tells a player what would be right.
        calls: The calls so far.
    """

    task_spec: JSONObject
    calls: Sequence[ToolCall] = ()


Habit = Callable[[Random, Scene], ToolCall | None]
"""A player: from the scene to the next call, or None to stop."""


def happens(rng: Random, probability: float) -> bool:
    """Draw whether something of the given probability happens."""
    return rng.random() < probability


def rehearse(
    rows: Iterable[Mapping[str, Any]],
    adapters: Mapping[str, Playable],
    habits: Mapping[str, Habit],
    *,
    num_dialogues_per_task: int,
    max_calls: int,
    rng: Random,
) -> Iterator[Dialogue]:
    """Play every task a number of times, and leave no session open.

    Args:
        rows: Rows of the training dataset, one per task.
        adapters: One adapter per environment.
        habits: The player of each environment.
        num_dialogues_per_task: How often each task is played.
        max_calls: Most tool calls of one dialogue.
        rng: Source of the players' whims.

    Yields:
        The dialogues, task by task.
    """
    try:
        for row in rows:
            adapter, habit = adapters[row["environment"]], habits[row["environment"]]
            for _ in range(num_dialogues_per_task):
                messages = _play(adapter, row, habit, rng, max_calls)
                yield Dialogue(messages, adapter._offered().functions)  # noqa: SLF001 - hidden from TRL, not from here
    finally:
        for adapter in adapters.values():
            adapter._close()  # noqa: SLF001 - see above; the training run may need every session it is allowed


def _play(
    adapter: Playable, row: Mapping[str, Any], habit: Habit, rng: Random, max_calls: int
) -> list[Mapping[str, Any]]:
    *before, request = row["prompt"]
    messages: list[Mapping[str, Any]] = [*before, {**request, "content": request["content"] + adapter.reset(**row)}]
    scene = Scene(json.loads(row["task"]))
    while not adapter.finished and len(scene.calls) < max_calls and (call := habit(rng, scene)) is not None:
        scene = replace(scene, calls=(*scene.calls, call))
        tool_call = {"type": "function", "function": {"name": call.tool, "arguments": dict(call.arguments)}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [tool_call]},
            {"role": "tool", "name": call.tool, "content": _output(adapter, call)},
        ]
    return [*messages, {"role": "assistant", "content": FAREWELL}]


def _output(adapter: Playable, call: ToolCall) -> str:
    try:
        return str(getattr(adapter, call.tool)(**call.arguments))
    except ToolCallError as error:
        return str({"error": str(error)})  # as TRL shows it
