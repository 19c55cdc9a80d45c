"""Decides how YAML is read so that a finding can name the line: values, and where each of them stands.

Flow: `document` → `read_yaml` → plain values, and the line of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from multienv.errors import SpecError
from multienv.files.places import Place

_MERGE: Final = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, to which 1e-3 is a number: YAML 1.2 says so, 1.1 wanted 1.0e-3."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        """Make a value; what PyYAML itself cannot convert, such as the date 2020-13-45, is an error with its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):
            kind, shown = node.tag.rpartition(":")[2], f"{node.value!r:.40}"
            problem = f"{shown} is no {kind}; write text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path, raw: bytes) -> tuple[Any, Callable[[], dict[Place, int]]]:
    """Read YAML.

    Args:
        path: The file, for messages.
        raw: What is in it.

    Returns:
        What it says, in plain values; and what gives, from the place of a value, its line, from 1: that of a key where
        the value has one.

    Raises:
        SpecError: It is no YAML, or says one thing twice.
    """
    try:
        loader = _Loader(raw)
        node = loader.get_single_node()
        lines = {} if node is None else _lines(path, loader, node)
        values = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        line = b"" if mark is None else b"".join(raw.splitlines()[mark.line : mark.line + 1])
        hint = "; inside [...] and {...}, write '${NAME}' in quotes, or $NAME" if b"${" in line else ""
        raise SpecError(f"{path}{where}: this is no YAML: {error.problem or error.context}{hint}") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise SpecError(f"{path}: this is no YAML: {error}") from None
    return values, lambda: lines


def _lines(path: Path, loader: Any, node: Any, place: Place = (), above: tuple[Any, ...] = ()) -> dict[Place, int]:
    """Return where the values inside a node stand; refuse keys that are no text, or stand there twice."""
    if node in above:
        raise SpecError(f"{path}, line {_line(node)}: this value contains itself; write it out")
    lines: dict[Place, int] = {} if place else {(): _line(node)}
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            lines[(*place, number)] = _line(inner)
            lines |= _lines(path, loader, inner, (*place, number), above)
    elif isinstance(node, yaml.MappingNode):
        own: dict[Place, int] = {}
        for key, inner in node.value:
            if key.tag == _MERGE:  # what is merged stands elsewhere, and own keys win
                lines |= _lines(path, loader, inner, place, above)
                continue
            here = (*place, _key(path, loader, key, place))
            if here in own:
                raise SpecError(f"{path}, line {_line(key)}: {here[-1]!r} stands in line {own[here]} already; keep one")
            own[here] = _line(key)
            own |= _lines(path, loader, inner, here, above)
        lines |= own
    return lines


def _key(path: Path, loader: Any, node: Any, place: Place) -> str | int:
    """Return a key: text, or a whole number where training steps are keys."""
    key = loader.construct_object(node) if isinstance(node, yaml.ScalarNode) else None
    if isinstance(key, str) or (type(key) is int and place[-1:] == ("points",)):
        return key
    shown = repr(node.value) if isinstance(node, yaml.ScalarNode) else "before this colon"
    raise SpecError(f"{path}, line {_line(node)}: the key {shown} is no text; write it in quotes")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
