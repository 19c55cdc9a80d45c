"""Decides what the policy knows before training: dialogues of players who know the tools but have poor habits.

The dialogues are played on the environments themselves, through the adapters the training run uses, so a prompt of the
warm-up equals a prompt of the run to the letter.

Flow: `demo` and `offline` have their tasks rehearsed here and hand the dialogues to `policy_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from multienv.router.toolbox import Toolbox

FAREWELL: Final = "done"
"""What a player says when it stops calling tools."""

_MAX_CALLS: Final = 4


class Playable(Protocol):
    """What a rehearsal needs of an adapter, besides one method per tool."""

    @property
    def finished(self) -> bool:
        """True once the environment declared the episode over."""

    def reset(self, **row: Any) -> Any:
        """Begin an episode of the row's task and return its prompt, a text here."""

    def _offered(self) -> Toolbox:
        """Return the tools of the episode."""


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


Habit = Callable[[Random, Sequence[str]], ToolCall | None]
"""A player: from the tool outputs so far to the next call, or None to stop."""


def happens(rng: Random, probability: float) -> bool:
    """Draw whether something of the given probability happens."""
    return rng.random() < probability


def rehearse(
    rows: Iterable[Mapping[str, Any]],
    adapters: Mapping[str, Playable],
    habits: Mapping[str, Habit],
    *,
    num_dialogues_per_task: int,
    rng: Random,
) -> Iterator[Dialogue]:
    """Play every task a number of times.

    Args:
        rows: Rows of the training dataset, one per task.
        adapters: One adapter per environment.
        habits: The player of each environment.
        num_dialogues_per_task: How often each task is played.
        rng: Source of the players' whims.

    Yields:
        The dialogues, task by task.
    """
    for row in rows:
        adapter, habit = adapters[row["environment"]], habits[row["environment"]]
        for _ in range(num_dialogues_per_task):
            messages = _play(adapter, row, habit, rng)
            yield Dialogue(messages, adapter._offered().functions)  # noqa: SLF001 - hidden from TRL, not from a rehearsal


def _play(adapter: Playable, row: Mapping[str, Any], habit: Habit, rng: Random) -> list[Mapping[str, Any]]:
    *before, request = row["prompt"]
    messages: list[Mapping[str, Any]] = [*before, {**request, "content": request["content"] + adapter.reset(**row)}]
    outputs: list[str] = []
    while not adapter.finished and len(outputs) < _MAX_CALLS and (call := habit(rng, outputs)) is not None:
        outputs.append(getattr(adapter, call.tool)(**call.arguments))
        tool_call = {"type": "function", "function": {"name": call.tool, "arguments": dict(call.arguments)}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [tool_call]},
            {"role": "tool", "name": call.tool, "content": outputs[-1]},
        ]
    return [*messages, {"role": "assistant", "content": FAREWELL}]
