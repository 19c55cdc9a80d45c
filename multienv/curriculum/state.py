"""Decides how strictly a saved state is read: every key it should have, of its type, and no other.

Flow: each `load_state_dict` of this room → `read`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from multienv.errors import CheckpointError

_LIMIT: Final = 2**53

T = TypeVar("T")
Check = Callable[[Any], bool]


def read(state: Any, owner: str, **checks: Check) -> dict[str, Any]:
    """Check a state key by key.

    Args:
        state: What was saved.
        owner: Whose state it is to be, for the error.
        checks: From each key to the check of its value.

    Returns:
        A copy.

    Raises:
        CheckpointError: A key is missing, unknown, or has a value of another form.

    Example:
        >>> read({"stage": 2}, "stages", stage=is_count)
        {'stage': 2}
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(f"the state of {owner} is of type {type(state).__name__}; accepted: a mapping")
    if state.keys() != checks.keys():
        missing, unknown = sorted(checks.keys() - state.keys()), sorted(map(str, state.keys() - checks.keys()))
        raise CheckpointError(
            f"the state of {owner} does not fit: missing {missing}, unknown {unknown}; it was saved by another version "
            "or is something else. Resume from a checkpoint of this version, or start anew"
        )
    for key, check in checks.items():
        if not check(state[key]):
            raise CheckpointError(f"the state of {owner} has {key}={state[key]!r:.200}, which it cannot have")
    return dict(state)


def is_list(value: Any) -> bool:
    """Tell whether a value is a list."""
    return isinstance(value, list)


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number from 0, and one that a float holds exactly."""
    return type(value) is int and 0 <= value < _LIMIT


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond any float
        return False


def is_amount(value: Any) -> bool:
    """Tell whether a value is a finite number from 0."""
    return is_number(value) and value >= 0


def is_share(value: Any) -> bool:
    """Tell whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def mapping_of(check: Check) -> Check:
    """Return the check of a mapping from names to values that pass a check."""
    return lambda value: (
        isinstance(value, Mapping) and all(isinstance(name, str) for name in value) and all(map(check, value.values()))
    )


def renamed(values: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Keep the values of the environments named, under their new names."""
    return {new: values[old] for old, new in names.items() if old in values}
