"""Decides how a simulation is read from a file, and how a finding in it is said: file, line, key, what is accepted.

Flow: `multienv simulate FILE` → `read_simulation` → `SimulationSpec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from multienv.errors import SpecError
from multienv.simulate.declaration import SimulationSpec, in_words
from multienv.simulate.located import Document, Place

_LEADING: Final = re.compile(r"[\w-]+(\.[\w-]+)*")
_QUOTED: Final = re.compile(r"'([^']+)'")


def read_simulation(path: str | PathLike[str]) -> SimulationSpec:
    """Read a simulation from a YAML file.

    Args:
        path: The file.

    Raises:
        SpecError: It cannot be read, or says something that cannot be right: each finding with its line.
    """
    document = Document.read(Path(path))
    if not isinstance(document.values, Mapping):
        accepted = ", ".join(SimulationSpec.model_fields)
        raise SpecError(f"{path}: the file says {document.values!r:.40}; accepted: the keys {accepted}")
    try:
        return SimulationSpec(**document.values)
    except SpecError as error:
        if not isinstance(error.__context__, ValidationError):
            raise
        found = dict.fromkeys(finding.located(document) for finding in _findings(error.__context__))
        raise SpecError("\n".join(found)) from None


@dataclass(frozen=True, slots=True)
class _Finding:
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


def _findings(error: ValidationError, around: Place = ()) -> Iterator[_Finding]:
    """Return what is wrong with a declaration, and with those inside it."""
    for problem in error.errors():
        place: Place = (*around, *problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, SpecError) and isinstance(cause.__context__, ValidationError):
            yield from _findings(cause.__context__, place)  # a declaration inside this one said so
            continue
        if problem["type"] == "extra_forbidden":
            declaration = place[:-1]
        else:
            declaration = place if isinstance(cause, SpecError) else around
        yield _Finding(place, declaration, in_words(problem, error.title))
