"""Decides what the policy knows of the replicas before training: an apprentice who knows the tools, and is careless.

It knows from `solution` what would be right, and does it now and then. What training has to teach it is care: to take
the right word, to do every step, and to submit when all is done and not before.

Flow: `policy` hands a player per environment to `tiny.rehearsal`, which plays the replicas with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from multienv.testing.replicas import solution
from multienv.testing.replicas.assignments import WORDS
from multienv.tiny.rehearsal import Scene, ToolCall, happens

MAX_CALLS: Final = 6
"""Most tool calls of a rehearsed dialogue."""

_LOOK: Final[Mapping[str, Mapping[str, Any]]] = {
    "seta": {"command": "ls"},
    "endless-terminals": {"command": "ls", "description": "look"},
    "swe-rebench-v2": {"command": "ls", "description": "look"},
}
"""The arguments of `bash` by which the apprentice has a look around, by preset."""


@dataclass(frozen=True, slots=True)
class Apprentice:
    """A player of one preset's replica.

    The defaults leave much to learn, and give every right step often enough for a tiny policy to know it.

    Attributes:
        preset_name: The preset.
        look: How often it has a look around before its first step.
        stop: How often it stops, at any turn.
        haste: How often it submits before all is done, at any turn.
        slip: How often it takes any word, instead of the right one.
    """

    preset_name: str
    look: float = 0.15
    stop: float = 0.2
    haste: float = 0.35
    slip: float = 0.2

    def __call__(self, rng: Random, scene: Scene) -> ToolCall | None:
        """Decide on the next call."""
        *steps, submit = (ToolCall(*call) for call in solution(self.preset_name, scene.task_spec))
        num_done = sum(call.tool != "bash" for call in scene.calls)
        if happens(rng, self.stop):
            return None
        if not scene.calls and happens(rng, self.look):
            return ToolCall("bash", _LOOK[self.preset_name])
        if num_done >= len(steps) or happens(rng, self.haste):
            return submit
        return _slipped(steps[num_done], rng) if happens(rng, self.slip) else steps[num_done]


def _slipped(step: ToolCall, rng: Random) -> ToolCall:
    arguments = {name: rng.choice(WORDS) if text in WORDS else text for name, text in step.arguments.items()}
    return ToolCall(step.tool, arguments)
