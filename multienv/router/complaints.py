"""Decides what the policy is told about arguments that a schema does not accept: which one, and what is accepted.

Flow: `arguments` hands over the errors of the validation → one sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jsonschema import ValidationError

from multienv.errors import nearest, nearest_name

_LONGEST: Final = 400
_MOST_SAID: Final = 3
_LONGEST_ACCEPTED: Final = 200
_LONGEST_VALUE: Final = 60
_LONGEST_NAME: Final = 60
_MOST_NAMED: Final = 8
_MOST_COMPARED: Final = 100
_DEEPEST: Final = 3
_PLAIN: Final = re.compile(r"[\w-]+")

_RANKS: Final = {"additionalProperties": 0, "required": 1}
_NOUNS: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_LIMITS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matching {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
}
_SAID: Final = {
    *_LIMITS,
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "uniqueItems",
    "not",
    "contains",
    "properties",
    None,
}


def put_in_words(errors: Sequence[ValidationError], root: Any) -> str:
    """Say the most useful of the errors of one validation, up to three, each in a short sentence.

    An error nearer to the top of the arguments comes first; beside each other, an unknown name comes before a missing
    one. An unknown name that is a missing one misspelt is told with it.

    Args:
        errors: The errors, at least one.
        root: The whole schema, for its `$defs`.

    Returns:
        At most 400 characters.
    """
    problems = _problems(errors)
    text = ""
    for num_said, error in enumerate(problems[:_MOST_SAID]):
        sentence = _sentence(_closest(error), root)
        said = f"{text}. Also: {sentence}" if text else sentence
        room = _LONGEST - len(_more(len(problems) - num_said - 1))
        if text and len(said) > room:
            return text + _more(len(problems) - num_said)
        text = _short(said, room)
    return text + _more(len(problems) - _MOST_SAID)


def _more(num_others: int) -> str:
    return f" (and {num_others} more problem{'s' if num_others > 1 else ''})" if num_others > 0 else ""


def no_json_number(arguments: Mapping[str, Any]) -> str | None:
    """Say which argument is or holds a number that JSON has no way to write, or return None."""
    todo: list[tuple[tuple[Any, ...], Any]] = [((), arguments)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return _short(
                f"{_argument(path)}: {json.dumps(value)} is no JSON number; accepted: a finite number", _LONGEST
            )
        if isinstance(value, Mapping):
            todo.extend(((*path, name), item) for name, item in value.items())
        elif isinstance(value, list | tuple):
            todo.extend(((*path, index), item) for index, item in enumerate(value))
    return None


def _problems(errors: Iterable[ValidationError]) -> list[ValidationError]:
    """Return the errors to speak about, the most useful first: one per place, or one per unknown or missing name."""
    problems: dict[tuple[Any, ...], ValidationError] = {}
    misspelt: set[tuple[Any, ...]] = set()
    for error in sorted(errors, key=_rank):
        named = error.message if error.validator in _RANKS else None
        problems.setdefault((*error.path, (error.validator, named) if named is not None else None), error)
        if error.validator == "required" and len(misspelt) < _MOST_NAMED:
            misspelt.add((*error.path, ("additionalProperties", _misspelt(error))))
    return [error for key, error in problems.items() if key not in misspelt]


def _rank(error: ValidationError) -> tuple[int, int]:
    return len(error.path), _RANKS.get(str(error.validator), 2)


def _misspelt(error: ValidationError) -> str | None:
    """Return the given name that is no parameter and probably means the missing one, if there is one."""
    schema: Any = error.schema
    if "patternProperties" in schema or isinstance(schema.get("additionalProperties"), Mapping):
        return None  # any name may be meant as it is
    unknown = [name for name in error.instance if name not in schema.get("properties", {})]  # type: ignore[union-attr]  # an object
    return nearest_name(
        error.message[:_LONGEST_NAME], [name for name in unknown[:_MOST_COMPARED] if len(name) <= _LONGEST_NAME]
    )


def _closest(error: ValidationError) -> ValidationError:
    """Go on to the error inside the one alternative that was probably meant, if one stands out."""
    while error.context:
        alternatives: dict[Any, list[ValidationError]] = {}
        for inside in error.context:
            alternatives.setdefault(inside.schema_path[0], []).append(inside)
        near = [found for found in alternatives.values() if not any(map(_is_another_kind, found))]
        if len(near) != 1:
            break
        error = min(near[0], key=_rank)
    return error


def _is_another_kind(error: ValidationError) -> bool:
    """Tell that a value was not meant for an alternative: it is of another type, or has another mark."""
    depth = len(error.path)
    return depth == 0 if error.validator == "type" else error.validator in {"const", "enum"} and depth <= 1


def _sentence(error: ValidationError, root: Any) -> str:
    path = tuple(error.absolute_path)
    if error.validator == "required":
        properties = error.schema.get("properties", {})  # type: ignore[union-attr]  # only an object requires
        accepted = _accepted(properties.get(error.message), root, _DEEPEST)
        must = f"; it must be {_short(accepted, _LONGEST_ACCEPTED)}" if accepted else ""
        wrong = _misspelt(error)
        hint = f" ('{_name(wrong)}' is {'not known there' if path else 'not a parameter'})" if wrong is not None else ""
        return f"{_argument((*path, error.message))} is missing{must}{hint}"
    if error.validator == "dependentRequired":
        return f"{_argument((*path, error.message))} is missing; another argument that is given needs it"
    if error.validator == "additionalProperties":
        return _unknown(error, path)
    accepted = _accepted(error.schema, root, _DEEPEST)
    if error.validator == "oneOf" and not error.context:
        accepted = f"exactly one of: {accepted}"
    if error.validator not in _SAID:
        accepted = ", ".join(filter(None, (accepted, f"what {error.validator!r} of its schema says")))
    what = f"{_argument(path)}: {_json(error.instance)}" if path else "what is given as the arguments"
    if _is_name(error):
        what = f"the name {_json(error.instance)}" + (f" in {_argument(path)}" if path else " of an argument")
    return f"{what} is not accepted" + (f"; accepted: {_short(accepted, _LONGEST_ACCEPTED)}" if accepted else "")


def _unknown(error: ValidationError, path: tuple[Any, ...]) -> str:
    properties = error.schema.get("properties", {})  # type: ignore[union-attr]  # only an object has unknown names
    known = [name for name in list(properties)[:_MOST_COMPARED] if len(name) <= _LONGEST_NAME]
    meant = nearest(error.message, known) if len(error.message) <= _LONGEST_NAME else ""
    others = len(properties) - _MOST_NAMED
    accepted = _short(", ".join(map(_name, list(properties)[:_MOST_NAMED])), _LONGEST_ACCEPTED)
    accepted += f" and {others} more" if others > 0 else ""
    patterns = error.schema.get("patternProperties")  # type: ignore[union-attr]  # see above
    if patterns:
        accepted = f"{accepted}{', ' if accepted else ''}names matching {' or '.join(map(_json, list(patterns)[:2]))}"
    return f"unknown {_argument((*path, error.message))}{meant}; accepted: {accepted or 'none'}"


def _is_name(error: ValidationError) -> bool:
    """Tell that what failed is the name of an entry; a parameter may be called `propertyNames` too."""
    keywords = list(error.absolute_schema_path)
    places = [place for place, keyword in enumerate(keywords) if keyword == "propertyNames"]
    return any(place == 0 or keywords[place - 1] != "properties" for place in places)


def _accepted(schema: Any, root: Any, depth: int) -> str:
    """Describe what a schema accepts, or return an empty string if that is anything, or too much to say."""
    if schema is False:
        return "nothing"
    if not isinstance(schema, Mapping) or depth == 0:
        return ""
    if isinstance(schema.get("$ref"), str):
        return _accepted(_referred(schema["$ref"], root), root, depth - 1)
    words = [_values(schema) or _typed(schema, root, depth), *_limits(schema)]
    for keyword, joint in (("anyOf", " or "), ("oneOf", " or "), ("allOf", ", ")):
        options = schema[keyword] if isinstance(schema.get(keyword), list) else []
        said = dict.fromkeys(_together(_accepted(option, root, depth - 1)) for option in options[:_MOST_NAMED])
        others = ["..."] if len(options) > _MOST_NAMED else []
        words.append(joint.join([*filter(None, said), *others]))
    for keyword, introduction in (("not", "anything but"), ("contains", "with an item that is")):
        inside = _accepted(schema.get(keyword), root, depth - 1)
        words.append(f"{introduction} {inside}" if inside else "")
    return ", ".join(filter(None, words))


def _together(words: str) -> str:
    return f"({words})" if ", " in words else words


def _values(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return f"exactly {_json(schema['const'])}"
    values = schema.get("enum")
    if not isinstance(values, list):
        return ""
    others = len(values) - _MOST_NAMED
    return f"one of {', '.join(map(_json, values[:_MOST_NAMED]))}" + (f" and {others} more" if others > 0 else "")


def _typed(schema: Mapping[str, Any], root: Any, depth: int) -> str:
    types = schema.get("type", ())
    words = " or ".join(_NOUNS.get(name, str(name)) for name in ([types] if isinstance(types, str) else types))
    items = _accepted(schema.get("items"), root, depth - 1) if "array" in types and schema.get("items") else ""
    required = schema.get("required") if "object" in types else None
    if isinstance(required, list) and required:
        words += f" with {', '.join(_entry(name, schema) for name in required[:_MOST_NAMED])}"
    return f"{words} (each item {items})" if items else words


def _entry(name: str, schema: Mapping[str, Any]) -> str:
    """Name an entry of an object, with its value if there is but one, as in the alternatives of a tagged union."""
    entry = schema.get("properties", {}).get(name)
    return f"{_name(name)} {_json(entry['const'])}" if isinstance(entry, Mapping) and "const" in entry else _name(name)


def _limits(schema: Mapping[str, Any]) -> list[str]:
    """Describe bounds; in draft 4 an exclusive one is a boolean beside the bound."""
    words = []
    for keyword, limit in _LIMITS.items():
        value = schema.get(keyword)
        if value is None or isinstance(value, bool):
            continue
        exclusive = "exclusive" + keyword.capitalize()
        words.append((_LIMITS[exclusive] if schema.get(exclusive) is True else limit).format(_json(value)))
    return [*words, *(["no item twice"] if schema.get("uniqueItems") is True else [])]


def _referred(reference: str, root: Any) -> Any:
    """Follow `#/$defs/Name`; anything else is not followed."""
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _argument(path: Sequence[Any]) -> str:
    if not path:
        return "an argument"
    steps = [_name(str(path[0]))]
    steps += [
        f"[{_json(step)}]" if isinstance(step, int) or not _PLAIN.fullmatch(step) else f".{_name(step)}"
        for step in path[1:]
    ]
    text = "".join(steps)
    half = _LONGEST_NAME
    return f"argument '{text if len(text) <= 2 * half else f'{text[:half]}...{text[-half:]}'}'"


def _name(name: str) -> str:
    """Show a name on one line."""
    return _short(name if name.isprintable() else json.dumps(name), _LONGEST_NAME)


def _json(value: Any) -> str:
    return _short(json.dumps(value, ensure_ascii=False), _LONGEST_VALUE)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
