"""Decides in which words two forms of a tool are told apart, and which tools of one environment have several.

Flow: `tools` and `report` → here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from multienv.checks.findings import quoted
from multienv.types import ToolListing, ToolSpec

_BESIDE_PARAMETERS: Final = frozenset({"properties", "required"})


def differences(one: ToolSpec, other: ToolSpec, first: str, second: str) -> list[str]:
    """Say how two tools of one name differ; an empty list for the same schema and description.

    Args:
        one: A tool as published.
        other: Another one.
        first: Whose the first is, in words.
        second: Whose the second is.

    Example:
        >>> one = ToolSpec("bash", "", {"properties": {"command": {}, "timeout": {}}})
        >>> differences(one, ToolSpec("bash", "", {"properties": {"command": {"type": "string"}}}), "a", "b")
        ['timeout only in a', 'command: type']
    """
    return [
        *schema_differences(one, other, first, second),
        *(["the description"] * (one.description != other.description)),
    ]


def schema_differences(one: ToolSpec, other: ToolSpec, first: str, second: str) -> list[str]:
    """Say how the schemas of two tools differ; see `differences`."""
    if as_written(one.input_schema) == as_written(other.input_schema):
        return []
    ours, theirs = _parameters(one), _parameters(other)
    words = [f"{', '.join(map(quoted, names))} only in {owner}" for names, owner in _only(ours, theirs, first, second)]
    shared = [name for name in ours if name in theirs]
    changed = {name: keywords for name in shared if (keywords := _keywords(ours[name], theirs[name]))}
    words += [f"{quoted(name)}: {', '.join(keywords)}" for name, keywords in changed.items()]
    needed = [name for name in shared if (name in _required(one)) != (name in _required(other))]
    if needed:
        words.append(f"whether {', '.join(map(quoted, needed))} must be given")
    rest = [keyword for keyword in _keywords(one.input_schema, other.input_schema) if keyword not in _BESIDE_PARAMETERS]
    if rest:
        words.append(f"of the whole schema: {', '.join(rest)}")
    return words or ["only the order, or an empty part, of the schema"]


def as_written(value: Any) -> str:
    """Return a JSON value as text: 1, 1.0 and true are one value in Python, and so are objects in another order.

    Example:
        >>> as_written({"const": 1}) == as_written({"const": True})
        False
    """
    return json.dumps(value)


def drift_of(listings: Mapping[int | str | None, ToolListing]) -> dict[str, list[str]]:
    """Return the tools that are not the same in all tasks that are known, and how they differ.

    Args:
        listings: Under None what all tasks share, else by task index, or `split/index` in another split.
    """
    drift: dict[str, list[str]] = {}
    for name in dict.fromkeys(tool.name for listing in listings.values() for tool in listing.tools):
        forms = {index: _tool(listing, name) for index, listing in listings.items()}
        if words := list(_told_apart(forms)):
            drift[name] = words
    return drift


def _told_apart(forms: Mapping[int | str | None, ToolSpec | None]) -> Iterator[str]:
    having = [index for index, form in forms.items() if form is not None]
    lacking = [index for index, form in forms.items() if form is None]
    if lacking:
        yield f"in {tasks_in_words(having)}, not in {tasks_in_words(lacking)}"
    first = forms[having[0]]
    seen = {_written(first)}
    for index in having[1:]:
        form = forms[index]
        if first is not None and form is not None and _written(form) not in seen:
            seen.add(_written(form))
            told = differences(first, form, tasks_in_words([having[0]]), tasks_in_words([index]))
            yield f"from {tasks_in_words([having[0]])} to {tasks_in_words([index])}: {', '.join(told)}"


def _written(tool: ToolSpec | None) -> str:
    return "" if tool is None else as_written([tool.description, tool.input_schema])


def _tool(listing: ToolListing, name: str) -> ToolSpec | None:
    return next((tool for tool in listing.tools if tool.name == name), None)


def tasks_in_words(indices: Iterable[int | str | None]) -> str:
    """Name the tasks of listings; see `drift_of`."""
    indices = list(indices)
    numbers = sorted(
        (index for index in indices if index is not None), key=lambda index: (isinstance(index, str), index)
    )
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")  # noqa: PLR2004 - enough to see
    tasks = [f"task {shown}" if len(numbers) == 1 else f"tasks {shown}"] if numbers else []
    return " and ".join([*(["what all tasks share"] if None in indices else []), *tasks])


def _parameters(tool: ToolSpec) -> dict[str, Any]:
    properties = tool.input_schema.get("properties")
    return dict(properties) if isinstance(properties, Mapping) else {}


def _required(tool: ToolSpec) -> list[Any]:
    required = tool.input_schema.get("required")
    return required if isinstance(required, list) else []


def _only(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], first: str, second: str
) -> Iterator[tuple[list[str], str]]:
    for these, those, owner in ((ours, theirs, first), (theirs, ours, second)):
        if names := [name for name in these if name not in those]:
            yield names, owner


def _keywords(one: Any, other: Any) -> list[str]:
    """Return the keywords in which two schemas differ."""
    if as_written(one) == as_written(other):
        return []
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return ["everything"]
    shared = [key for key in one if key in other]
    changed = {key for key in shared if as_written(one[key]) != as_written(other[key])}
    return [str(key) for key in {**one, **other} if key in changed or key not in shared] or ["the order"]
