"""Decides what arguments a tool is called with where nobody has any in mind: some that its published schema allows.

Flow: a benchmark → `Arguments.value`, once per call.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Any, Final

_NAMES: Final = re.compile(r"\b(?=[\w-]*[\d_])(?=[\w-]*[A-Za-z])[\w-]+\b")  # `F0001`, `13L`, `south_flow`
_DEEPEST: Final = 6


class Arguments:
    """Arguments that a JSON Schema allows, the same for the same seed and text; keywords rare in tools are not read.

    Args:
        root: The schema, for its `$defs`.
        seed: What the choices depend on.
        said: What the environment last said: names that occur in it are used where a schema leaves a string open.
    """

    def __init__(self, root: Mapping[str, Any], seed: str, said: str) -> None:
        self._root, self._random, self._said = root, random.Random(seed), said

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that the schema allows; past some depth the shortest, for schemas may refer to themselves."""
        schema = self._merged(schema if isinstance(schema, Mapping) else {})  # `true` allows anything
        is_deep = depth >= _DEEPEST
        if "const" in schema or "enum" in schema:
            return self._random.choice(schema.get("enum") or [schema["const"]])
        if options := schema.get("anyOf") or schema.get("oneOf"):
            short = [option for option in options if not is_deep or option.get("type") in ("null", "string")]
            return self.value(self._random.choice(short or options), depth + 1)
        if "default" in schema and (is_deep or self._random.random() < 0.25):
            return schema["default"]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        return self._typed(self._random.choice(kind) if isinstance(kind, list) else kind, schema, depth)

    def _typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        low, high = _bounds(schema, 1 if kind == "integer" else 0)
        values: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(schema, depth),
            "array": lambda: self._array(schema, depth),
            "string": lambda: self._string(schema),
            "integer": lambda: self._random.randint(math.ceil(low), math.floor(high)),
            "number": lambda: low + (high - low) * self._random.randint(1, 9) / 10,
            "boolean": lambda: self._random.random() < 0.5,
            "null": lambda: None,
        }
        return values[kind]()

    def _merged(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put what `$ref` and `allOf` refer to beside the schema's own keywords."""
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            path = filter(None, schema["$ref"].removeprefix("#").split("/"))
            parts.append(reduce(lambda found, part: found[part], path, self._root))
        own = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        return {key: value for part in parts for key, value in self._merged(part).items()} | own

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self.value(of, depth + 1)
            for name, of in schema.get("properties", {}).items()
            if name in required or (depth < _DEEPEST and self._random.random() < 0.75)
        }

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        if "prefixItems" in schema:  # a tuple of pydantic's; nothing may follow
            return [self.value(item, depth + 1) for item in schema["prefixItems"]]
        least = schema.get("minItems", 0)
        most = least if depth >= _DEEPEST else min(schema.get("maxItems", least + 2), least + 2)
        return [self.value(schema.get("items", {}), depth + 1) for _ in range(self._random.randint(least, most))]

    def _string(self, schema: Mapping[str, Any]) -> str:
        """Return a name from the description, or else from what was said, that fits; or else any text that fits."""
        pattern, least, most = schema.get("pattern", ""), schema.get("minLength", 0), schema.get("maxLength", 1000)
        names: list[str] = _NAMES.findall(schema.get("description", "")) or _NAMES.findall(self._said)
        fitting = sorted({name for name in names if least <= len(name) <= most and re.search(pattern, name)})
        if fitting:
            return self._random.choice(fitting)
        return matching(pattern, least, most) if pattern else "text".ljust(least, "x")[:most]


@cache
def matching(pattern: str, least: int, most: int) -> str:
    """Return the simplest text that matches."""
    from hypothesis import find, settings, strategies

    texts, quiet = strategies.from_regex(pattern), settings(database=None, deadline=None)
    return find(texts, lambda text: least <= len(text) <= most, settings=quiet, random=random.Random(0))


def _bounds(schema: Mapping[str, Any], gap: int) -> tuple[float, float]:
    """Return the least and the greatest allowed number: small positive ones where the schema has no bounds."""
    lows = [schema[key] + more for key, more in (("minimum", 0), ("exclusiveMinimum", gap)) if key in schema]
    highs = [schema[key] - less for key, less in (("maximum", 0), ("exclusiveMaximum", gap)) if key in schema]
    low = max(lows) if lows else min([1, *(high - 4 for high in highs)])
    return low, min(highs) if highs else low + 4
