"""Decides how a stranger's text looks on a terminal: character for character, and with no power over the terminal.

Flow: `preview`, `play` → `as_shown`, `show_messages` → the console.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from multienv.router.presentation import text_of

if TYPE_CHECKING:
    from rich.console import Console

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All control characters but tab and newline, and those that turn the direction of what follows."""


def as_shown(text: str, special: Iterable[str] = (), style: str = "") -> Text:
    r"""Return a text for a console: control characters are written as escapes, nothing else is changed.

    Args:
        text: Anything.
        special: Texts that are set off, such as special tokens.
        style: The style of the whole.

    Example:
        >>> print(as_shown("red \x1b[31m :smile:"))
        red \x1b[31m :smile:
    """
    shown = Text(_CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text), style=style)
    if words := [word for word in special if word]:  # of no words, every place is one
        shown.highlight_words(words, style="bold cyan")
    return shown


def put(console: Console, text: str, *, special: Iterable[str] = (), style: str = "") -> None:
    """Show a stranger's text; lines are broken where they are broken, and nowhere else."""
    console.print(as_shown(text, special, style), soft_wrap=True)


def show_messages(console: Console, messages: Sequence[Mapping[str, Any]]) -> None:
    """Show chat messages as they are: thoughts, content, and tool calls."""
    for message in messages:
        of_tool = f" {message['name']}" if message.get("name") else ""
        put(console, f"{message['role']}{of_tool}", style="bold")
        if message.get("reasoning_content"):
            put(console, f"(thinks) {message['reasoning_content']}", style="dim")
        put(console, text_of(message.get("content") or ""))
        for call in message.get("tool_calls") or ():
            put(console, f"(calls) {json.dumps(call['function'], ensure_ascii=False)}", style="dim")
