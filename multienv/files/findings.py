"""Decides how what is wrong with a file is said: file, line, key, what was found there and what is accepted.

Flow: a declaration refuses a file's values → `explained` → one line for each finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from multienv.errors import SpecError
from multienv.files.document import Document
from multienv.files.places import Place
from multienv.specs import EnvSpec
from multienv.specs.declaration import sentence

T = TypeVar("T")
Declarations = Mapping[str, type[BaseModel]]
"""What a file may hold, by the name of its class."""

_OF_MAPPINGS: Final = ("model_type", "dataclass_type", "dict_type", "mapping_type")
_LEADING: Final = re.compile(r"[\w-]+(\.[\w-]+)*")
_QUOTED: Final = re.compile(r"'([^']+)'")


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a file.

    Attributes:
        place: Of the value that is wrong.
        declaration: Place of the declaration that the sentence speaks of.
        text: The sentence; it may begin with the key that it is about.
    """

    place: Place
    declaration: Place
    text: str

    def located(self, document: Document) -> str:
        """Return the sentence after file, line and place."""
        leading = _LEADING.match(self.text)
        key: Place = () if leading is None else tuple(leading.group().split("."))
        quoted: Place = tuple(_QUOTED.findall(self.text)[:1])
        places = ((*self.declaration, *key), (*self.place, *key), key, (*self.place, *quoted), self.place)
        line = document.line(next((place for place in places if place in document.lines and place), self.place))
        shown = self.declaration[:-1] if self.declaration[-1:] == key[:1] else self.declaration
        return ": ".join((f"{document.path}, line {line}", *([".".join(map(str, shown))] if shown else []), self.text))


def explained(document: Document, declarations: Declarations, declare: Callable[[], T]) -> T:
    """Declare something from a file.

    Args:
        document: The file.
        declarations: What it may hold.
        declare: Makes the declaration from the file's values.

    Returns:
        The declaration.

    Raises:
        SpecError: It cannot be right: each finding with its line.
    """
    try:
        return declare()
    except SpecError as error:
        if not isinstance(error.__context__, ValidationError):
            raise
        raise refusal(document, found_in(error.__context__, declarations)) from None


def refusal(document: Document, wrongs: Iterator[Wrong] | list[Wrong]) -> SpecError:
    """Return the error that says all that is wrong with a file, a line each."""
    return SpecError("\n".join(dict.fromkeys(wrong.located(document) for wrong in wrongs)))


def found_in(error: ValidationError, declarations: Declarations, around: Place = ()) -> Iterator[Wrong]:
    """Return what is wrong with a declaration, and with those inside it."""
    for problem in error.errors():
        place: Place = (*around, *problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, SpecError) and isinstance(cause.__context__, ValidationError):
            yield from found_in(cause.__context__, declarations, place)  # a declaration inside this one said so
            continue
        if problem["type"] == "extra_forbidden":
            declaration = place[:-1]
        else:
            declaration = place if isinstance(cause, SpecError) else around
        yield Wrong(place, declaration, in_words(problem, declarations[error.title]))


def in_words(problem: Any, declaration: type[BaseModel]) -> str:
    """Turn one of pydantic's findings into a sentence.

    Args:
        problem: One of `ValidationError.errors()`.
        declaration: What it was found in.
    """
    option, kind = str(problem["loc"][-1]) if problem["loc"] else "", problem["type"]
    if kind == "missing":
        return f"{option} is missing"
    if kind in _OF_MAPPINGS and isinstance(given := problem["input"], list | tuple | set):  # it may hold secrets
        return f"{option} is of type {type(given).__name__}; accepted are its keys, as in {option}: {{...}}"
    if kind in ("model_type", "dataclass_type"):
        return f"{option}={problem['input']!r}: accepted are its options, as in {option}: {{...}}"
    in_own_words = EnvSpec._sentence if declaration is EnvSpec else sentence  # noqa: SLF001 - secrets are not shown
    return in_own_words(problem, sorted(declaration.model_fields))
