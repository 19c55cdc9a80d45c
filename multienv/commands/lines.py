"""Decides which lines a person can type while stepping an episode, and what each means; nothing is sent from here.

Flow: `play` → `read_line` → a `Command`, or the mistake that the line is.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from multienv.errors import nearest
from multienv.router.toolbox import ShownTool
from multienv.router.typed import read_argument
from multienv.types import JSONObject

HELP: Final = """\
TOOL {"name": "value"}     call a tool with its arguments in JSON
TOOL name=value ...        the same; each value is read by the type its parameter has
call TOOL ...              the same, for a tool that is called like one of these words
say TEXT                   the policy's last plain message; ends the episode
tools, help TOOL, TOOL?    the tools; the schema of one
quit                       stop here"""


class Word(StrEnum):
    """What a line can begin with, beside the name of a tool."""

    CALL = "call"
    SAY = "say"
    TOOLS = "tools"
    HELP = "help"
    QUIT = "quit"


_OTHER_WORDS: Final = {"?": Word.HELP, "exit": Word.QUIT}
_AFTER_A_NAME: Final = ("", " ", "\t", "{")
_BRACKETS: Final = ("{", "[")


@dataclass(frozen=True, slots=True)
class Command:
    """What a line means.

    Attributes:
        word: What is to be done.
        tool: The tool by its shown name; empty for all of them, or where there is none.
        arguments: Those of a call.
        text: What is said.
    """

    word: Word
    tool: str = ""
    arguments: JSONObject = field(default_factory=dict)
    text: str = ""


class MistakeError(Exception):
    """A line that is not understood."""


def read_line(line: str, tools: Mapping[str, ShownTool]) -> Command | None:
    """Say what a line means.

    Args:
        line: The line; one that begins with `#` says nothing.
        tools: The tools by their shown names.

    Returns:
        None for a line that says nothing.

    Raises:
        MistakeError: It is not understood, and why.
    """
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    first, *others = line.split(maxsplit=1)
    rest = others[0] if others else ""
    word = _OTHER_WORDS.get(first) or next((word for word in Word if word == first), None)
    if word is None:
        if line.endswith("?") and line[:-1].rstrip() in tools:
            return Command(Word.HELP, line[:-1].rstrip())
        return _call(line, tools)
    if word is Word.CALL:
        return _call(rest, tools)
    if word is Word.HELP and rest and rest not in tools:
        raise MistakeError(f"no tool {rest!r}{nearest(rest, tools)}; {named_tools(tools)}")
    if word is Word.SAY and not rest:
        raise MistakeError("say what? It ends the episode")
    return Command(word, rest if word is Word.HELP else "", text=rest)


def named_tools(tools: Mapping[str, ShownTool]) -> str:
    """Return the names of the tools, in a line; those that are also words of ours as they must be typed."""
    taken = {*Word, *_OTHER_WORDS}
    return f"tools: {', '.join(f'call {name}' if name in taken else name for name in tools) or 'none'}"


def completions(before: str, tools: Mapping[str, ShownTool]) -> list[str]:
    """Return the words that can follow what has been typed of a line.

    Args:
        before: The whole words so far.
        tools: The tools by their shown names.
    """
    first, *others = before.split() or [""]
    if not first:
        return [*tools, *Word]
    if first in (Word.HELP, Word.CALL, "?") and not others:
        return list(tools)
    name = others[0] if first == Word.CALL else first
    if name not in tools or first == Word.SAY:
        return []
    properties: Any = tools[name].function["function"]["parameters"].get("properties")
    return [f"{parameter}=" for parameter in properties or ()]


def _call(line: str, tools: Mapping[str, ShownTool]) -> Command:
    fitting = [name for name in tools if line.startswith(name) and line[len(name) :][:1] in _AFTER_A_NAME]
    if not fitting:
        name = next(iter(line.split(maxsplit=1)), "")
        raise MistakeError(
            f"no tool {name!r}{nearest(name, tools)}; {named_tools(tools)}; help shows what can be typed"
        )
    name = max(fitting, key=len)
    schema: Any = tools[name].function["function"]["parameters"]
    return Command(Word.CALL, name, _arguments(line[len(name) :].strip(), schema))


def _arguments(text: str, schema: Mapping[str, Any]) -> JSONObject:
    """Read a tool's arguments: a JSON object, or `name=value` words."""
    if text.startswith("{"):
        return _object(text)
    properties: Any = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    arguments: JSONObject = {}
    for name, value in _pairs(text):
        if name in arguments:
            raise MistakeError(f"{name!r} is given twice; nothing was sent")
        arguments[name] = read_argument(value, properties.get(name), schema)
    return arguments


def _object(text: str) -> JSONObject:
    def unique(pairs: list[tuple[str, Any]]) -> JSONObject:
        read = dict(pairs)
        if len(read) < len(pairs):
            raise ValueError("a name is given twice")
        return read

    def no_number(text: str) -> Any:
        raise ValueError(f"{text} is no number of JSON")

    try:
        read: JSONObject = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except RecursionError:
        raise MistakeError("the arguments are nested too deep; nothing was sent") from None
    except ValueError as error:
        raise MistakeError(f"the arguments are no JSON: {error}; nothing was sent") from None
    return read


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values; a value may be quoted as in a shell, or be a JSON list or object as it is."""
    stream = io.StringIO(text)
    while rest := text[stream.tell() :].lstrip():
        start = len(text) - len(rest)
        name, is_pair, value = rest.partition("=")
        if not is_pair or not name or any(character.isspace() for character in name):
            raise MistakeError(f"{rest.split()[0]!r} is no name=value; nothing was sent")
        stream.seek(start + len(name) + 1)
        if value.startswith(_BRACKETS) and (length := _length_of_json(value)):
            stream.seek(stream.tell() + length)
            yield name, value[:length]
        elif not value or value[0].isspace():
            yield name, ""
        else:
            yield name, _word(stream)


def _word(stream: io.StringIO) -> str:
    """Read a word, as a shell would, and leave the stream behind it."""
    lexer = shlex.shlex(stream, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return lexer.get_token() or ""
    except ValueError as error:
        raise MistakeError(f"the arguments cannot be read: {error}; nothing was sent") from None


def _length_of_json(text: str) -> int:
    """Return how many characters of a text are a JSON value that ends where a word ends; 0 where none is."""
    try:
        _, length = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return 0
    return length if not text[length:] or text[length].isspace() else 0
