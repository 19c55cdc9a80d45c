"""Decides how a file of declarations is read: TOML by its suffix, else YAML, with the line of everything in it.

Flow: `runfile`, `simulate` → `Document.read` → the values are checked → `Document.line` for what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from multienv.errors import SpecError
from multienv.files.places import Place
from multienv.files.toml_lines import read_toml
from multienv.files.yaml_lines import read_yaml


@dataclass(frozen=True)
class Document:
    """A TOML file (`.toml`), or a YAML file.

    Attributes:
        path: The file.
        values: What it says, in plain values.
        find_lines: Finds the lines, which only what is wrong with a file needs.
    """

    path: Path
    values: Any
    find_lines: Callable[[], dict[Place, int]]

    @cached_property
    def lines(self) -> dict[Place, int]:
        """From the place of a value to its line, from 1; that of a key where the value has one."""
        return self.find_lines()

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file.

        Raises:
            SpecError: It cannot be read, is no such file, or says one thing twice.
        """
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise SpecError(f"{path} cannot be read: {error.strerror}; give the path of a YAML or TOML file") from None
        read = read_toml if path.suffix.lower() == ".toml" else read_yaml
        return cls(path, *read(path, raw))

    def check_mapping(self, accepted: Iterable[str]) -> None:
        """Check that the file holds keys.

        Args:
            accepted: The keys that it may hold, for the error.

        Raises:
            SpecError: It is empty, or says something else.
        """
        if not isinstance(self.values, Mapping):
            found = "is empty" if self.values is None else f"says {self.values!r:.40}"
            raise SpecError(f"{self.path}: the file {found}; accepted: the keys {', '.join(accepted)}")

    def line(self, place: Sequence[str | int]) -> int:
        """Return the line of a place, or of the nearest one around it that stands in the file."""
        around = tuple(place)
        while around and around not in self.lines:
            around = around[:-1]
        return self.lines.get(around, 1)

    def overlaid(self, section: str) -> Document:
        """Return the document as it is with one of its sections laid over the rest.

        Args:
            section: A key at the top. A mapping in it is laid over the mapping of that name, key by key; any other
                value takes the place of what is there; None takes it away.
        """
        over = self.values.get(section) or {}
        values = _laid_over({key: value for key, value in self.values.items() if key != section}, over)

        def moved() -> dict[Place, int]:
            inner = {place[1:]: line for place, line in self.lines.items() if len(place) > 1 and place[0] == section}
            return {**self.lines, **inner}

        return Document(self.path, values, moved)


def _laid_over(under: Any, over: Any) -> Any:
    if not isinstance(over, Mapping):
        return over
    under = under if isinstance(under, Mapping) else {}
    merged = {**under, **{key: _laid_over(under.get(key), value) for key, value in over.items()}}
    return {key: value for key, value in merged.items() if key not in over or over[key] is not None}
