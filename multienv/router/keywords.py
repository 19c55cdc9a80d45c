"""Decides how each keyword of JSON Schema is judged: by the library `jsonschema`, within a budget.

A schema comes from elsewhere and may be made to be slow. So every keyword is charged for, patterns are searched by
`regex` with a timeout, and what cannot be judged counts as satisfied, also where it stands under `not` or `oneOf`.

Flow: `arguments` takes a validator class from `dialect_of` and begins each check with `start_spending`.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import regex
from jsonschema import ValidationError, validators
from referencing import Registry

_PATTERNS_TIMEOUT_S: Final = 0.1
_LONGEST_PATTERN: Final = 2_000
_MOST_REPEATS: Final = 20_000
_MOST_COMPARISONS: Final = 4_000_000
_AMBIGUOUS: Final = re.compile(
    r"\\[hmGKLMNRX]"  # classes and anchors in `regex`, letters elsewhere
    r"|\[[^\]\[]*(?:\[|&&|\|\||--|~~)"  # sets of sets in Rust, and with it in pydantic; plain characters elsewhere
    r"|(?<!\\)(?<!\\[pPux])\{(?!\d)"  # a fuzzy match in `regex`, a plain brace elsewhere
)
"""What engines read in different ways: a server may accept what `regex` would refuse."""
_REPEATS: Final = re.compile(r"\{\s*(\d+)")
_TURNING: Final = frozenset({"not", "oneOf", "if", "contains"})
"""Keywords that can fail because a schema inside them is satisfied."""

_Judge = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class TooExpensiveError(Exception):
    """The budget of a check is spent."""


@dataclass(slots=True)
class _Spending:
    """What a check may still cost, and how much it could not judge.

    The price of a keyword grows with the texts that the validation library may print into each of its errors.
    """

    left: int
    price: int
    patterns_s: float = _PATTERNS_TIMEOUT_S
    num_unjudged: int = 0

    def charge(self, *values: Any) -> None:
        self.left -= self.price + sum(len(value) for value in values if isinstance(value, list | dict))
        if self.left < 0:
            raise TooExpensiveError


_spending: Final[ContextVar[_Spending]] = ContextVar("spending")


def start_spending(budget: int, *, price: int) -> None:
    """Begin a check.

    Args:
        budget: What all keywords together may cost.
        price: What one keyword costs, beside one for each entry of its value and of the instance.
    """
    _spending.set(_Spending(budget, price))


def charge(*values: Any) -> None:
    """Charge the check that runs for one keyword and the entries of the values.

    Raises:
        TooExpensiveError: The budget is spent.
    """
    _spending.get().charge(*values)


@functools.cache
def dialect_of(stock: Any) -> Any:
    """Return a validator class of the library whose keywords are bounded."""
    judges = stock.VALIDATORS | {name: judge for name, judge in _OWN.items() if name in stock.VALIDATORS}
    bounded = {name: _bounded(name, judge) for name, judge in judges.items()}
    made: Any = validators.extend(stock, bounded)  # type: ignore[no-untyped-call]  # its stubs leave this one out

    def evolve(self: Any, *, schema: Any, **changes: Any) -> Any:
        # The library's own would let a `$schema` further inside bring back its unbounded classes.
        return made(schema, registry=Registry(), **({"_resolver": self._resolver} | changes))

    made.evolve = evolve
    return made


def _bounded(name: str, judge: _Judge) -> _Judge:
    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        spending = _spending.get()
        spending.charge(value, instance)
        if instance is None and schema.get("nullable") is True:
            return ()
        if name not in _TURNING:
            return judge(validator, value, instance, schema)
        num_unjudged = spending.num_unjudged
        errors = list(judge(validator, value, instance, schema) or ())
        return errors if spending.num_unjudged == num_unjudged else ()

    return bounded


def _unjudged(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> None:
    _spending.get().num_unjudged += 1


def _pattern(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and _matches(value, instance) is False:
        yield ValidationError(value)


def _properties(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    for name, inside in value.items() if isinstance(instance, dict) else ():
        if inside is False and name in instance:
            # The library leaves the path out here.
            yield ValidationError("", path=(name,), instance=instance[name], schema=inside)
        elif name in instance:
            yield from validator.descend(instance[name], inside, path=name, schema_path=name)


def _pattern_properties(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    for name, item in instance.items() if isinstance(instance, dict) else ():
        charge(value)
        for pattern, inside in value.items():
            if _matches(pattern, name):
                yield from validator.descend(item, inside, path=name, schema_path=pattern)


def _additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    patterns = schema.get("patternProperties", {})
    for name, item in instance.items() if isinstance(instance, dict) else ():
        charge(patterns)
        if name in schema.get("properties", {}) or any(_matches(pattern, name) is not False for pattern in patterns):
            continue
        if value is False:
            yield ValidationError(name)
        else:
            yield from validator.descend(item, value, path=name)


def _required(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        yield from (ValidationError(name) for name in value if name not in instance)


def _dependent_required(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    for name in value if isinstance(instance, dict) else ():
        if name in instance:
            yield from (ValidationError(other) for other in value[name] if other not in instance)


def _unique_items(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if value and isinstance(instance, list) and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("twice")


def _multiple_of(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Judge the decimals as written, for 0.3 is a multiple of 0.1; a quotient that rounds to a whole one passes too."""
    if isinstance(instance, int | float) and not isinstance(instance, bool):
        exact = Fraction(repr(instance)) / Fraction(repr(value))
        is_rounded = isinstance(instance, float) and math.isclose(exact, round(exact), rel_tol=1e-12)
        if exact.denominator != 1 and not is_rounded:
            yield ValidationError("multiple")


def _hashable(value: Any) -> Any:
    """Return something that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return ("list", *map(_hashable, value))
    if isinstance(value, dict):
        return ("dict", frozenset((name, _hashable(item)) for name, item in value.items()))
    return ("bool", value) if isinstance(value, bool) else value


def _matches(pattern: str, text: str) -> bool | None:
    """Say whether a pattern is found in a text; None if that cannot be said in time."""
    spending = _spending.get()
    compiled = _compiled(pattern)
    # While `regex` compares plain characters it does not look at the clock.
    num_comparisons = (len(pattern) + _num_repeats(pattern)) * len(text)
    if compiled is None or spending.patterns_s <= 0 or num_comparisons > _MOST_COMPARISONS:
        spending.num_unjudged += 1
        return None
    started = time.perf_counter()
    try:
        return compiled.search(text, timeout=spending.patterns_s) is not None
    except (TimeoutError, MemoryError, RecursionError):
        spending.num_unjudged += 1
        return None
    finally:
        spending.patterns_s -= time.perf_counter() - started


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> regex.Pattern[str] | None:
    """Compile a pattern; None if it cannot be, is ambiguous, or is too large: `a{9}` is compiled as nine of `a`."""
    if len(pattern) > _LONGEST_PATTERN or _num_repeats(pattern) > _MOST_REPEATS or _AMBIGUOUS.search(pattern):
        return None
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, ValueError, OverflowError, KeyError, IndexError, TypeError):
        return None


def _num_repeats(pattern: str) -> int:
    """Return how often the innermost part of a pattern is repeated if every repeat is inside the one before."""
    return math.prod(max(1, int(number[:9])) for number in _REPEATS.findall(pattern[:_LONGEST_PATTERN]))


_OWN: Final[Mapping[str, _Judge]] = {
    "pattern": _pattern,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "required": _required,
    "dependentRequired": _dependent_required,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
    "unevaluatedProperties": _unjudged,
    "unevaluatedItems": _unjudged,
}
