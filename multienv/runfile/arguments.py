"""Decides how the fields of TRL's own dataclasses are checked before TRL sees them: names, types, and what TRL refuses.

Flow: `RunFile` → `made_of` → `GRPOConfig`, `ModelConfig`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from multienv.errors import nearest
from multienv.files import Document, Wrong, refusal

T = TypeVar("T")
_PLAIN = (bool, int, float, str, list)


def made_of(cls: type[T], section: str, values: Mapping[str, Any], document: Document, **more: Any) -> T:
    """Make one of TRL's dataclasses from a section of a file.

    Args:
        cls: The dataclass.
        section: The section's name.
        values: What it says, by the dataclass's own field names.
        document: The file.
        **more: Values of the caller's own, which win.

    Raises:
        SpecError: A field is unknown or of the wrong type, or TRL refuses the values: each finding with its line.
    """
    hints = typing.get_type_hints(cls)
    accepted = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]  # TRL's classes
    wrongs: list[Wrong] = []
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key in accepted:
            checked[key] = _checked(hints[key], section, key, value, wrongs)
        else:
            known = nearest(key, accepted) or f"; accepted: the fields of {cls.__name__}"
            wrongs.append(Wrong((section, key), (section,), f"unknown option {key!r}{known}"))
    if wrongs:
        raise refusal(document, wrongs)
    try:
        return cls(**{**checked, **more})
    except Exception as error:  # noqa: BLE001 - TRL divides, opens files and asks attributes of what it was given
        raise refused(section, values, document, cls.__name__, error) from None


def refused(section: str, values: Mapping[str, Any], document: Document, who: str, error: Exception) -> Exception:
    """Return the error that says, with a line, that somebody refuses what a section says.

    Args:
        section: The section's name.
        values: What it says.
        document: The file.
        who: Who refuses it.
        error: How.
    """
    said = str(error).strip()
    kind = "" if isinstance(error, ValueError | ImportError) else f"{type(error).__name__}: "
    text = f"{who} refuses it: {kind}{said}"
    return refusal(document, [Wrong(_concerned(section, values, text), (section,), text)])


def _checked(hint: Any, section: str, key: str, value: Any, wrongs: list[Wrong]) -> Any:
    try:
        valid = TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        problems = dict.fromkeys(_lower(problem["msg"]) for problem in error.errors())
        wrongs.append(Wrong((section, key), (section,), f"{key}={value!r:.80}: {', or '.join(problems)}"))
        return value
    return valid if isinstance(valid, _PLAIN) else value


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _concerned(section: str, values: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """Return the place of the field that a refusal names, else that of the section."""
    return next(((section, key) for key in _longest_first(values) if key in text), (section,))


def _longest_first(values: Mapping[str, Any]) -> Iterator[str]:
    yield from sorted(values, key=len, reverse=True)
