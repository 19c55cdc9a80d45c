"""Decides what the policy knows of the demo's environments before training: poor habits, one player each.

Flow: `learning` hands these to `tiny.rehearsal`, which plays the environments with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from multienv.tiny.rehearsal import Habit, ToolCall, happens


def shy_echo(rng: Random, outputs: Sequence[str]) -> ToolCall | None:
    """Mostly say nothing; otherwise say either word, and after a wrong one perhaps try again."""
    if happens(rng, 0.5 if outputs else 0.6):
        return None
    return ToolCall("echo", {"text": rng.choice(("hello", "world"))})


def hasty_burglar(rng: Random, outputs: Sequence[str]) -> ToolCall | None:
    """Mostly unlock without looking, and sometimes look and then forget to unlock."""
    if happens(rng, 0.3):
        return None
    return ToolCall("look" if not outputs and happens(rng, 0.4) else "unlock", {})


def idle_climber(rng: Random, _: Sequence[str]) -> ToolCall | None:
    """Go up as often as down and give up anywhere."""
    if happens(rng, 0.25):
        return None
    return ToolCall("step", {"direction": rng.choice(("up", "down"))})


HABITS: Final[Mapping[str, Habit]] = {"echo": shy_echo, "vault": hasty_burglar, "climb": idle_climber}
"""The player of each environment."""
