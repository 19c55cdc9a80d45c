"""Decides how the tasks of a run are written down, found again in another catalogue, and told apart from what is there.

A task is known by its content, so that it is found again where the catalogue has given it another index.

Flow: `catalogue` → `Manifest` → a JSON file → `pairing`, `compare` → the pinned tasks, and in words what has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from multienv.errors import SpecError
from multienv.files import write_whole

VERSION: Final = 1
_FORMAT: Final = "multienv-tasks"
_MOST_NAMED: Final = 5
_ACCEPTED: Final = f"accepted: a file of format version {VERSION} that spec.write_manifest(path) wrote"

Contents: TypeAlias = Mapping[str, str]
"""From the place of each task, `split/index`, to the digest of its content."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PinnedTask(_Value):
    """One task of a run.

    Attributes:
        index: Its index in the split.
        task_id: `environment/split/index`.
        sha256: The digest of its content.
    """

    index: int
    task_id: str
    sha256: str


class PinnedTasks(_Value):
    """Tasks of one split, in the order of their rows.

    Attributes:
        split: Name of the split.
        tasks: The tasks.
    """

    split: str
    tasks: tuple[PinnedTask, ...]

    @property
    def contents(self) -> dict[str, str]:
        """The content of each task by place."""
        return {f"{self.split}/{task.index}": task.sha256 for task in self.tasks}


class PinnedEnvironment(_Value):
    """What a run knows of one environment.

    Attributes:
        target: Where it was, without keys and secrets.
        served_name: The environment on its server; empty for the server's default.
        training: The tasks it trained on; None for one that was only evaluated.
        evaluation: The tasks it was evaluated on; None for none.
    """

    target: str
    served_name: str = ""
    training: PinnedTasks | None = None
    evaluation: PinnedTasks | None = None


class Manifest(_Value):
    """The tasks of a run, by environment.

    Attributes:
        format: What kind of file it is.
        version: Version of the format.
        environments: The environments by name, in order.
    """

    format: Literal["multienv-tasks"] = _FORMAT
    version: Literal[1] = VERSION
    environments: Mapping[str, PinnedEnvironment]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Manifest:
        """Read a manifest.

        Raises:
            SpecError: There is no such file, or it is no manifest, or of another version.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # an editor may have put a byte order mark in front
        except UnicodeDecodeError:
            raise SpecError(f"manifest {str(path)!r} cannot be read (it is no text); {_ACCEPTED}") from None
        except (OSError, ValueError) as error:  # a ValueError: the path holds what no path can
            reason = getattr(error, "strerror", None) or error
            raise SpecError(f"manifest {str(path)!r} cannot be read ({reason}); {_ACCEPTED}") from None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise SpecError(f"{str(path)!r} is no manifest of tasks; {_ACCEPTED}")
        if found.get("version") != VERSION:
            raise SpecError(
                f"manifest {str(path)!r} has format version {found.get('version')!r}; {_ACCEPTED}. Write it anew with "
                "this version of multienv"
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "one of its strings"
            raise SpecError(f"manifest {str(path)!r} is damaged at {where}: {problem['msg']}; {_ACCEPTED}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it; whoever reads meanwhile finds the old file or the new one, never a part."""
        write_whole(Path(path), self.model_dump_json(indent=1) + "\n")


def digest(content: Any) -> str:
    """Return the SHA-256 of a JSON value, the same however its keys are ordered.

    Example:
        >>> digest({"a": 1, "b": [None]}) == digest({"b": [None], "a": 1})
        True
    """
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def pairing(old: Contents, new: Contents) -> dict[str, str]:
    """Find tasks again by their content: where they were, else at the first place that is left.

    Returns:
        From the old place of each task that is still there to its new one; no place is taken twice.

    Example:
        >>> pairing({"train/0": "a", "train/1": "b", "train/2": "c"}, {"train/0": "a", "train/1": "c", "train/2": "d"})
        {'train/0': 'train/0', 'train/2': 'train/1'}
    """
    stayed = {place for place, content in old.items() if new.get(place) == content}
    free: dict[str, list[str]] = {}
    for place, content in reversed(list(new.items())):
        if place not in stayed:
            free.setdefault(content, []).append(place)
    pairs: dict[str, str] = {}
    for place, content in old.items():
        if place in stayed:
            pairs[place] = place
        elif free.get(content):
            pairs[place] = free[content].pop()
    return pairs


@dataclass(frozen=True, slots=True)
class TaskChanges:
    """How the tasks of one environment differ from those written down. Places are written `split/index`.

    Attributes:
        added: Places that were not written down.
        removed: Places that are no more.
        changed: Places whose task is another one.
        moved: Old and new place of tasks that are the same.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        """True where something differs."""
        return bool(self.added or self.removed or self.changed or self.moved)

    def __str__(self) -> str:
        """Say what differs; `nothing` where nothing does."""
        groups = {
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "moved": [f"{old} → {new}" for old, new in self.moved],
        }
        return "; ".join(f"{len(places)} {word} ({_listed(places)})" for word, places in groups.items() if places) or (
            "nothing"
        )


def compare(old: Contents, new: Contents) -> TaskChanges:
    """Say how tasks differ from those written down."""
    pairs = pairing(old, new)
    gone = dict.fromkeys(place for place in old if place not in pairs)
    taken = set(pairs.values())
    come = dict.fromkeys(place for place in new if place not in taken)
    return TaskChanges(
        added=tuple(place for place in come if place not in gone),
        removed=tuple(place for place in gone if place not in come),
        changed=tuple(place for place in gone if place in come),
        moved=tuple((place, found) for place, found in pairs.items() if place != found),
    )


@dataclass(frozen=True, slots=True)
class ManifestChanges:
    """How a mixture differs from a manifest; false where it does not. As text, one line for each difference.

    Attributes:
        training: The changes in what is trained on, by environment.
        evaluation: The changes in what is evaluated on, by environment.
        added: Environments that were not written down.
        removed: Environments of the manifest that are not in the mixture.
    """

    training: Mapping[str, TaskChanges]
    evaluation: Mapping[str, TaskChanges]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True where something differs."""
        return bool(self.training or self.evaluation or self.added or self.removed)

    def __str__(self) -> str:
        """Say what differs, a line for each environment."""
        return "\n".join(self._lines()) or "nothing has changed"

    def _lines(self) -> Iterator[str]:
        for name in dict.fromkeys((*self.training, *self.evaluation)):
            if name in self.training:
                yield f"{name}: {self.training[name]}"
            if name in self.evaluation:
                yield f"{name}, evaluation: {self.evaluation[name]}"
        yield from (f"{name}: not in the manifest" for name in self.added)
        yield from (f"{name}: in the manifest, not in the mixture" for name in self.removed)


@dataclass(frozen=True, slots=True)
class PinnedChanges:
    """What has become of the tasks that a manifest pins.

    Attributes:
        path: Where it was read.
        changes: How what is there differs from it; of the environments that were asked.
        num_kept: How many of its training tasks are still there, by environment.
    """

    path: str
    changes: ManifestChanges
    num_kept: Mapping[str, int]


def compare_manifests(old: Manifest, new: Manifest) -> ManifestChanges:
    """Say how one manifest differs from another; where environments live is not compared, for servers move."""
    both = [name for name in old.environments if name in new.environments]
    changes: dict[str, dict[str, TaskChanges]] = {"training": {}, "evaluation": {}}
    for part, found in changes.items():
        for name in both:
            before, after = (_contents(getattr(side.environments[name], part)) for side in (old, new))
            if difference := compare(before, after):
                found[name] = difference
    return ManifestChanges(
        **changes,
        added=tuple(name for name in new.environments if name not in old.environments),
        removed=tuple(name for name in old.environments if name not in new.environments),
    )


def _contents(pinned: PinnedTasks | None) -> dict[str, str]:
    return {} if pinned is None else pinned.contents


def _listed(places: Sequence[str]) -> str:
    return ", ".join(places[:_MOST_NAMED]) + (", ..." if len(places) > _MOST_NAMED else "")
