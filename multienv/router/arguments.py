"""Decides whether the policy's arguments satisfy a tool's published JSON Schema, before they leave.

What cannot be judged here is the server's to judge: a schema that is malformed, refers to something it does not hold,
or takes too long. A schema comes from elsewhere, so nothing is ever fetched for it, and its patterns and branches are
evaluated within a budget.

Flow: `adapter` asks `ArgumentCheck.complaint` before each call; what it says goes to the policy instead of the call.
"""

from __future__ import annotations

import functools
import graphlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jsonschema import Draft3Validator, Draft202012Validator, validators
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]  # it has no types
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from multienv.router.complaints import no_json_number, put_in_words
from multienv.router.keywords import TooExpensiveError, charge, dialect_of, start_spending

_COST_OF_CHECK: Final = 20_000
_COST_OF_SCHEMA: Final = 100_000
_CHARACTERS_AT_NO_PRICE: Final = 10_000
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_PARAMETERS_ALONE: Final = ("$schema", "$id", "id", "$defs", "definitions", "properties")
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")


class ArgumentCheck:
    """Checks arguments against one tool's schema.

    The dialect is the one `$schema` names, 2020-12 where it names none that is known. Beyond the dialect,
    `"nullable": true` lets null pass. `format`, `unevaluatedProperties`, `unevaluatedItems` and a pattern that cannot
    be compiled or is not done in time are not judged.

    Args:
        schema: The JSON Schema of the arguments; an empty one accepts everything.

    Example:
        >>> check = ArgumentCheck({"properties": {"mode": {"enum": ["a", "b"]}}, "required": ["mode"]})
        >>> print(check.complaint({"mode": "x"}))
        argument 'mode': "x" is not accepted; accepted: one of "a", "b"
        >>> print(check.complaint({}))
        argument 'mode' is missing; it must be one of "a", "b"
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as the schema alone; the validator is made where it is used."""
        return (type(self), (self._schema,))

    @property
    def unusable(self) -> str | None:
        """Why the schema cannot be checked against, or None if it can."""
        return self._prepared if isinstance(self._prepared, str) else None

    def complaint(self, arguments: Mapping[str, Any]) -> str | None:
        """Say what is wrong with the arguments.

        Args:
            arguments: The arguments by their published names.

        Returns:
            One short sentence that names the parameter and what is accepted; None if the arguments satisfy the schema,
            or if that cannot be said here.
        """
        if isinstance(self._prepared, str):
            return None
        try:
            json.dumps(arguments := dict(arguments))  # what JSON cannot write is not ours to judge
            if found := no_json_number(arguments):
                return found
            errors = self._errors(arguments)
            return put_in_words(errors, self._schema) if errors else None
        except Exception:  # noqa: BLE001 - whatever a foreign schema makes fail here, the server decides
            return None

    def without_empty(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out what is null where the parameter is optional and does not accept null: it can mean nothing else.

        Example:
            >>> ArgumentCheck({"properties": {"x": {"type": "integer"}, "y": {}}}).without_empty({"x": None, "y": None})
            {'y': None}
        """
        required = self._schema.get("required")
        required = required if isinstance(required, list) else ()
        nulls = {name: None for name, value in arguments.items() if value is None and name not in required}
        refused = self._parameters_alone.refused(nulls) if nulls else ()
        return {name: value for name, value in arguments.items() if name not in refused}

    def refused(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the names of the arguments that the schema does not accept; none where that cannot be said here."""
        if isinstance(self._prepared, str):
            return frozenset()
        try:
            return frozenset(str(error.path[0]) for error in self._errors(dict(arguments)) if error.path)
        except Exception:  # noqa: BLE001 - whatever a foreign schema makes fail here, the server decides
            return frozenset()

    def _errors(self, arguments: dict[str, Any]) -> list[Any]:
        size = len(json.dumps(arguments))
        start_spending(_COST_OF_CHECK, price=1 + (size + self._size) // _CHARACTERS_AT_NO_PRICE)
        return list(self._prepared.iter_errors(arguments))

    @functools.cached_property
    def _parameters_alone(self) -> ArgumentCheck:
        """The check of each parameter by itself, without what must be given, and what together."""
        return ArgumentCheck({key: value for key, value in self._schema.items() if key in _PARAMETERS_ALONE})

    @functools.cached_property
    def _size(self) -> int:
        return len(json.dumps(self._schema))

    @functools.cached_property
    def _prepared(self) -> Any:
        """The validator, or the reason why there is none."""
        try:
            start_spending(_COST_OF_SCHEMA, price=1 + self._size // (10 * _CHARACTERS_AT_NO_PRICE))
            return _validator(dict(self._schema))
        except TooExpensiveError:
            return "the schema is too large to be checked against"
        except graphlib.CycleError:
            return "a reference of the schema leads back to itself"
        except _UnusableError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a foreign schema fails in more ways than can be listed
            return f"{type(error).__name__}: {error}"[:400]


class _UnusableError(Exception):
    """The schema cannot be checked against."""


def _validator(schema: dict[str, Any]) -> Any:
    stock = validators.validator_for(schema, default=Draft202012Validator)
    if stock is Draft3Validator:
        raise _UnusableError("draft 3 of JSON Schema is not supported")
    dialect = dialect_of(stock)
    # The meta-schema's own `format` is not judged: a pattern that only Python cannot compile spoils no other keyword.
    meta = dialect(stock.META_SCHEMA, registry=Registry())
    for error in meta.iter_errors(schema):
        where = "/".join(map(str, error.absolute_path)) or "its root"
        raise _UnusableError(f"malformed at {where}, where {error.validator!r} of the meta-schema fails")
    specification = specification_with(stock.META_SCHEMA["$schema"])
    resource = specification.create_resource(schema)
    base = resource.id() or ""
    # Crawled once, or each reference to an anchor would be a search through the whole schema.
    resolver = SPECIFICATIONS.with_resource(base, resource).crawl().resolver(base)
    _follow_references(schema, specification, resolver)
    return dialect(schema, registry=Registry(), _resolver=resolver)


def _follow_references(schema: Any, specification: Any, resolver: Any) -> None:
    """Raise unless every reference leads to a schema, and none back to itself without going into the value."""
    graph: dict[int, set[int]] = {}
    todo = [(schema, resolver)]
    while todo:
        contents, resolver = todo.pop()
        if not isinstance(contents, bool | dict):
            raise _UnusableError(f"a reference leads to {str(contents)[:40]!r}, which is no schema")
        if id(contents) in graph or isinstance(contents, bool):
            continue
        charge(contents)
        graph[id(contents)] = places = set()
        for keyword in _REFERENCES:
            if isinstance(reference := contents.get(keyword), str):
                found = _found(reference, resolver)
                places.add(id(found.contents))
                todo.append((found.contents, found.resolver))
        for keyword in _IN_PLACE:
            places.update(map(id, _parts(contents.get(keyword))))
        subschemas = specification.create_resource(contents).subresources()
        todo += [(part.contents, resolver.in_subresource(part)) for part in subschemas]
    graphlib.TopologicalSorter(graph).prepare()


def _found(reference: str, resolver: Any) -> Any:
    try:
        return resolver.lookup(reference)
    except Unresolvable:
        raise _UnusableError(f"the reference {reference[:200]!r} leads to nothing that the schema holds") from None


def _parts(value: Any) -> Iterable[Any]:
    """Return the schemas that may stand under a keyword: itself, those of a list, and those of a mapping of names."""
    if isinstance(value, list):
        return value
    return [value, *value.values()] if isinstance(value, dict) else ()
