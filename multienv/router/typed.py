"""Decides what an argument means that came as text, where the published schema says its type in a roundabout way.

Several chat templates (Qwen3.5, GLM, Nemotron) write each argument as bare text. transformers reads it by the type it
finds beside the parameter; behind a `$ref`, an `allOf`, a `const` or an `enum` it finds none, and leaves the text.

Flow: `ShownTool.restored` → here, before the arguments are checked; `multienv play` → `read_argument`.

Source:
    `transformers.utils.chat_parsing.response_parser`, which types the arguments of every template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from multienv.types import JSONObject

_DEEPEST: Final = 16
_MOST_SCHEMAS: Final = 500
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None, "none": None}
_NAMES: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}
"""The names JSON Schema has for the type of a JSON value."""


def typed_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> JSONObject:
    """Return arguments with each text read as JSON whose parameter takes no text, and takes what it reads as.

    A parameter with a `type` of its own has been read already, and one that may be a text is one.

    Args:
        arguments: By published name.
        schema: The published schema of the arguments.

    Example:
        >>> schema = {"properties": {"edit": {"$ref": "#/$defs/Edit"}}, "$defs": {"Edit": {"type": "object"}}}
        >>> typed_arguments({"edit": '{"line": 4}'}, schema)
        {'edit': {'line': 4}}
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return dict(arguments)
    return {
        name: _typed(value, properties[name], schema) if isinstance(value, str) and name in properties else value
        for name, value in arguments.items()
    }


def read_argument(text: str, parameter: Any, schema: Mapping[str, Any]) -> Any:
    """Return what a text means that a person typed for an argument: a value of a type that its parameter takes.

    Args:
        text: What was typed.
        parameter: The parameter's own schema; None where the tool has no such parameter.
        schema: The schema of all arguments.

    Returns:
        The text itself where the parameter takes texts, or nothing that it reads as; where nothing is said of types,
        JSON where it is some.

    Example:
        >>> schema = {"properties": {"n": {"type": "integer"}, "text": {"type": "string"}}}
        >>> [read_argument("4", parameter, schema) for parameter in (*schema["properties"].values(), None)]
        [4, '4', 4]
    """
    accepted = _accepted(parameter, schema, iter(range(_MOST_SCHEMAS)), _DEEPEST)
    if accepted is not None and "string" in accepted:
        return text
    if accepted is None:
        with suppress(ValueError, RecursionError):
            return json.loads(text)
        return text
    value = _read(text)
    return value if _NAMES.get(type(value), frozenset()) & accepted else text


def _typed(text: str, parameter: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(parameter, Mapping) or "type" in parameter:
        return text
    accepted = _accepted(parameter, root, iter(range(_MOST_SCHEMAS)), _DEEPEST)
    if accepted is None or "string" in accepted:
        return text
    value = _read(text)
    return value if _NAMES.get(type(value), frozenset()) & accepted else text


def _read(text: str) -> Any:
    """Read a text as JSON, or return it; a policy may write Python's names of the constants."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return _WORDS.get(text.strip().lower(), text)


def _accepted(schema: Any, root: Mapping[str, Any], budget: Iterator[int], depth: int) -> frozenset[str] | None:
    """Return the names of the types that a schema may accept; None where it says nothing of types, or too much."""
    if not isinstance(schema, Mapping) or depth == 0 or next(budget, None) is None:
        return None
    found = _of_values(schema)
    if isinstance(schema.get("$ref"), str):
        found.append(_accepted(_referred(schema["$ref"], root), root, budget, depth - 1))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(keyword), list):
            of_each = [_accepted(option, root, budget, depth - 1) for option in options]
            found += of_each if keyword == "allOf" else [_any_of(of_each)]
    known = [names for names in found if names is not None]
    if not known:
        return None
    accepted = frozenset.intersection(*known)
    return accepted | {"null"} if schema.get("nullable") is True else accepted


def _of_values(schema: Mapping[str, Any]) -> list[frozenset[str] | None]:
    """Return what the keywords say that hold no further schema."""
    found: list[frozenset[str] | None] = []
    if isinstance(declared := schema.get("type"), str | list):
        names = frozenset([declared] if isinstance(declared, str) else map(str, declared))
        found.append(names | {"integer"} if "number" in names else names)
    if isinstance(values := schema.get("enum"), list):
        found.append(_any_of([_NAMES.get(type(value)) for value in values]))
    if "const" in schema:
        found.append(_NAMES.get(type(schema["const"])))
    return found


def _any_of(options: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
    known = [names for names in options if names is not None]
    return frozenset[str]().union(*known) if len(known) == len(options) else None


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Follow a pointer into the schema itself, such as `#/$defs/Name`; anything else is not followed."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
