"""Decides which Python type stands for a JSON Schema, for tools that can only be shown as typed methods.

`transformers.utils.get_json_schema` reads the types back; what Python typing cannot carry (bounds, patterns, the fields
of a nested object) is not shown to the policy and stays with the server.

Flow: `tools.bind_tools` asks `python_type` for the annotation of each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, Final, Literal, Union

_SCALARS: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": NoneType,
}
_LITERALS: Final = (str, int, float, bool, NoneType)
_DEEPEST: Final = 16


def python_type(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the type that carries as much of a schema as Python typing can.

    Args:
        schema: JSON Schema of one parameter.
        root: The schema it is part of, for its `$defs`.

    Returns:
        A `Literal`, a scalar, `list[T]`, `dict[str, T]`, a union of these, or `Any`.

    Example:
        >>> python_type({"type": "array", "items": {"enum": ["a", "b"]}}, {})
        list[typing.Literal['a', 'b']]
    """
    return _type(schema, root, _DEEPEST)


def _type(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return Any
    for key, read in _KEYWORDS.items():
        if key in schema and (found := read(schema, root, depth - 1)) is not None:
            return found
    return Any


def _reference(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    """Follow `#/$defs/Name`; anything else is not followed."""
    found: Any = root
    for part in str(schema["$ref"]).removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return _type(found, root, depth)


def _enum(schema: Mapping[str, Any], _root: Mapping[str, Any], _depth: int) -> Any:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, Sequence) or not values or any(type(value) not in _LITERALS for value in values):
        return None
    return Literal[tuple(values)]


def _union(key: str) -> Callable[..., Any]:
    def read(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
        options = schema[key] if isinstance(schema[key], list) else ()
        return _any_of([_type(option, root, depth) for option in options])

    return read


def _all_of(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    parts = schema["allOf"] if isinstance(schema["allOf"], list) else ()
    return _type(parts[0], root, depth) if len(parts) == 1 else None


def _typed(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return _any_of([_named(str(name), schema, root, depth) for name in names])


def _named(name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if name == "array":
        return list[_type(schema["items"], root, depth)] if isinstance(schema.get("items"), Mapping) else list  # type: ignore[misc]
    if name == "object":
        values = schema.get("additionalProperties")
        return dict[str, _type(values, root, depth)] if isinstance(values, Mapping) and values else dict  # type: ignore[misc]
    return _SCALARS.get(name, Any)


def _any_of(types: Sequence[Any]) -> Any:
    if not types:
        return None
    if Any in types:
        return Any
    return reduce(or_, types) if len(types) > 1 and all(isinstance(one, type) for one in types) else Union[tuple(types)]  # noqa: UP007 - the members are values here


_KEYWORDS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], int], Any]]] = {
    # The first keyword that says something decides.
    "$ref": _reference,
    "enum": _enum,
    "const": _enum,
    "anyOf": _union("anyOf"),
    "oneOf": _union("oneOf"),
    "allOf": _all_of,
    "type": _typed,
}
