"""Decides which parts of a published schema a reader is not shown, by taking each away and looking again.

A part that can be taken away without changing what is shown is not shown. That holds for every template and every
signature, and needs no knowledge of any.

Flow: `signatures` and `templates` say how a schema is shown → `hidden_parts` → words for their findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from multienv.checks.findings import quoted

Show: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Shows a schema as its reader sees it."""

_SAY_NOTHING: Final = frozenset({"title", "$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
_BRANCHES: Final = frozenset({"anyOf", "oneOf", "allOf"})
_INSIDE: Final = {"items": "[]", "additionalProperties": ".*"}
_MOST_LOOKS: Final = 400
_MOST_CHARACTERS: Final = 5_000_000
_DEEPEST: Final = 24
_WHOLE: Final = "(arguments)"
_NOT_SHOWN: Final = "not shown"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a schema.

    Attributes:
        place: The parameter it says something about, such as `edits[].old_string`.
        what: The keyword, or `not shown` for a parameter as a whole.
        pointer: Where it stands in the whole schema.
        schema: The schema that is looked at next, if this part is shown; else None.
        schema_pointer: Where that one stands.
    """

    place: str
    what: str
    pointer: tuple[Any, ...]
    schema: Any = None
    schema_pointer: tuple[Any, ...] = ()


def hidden_parts(schema: Mapping[str, Any], show: Show) -> list[str]:
    """Return what of a tool's schema is not shown, one entry per parameter.

    Titles, a default of null and what accepts everything anyway are not counted. Of what is inside a part that is not
    shown nothing is said.

    Args:
        schema: The published schema of the arguments.
        show: Shows it; raising something counts as a change.

    Example:
        >>> schema = {"properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}
        >>> hidden_parts(schema, lambda schema: str(list(schema["properties"])))
        ['n: type, minimum, maximum']
    """
    whole = show(schema)
    most = min(_MOST_LOOKS, _MOST_CHARACTERS // (len(whole) + 1))
    hidden: dict[str, list[str]] = {}
    looks = 0

    def look_into(node: Any, place: str, pointer: tuple[Any, ...], depth: int) -> None:
        nonlocal looks
        for part in _parts(schema, node, place, pointer) if depth < _DEEPEST else ():
            if (looks := looks + 1) > most:
                return
            if not _changes(schema, part.pointer, show, whole):
                hidden.setdefault(part.place, []).append(part.what)
            elif part.schema is not None:
                look_into(part.schema, part.place, part.schema_pointer, depth + 1)

    look_into(schema, "", (), 0)
    words = [f"{place or _WHOLE}: {', '.join(dict.fromkeys(parts))}" for place, parts in hidden.items()]
    return [*words, "(the schema is larger than what was looked at)"] if looks > most else words


def _changes(schema: Mapping[str, Any], pointer: Sequence[Any], show: Show, whole: str) -> bool:
    try:
        return show(_without(schema, pointer)) != whole
    except Exception:  # noqa: BLE001 - whatever a stranger's template makes of it, it was looked at
        return True


def _without(node: Any, pointer: Sequence[Any]) -> Any:
    """Copy a JSON value without the part at a pointer; only what lies on the way is copied."""
    key, *rest = pointer
    if rest:
        return _with(node, key, _without(node[key], rest))
    if isinstance(node, Mapping):
        return {name: value for name, value in node.items() if name != key}
    return [value for place, value in enumerate(node) if place != key]


def _with(node: Any, key: Any, value: Any) -> Any:
    copy = dict(node) if isinstance(node, Mapping) else list(node)
    copy[key] = value
    return copy


def _parts(root: Mapping[str, Any], node: Any, place: str, pointer: tuple[Any, ...]) -> Iterator[_Part]:
    """Yield the parts of one schema, or of a list of branches, without those that say nothing."""
    if isinstance(node, list):
        yield from _branches(node, place, pointer)
    elif isinstance(node, Mapping):
        for keyword, value in node.items():
            is_of_every_tool = not pointer and keyword == "type"
            if keyword not in _SAY_NOTHING and not is_of_every_tool and not _is_idle(keyword, value, node):
                yield from _of_keyword(root, keyword, value, place, (*pointer, keyword))


def _of_keyword(
    root: Mapping[str, Any], keyword: str, value: Any, place: str, here: tuple[Any, ...]
) -> Iterator[_Part]:
    if keyword == "properties" and isinstance(value, Mapping):
        for name, inner in value.items():
            label = f"{place}.{quoted(str(name))}" if place else quoted(str(name))
            yield _Part(label, _NOT_SHOWN, (*here, name), inner, (*here, name))
    elif keyword in _BRANCHES and isinstance(value, list):
        yield _Part(place, keyword, here, value, here)
    elif keyword in _INSIDE and isinstance(value, Mapping):
        yield _Part(place + _INSIDE[keyword], _NOT_SHOWN, here, value, here)
    elif keyword == "$ref":
        target = _target(root, value)
        yield _Part(place, keyword, here, *(() if target is None else target))
    else:
        yield _Part(place, str(keyword), here)


def _branches(branches: Sequence[Any], place: str, here: tuple[Any, ...]) -> Iterator[_Part]:
    num_real = sum(branch != {"type": "null"} for branch in branches)
    for number, branch in enumerate(branches):
        at = (*here, number)
        if branch == {"type": "null"}:
            yield _Part(place, "null", at)
        else:
            yield _Part(place if num_real == 1 else f"{place}({number + 1})", _NOT_SHOWN, at, branch, at)


def _is_idle(keyword: str, value: Any, node: Mapping[str, Any]) -> bool:
    """Tell whether a keyword says nothing that its absence would not say."""
    if keyword == "type":
        return "enum" in node or "const" in node
    if keyword == "default":
        return value is None
    if keyword == "additionalProperties":
        return value is True or value == {}
    return keyword in ("required", "properties", "description") and not value


def _target(root: Mapping[str, Any], reference: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return what a reference within the schema leads to, and where that stands."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    pointer = tuple(part.replace("~1", "/").replace("~0", "~") for part in reference[2:].split("/"))
    found: Any = root
    for part in pointer:
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found, pointer
