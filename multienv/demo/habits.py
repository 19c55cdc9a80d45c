"""Decides what the policy knows of the demo's environments before training: poor habits, one player each.

Flow: `learning` hands these to `tiny.rehearsal`, which plays the environments with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from multienv.tiny.rehearsal import Habit, Scene, ToolCall, happens


def shy_echo(rng: Random, scene: Scene) -> ToolCall | None:
    """Mostly say nothing; otherwise say either word, and after a wrong one perhaps try again."""
    if happens(rng, 0.5 if scene.calls else 0.6):
        return None
    return ToolCall("echo", {"text": rng.choice(("hello", "world"))})


def hasty_burglar(rng: Random, scene: Scene) -> ToolCall | None:
    """Mostly unlock without looking, and sometimes look and then forget to unlock."""
    if happens(rng, 0.3):
        return None
    return ToolCall("look" if not scene.calls and happens(rng, 0.4) else "unlock", {})


def idle_climber(rng: Random, _: Scene) -> ToolCall | None:
    """Go up as often as down and give up anywhere."""
    if happens(rng, 0.25):
        return None
    return ToolCall("step", {"direction": rng.choice(("up", "down"))})


MAX_CALLS: Final = 4
"""Most tool calls of a rehearsed dialogue."""

HABITS: Final[Mapping[str, Habit]] = {"echo": shy_echo, "vault": hasty_burglar, "climb": idle_climber}
"""The player of each environment."""
