"""Decides how TOML is read, and in which line a value of it stands.

The standard library reads TOML and tells no lines. A value is in the file from the first line on with which the lines
so far say it.

Flow: `document` → `read_toml` → plain values, and the line of each.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from multienv.errors import SpecError
from multienv.files.places import Place

_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


def read_toml(path: Path, raw: bytes) -> tuple[dict[str, Any], Callable[[], dict[Place, int]]]:
    """Read TOML.

    Args:
        path: The file, for messages.
        raw: What is in it.

    Returns:
        What it says, in plain values; and what gives, from the place of a value, its line, from 1.

    Raises:
        SpecError: It is no TOML.
    """
    try:
        text = raw.decode()
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        where = "" if found is None else f", line {found[1]}"
        problem = str(error) if found is None else str(error)[: found.start()]
        raise SpecError(f"{path}{where}: this is no TOML: {problem}") from None
    except (UnicodeError, RecursionError) as error:
        raise SpecError(f"{path}: this is no TOML: {error}") from None
    return _with_steps(values), functools.partial(_lines, text)


def _lines(text: str) -> dict[Place, int]:
    """Return where each value stands: the first line of the statement that brings it."""
    lines: dict[Place, int] = {(): 1}
    every = text.splitlines(keepends=True)
    start = 0
    for end in range(1, len(every) + 1):
        if start == end - 1 and (not every[start].strip() or every[start].lstrip().startswith("#")):
            start = end
            continue
        try:
            values = tomllib.loads("".join(every[:end]))
        except tomllib.TOMLDecodeError:  # in the middle of a statement
            continue
        for place in _places(_with_steps(values)):
            lines.setdefault(place, start + 1)
        start = end
    return lines


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    items: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*place, key)
        yield from _places(inner, (*place, key))


def _with_steps(value: Any, place: Place = ()) -> Any:
    """Return the values with whole numbers for keys where training steps are keys: in TOML every key is text."""
    if isinstance(value, list):
        return [_with_steps(inner, (*place, number)) for number, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    takes_steps = place[-1:] == ("points",)
    return {
        (int(key) if takes_steps and key.isdecimal() else key): _with_steps(inner, (*place, key))
        for key, inner in value.items()
    }
