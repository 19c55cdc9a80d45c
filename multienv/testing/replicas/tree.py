"""Decides what a replica's file system is: a dict of texts by path, of bounded size, that no other session sees.

Flow: a session's tools and its shell read and write one `FileTree`.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator, Mapping
from typing import Final

MAX_CHARS: Final = 20_000
"""Most characters in all paths and texts together; the policy is a stranger, and memory is shared."""

_MAX_PATH_CHARS: Final = 1_000
_NOT_FOUND: Final = "No such file or directory"


class TreeError(Exception):
    """What was asked of the tree cannot be done; the message is for the policy."""


class FileTree:
    """Text files and folders in memory.

    Args:
        folder: The current folder; it exists.
        files: What is there at the beginning, text by absolute path.
    """

    def __init__(self, folder: str, files: Mapping[str, str]) -> None:
        self.folder = folder
        self.files: dict[str, str] = {}
        self.folders = {"/"}
        self.make_folder(folder)
        for path, text in files.items():
            self.write(path, text)

    def path(self, path: str) -> str:
        """Return the absolute, normal form of a path."""
        absolute = posixpath.normpath(posixpath.join(self.folder, path))
        if len(absolute) > _MAX_PATH_CHARS:
            raise TreeError(f"{path[:20]}...: File name too long")
        return "/" + absolute.lstrip("/")  # POSIX lets two slashes at the beginning stand

    def read(self, path: str) -> str:
        """Return a file's text."""
        full = self.path(path)
        if full in self.folders:
            raise TreeError(f"{path}: Is a directory")
        if full not in self.files:
            raise TreeError(f"{path}: {_NOT_FOUND}")
        return self.files[full]

    def write(self, path: str, text: str, *, makes_folders: bool = True) -> None:
        """Write a file's whole text."""
        full = self.path(path)
        if full in self.folders:
            raise TreeError(f"{path}: Is a directory")
        parent = posixpath.dirname(full)
        if parent not in self.folders and not makes_folders:
            raise TreeError(f"{path}: {_NOT_FOUND}")
        self._check_room(len(full) + len(text))
        self.make_folder(parent)
        self.files[full] = text

    def replace(self, path: str, old: str, new: str, *, replaces_all: bool = False) -> None:
        """Replace a string in a file; without `replaces_all` it must be there exactly once."""
        text = self.read(path)
        count = text.count(old) if old else 0
        if not count or (count > 1 and not replaces_all):
            raise TreeError(f"{path}: {old!r} is there {count} times")
        self.write(path, text.replace(old, new))

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        full = self.path(path)
        parents = [full, *_parents(full)]
        if any(parent in self.files for parent in parents):
            raise TreeError(f"{path}: Not a directory")
        missing = [parent for parent in parents if parent not in self.folders]
        self._check_room(sum(map(len, missing)))
        self.folders.update(missing)

    def remove(self, path: str, *, is_recursive: bool = False) -> None:
        """Remove a file, or a folder with all that is in it."""
        full = self.path(path)
        if full in self.folders and not is_recursive:
            raise TreeError(f"{path}: Is a directory")
        if full not in self.folders and full not in self.files:
            raise TreeError(f"{path}: {_NOT_FOUND}")
        kept = {"/", self.folder, *_parents(self.folder)}
        self.files = {name: text for name, text in self.files.items() if not _is_within(name, full)}
        self.folders = {name for name in self.folders if name in kept or not _is_within(name, full)}

    def listing(self, path: str) -> list[str]:
        """Return the names in a folder, or the path itself where it is a file."""
        full = self.path(path)
        if full in self.files:
            return [path]
        if full not in self.folders:
            raise TreeError(f"{path}: {_NOT_FOUND}")
        inside = {name for name in (*self.files, *self.folders) if name != "/" and posixpath.dirname(name) == full}
        return sorted(map(posixpath.basename, inside))

    def under(self, path: str, pattern: str = "*") -> Iterator[tuple[str, str]]:
        """Yield path and text of the files at or under a path whose name, or path from there, matches a pattern."""
        full = self.path(path)
        for name, text in sorted(self.files.items()):
            forms = (posixpath.basename(name), posixpath.relpath(name, full), name)
            if _is_within(name, full) and any(fnmatch.fnmatchcase(form, pattern) for form in forms):
                yield name, text

    def _check_room(self, num_chars: int) -> None:
        used = sum(map(len, (*self.files, *self.files.values(), *self.folders)))
        if used + num_chars > MAX_CHARS:
            raise TreeError("No space left on device")


def _parents(full: str) -> list[str]:
    parents = []
    while full != "/":
        full = posixpath.dirname(full)
        parents.append(full)
    return parents


def _is_within(name: str, folder: str) -> bool:
    return folder in ("/", name) or name.startswith(f"{folder}/")
