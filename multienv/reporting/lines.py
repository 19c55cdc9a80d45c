"""Decides how one episode is written as a line of JSON, and read from it: what is cut, and what is hidden.

Flow: `record` writes `to_line`; `read` takes lines apart with `from_line`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from multienv.errors import RecordError
from multienv.router.presentation import shortened
from multienv.sessions.keys import masked
from multienv.types import Episode, EpisodeStatus, JSONObject, Step

VERSION: Final = 1
MAX_TEXT_CHARS: Final = 2_000
"""Most characters of one text in the record; head and tail are kept."""
_MOST_LEVELS: Final = 64
_NUMBERS: Final = frozenset({"reward", "duration_s", "open_s", "started_at"})
_NAMES: Final = frozenset({"environment", "task_id", "status"})
"""What the run itself gives names to: never hidden, never cut."""
_T = TypeVar("_T", Step, Episode)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a record.

    Attributes:
        run: Which run wrote it; the same before and after a resume.
        row: The rollout's place among those that its rank played at this training step.
        episode: The episode, its long texts cut.
    """

    run: str
    row: int
    episode: Episode


def to_line(line: Line, secrets: Collection[str] = ()) -> bytes:
    """Write a line, its end included.

    Args:
        line: What to write.
        secrets: Values that must not be in it.
    """
    episode = line.episode
    written = {"version": VERSION, "run": line.run, "row": line.row} | _plain_fields(episode, secrets)
    written["steps"] = [_plain_fields(step, secrets) for step in episode.steps]
    return json.dumps(written, allow_nan=False).encode() + b"\n"


def from_line(raw: bytes) -> Line:
    """Read a line; what a field of it is not there for gets that field's default.

    Raises:
        ValueError: It is not a line of a record.
        RecordError: A later version of this library wrote it.
    """
    read: Any = json.loads(raw)
    if not isinstance(read, dict) or not isinstance(version := read.get("version"), int):
        raise ValueError("it is no JSON object with a version")  # noqa: TRY004 - about a text, not about an argument
    if version > VERSION:
        raise RecordError(f"version {version} of a record; accepted: up to {VERSION}; use a later version of multienv")
    try:
        steps = tuple(_restored(Step, step) for step in read["steps"])
        whole = read | {
            "status": EpisodeStatus(read["status"]),
            "steps": steps,
            "completion": tuple(read["completion"]),
        }
        return Line(str(read["run"]), int(read["row"]), _restored(Episode, whole))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no episode: {error!r}") from None


def plain(value: Any, secrets: Collection[str] = (), max_chars: int | None = None, *, _level: int = 0) -> Any:
    """Return a value as JSON can say it.

    Args:
        value: Anything; a chat message, as a rule.
        secrets: Values that must not be in it.
        max_chars: Most characters of one text; None for no limit.

    Returns:
        Dicts with string keys, lists, strings, finite numbers, booleans and None. `[image]` stands for a picture, the
        word for a number that is not finite, and `str` of it for anything else.

    Example:
        >>> plain({"n": float("nan"), "key": ("sk-abc",)}, secrets={"sk-abc"})
        {'n': 'nan', 'key': ['[secret]']}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        text = _text(value)
        shown = masked(text, secrets)
        is_number = text[0] != "[" and (isinstance(value, int) or math.isfinite(value))
        return value if is_number and shown == text else shown
    if isinstance(value, Mapping | list | tuple):
        return _plain_items(value, secrets, max_chars, _level + 1)
    if type(value).__module__.startswith("PIL."):
        return "[image]"
    return shortened(masked(_text(value), secrets), max_chars)


def _text(value: Any) -> str:
    """Return `str` of a value; one that has none is named by its type, for a record ends no run."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a stranger's object, or a number of more digits than Python writes
        return f"[{type(value).__name__} that cannot be written]"


def _plain_items(
    value: Mapping[Any, Any] | Sequence[Any], secrets: Collection[str], max_chars: int | None, level: int
) -> Any:
    if level > _MOST_LEVELS:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return {
            plain(_text(key), secrets, max_chars): plain(item, secrets, max_chars, _level=level)
            for key, item in value.items()
        }
    return [plain(item, secrets, max_chars, _level=level) for item in value]


def _plain_fields(value: Step | Episode, secrets: Collection[str]) -> JSONObject:
    fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.name != "steps")
    return {name: _plain_field(name, item, secrets) for name, item in fields}


def _plain_field(name: str, item: Any, secrets: Collection[str]) -> Any:
    """Return a field as JSON can say it. A number here is the run's own, and no secret even if it looks like one."""
    if name in _NAMES:
        return item
    return plain(item, () if isinstance(item, int | float) else secrets, MAX_TEXT_CHARS)


def _restored(cls: type[_T], read: Mapping[str, Any]) -> _T:
    known = {field.name for field in dataclasses.fields(cls)}
    fields: JSONObject = {
        name: float(item) if name in _NUMBERS and isinstance(item, str) else item
        for name, item in read.items()
        if name in known
    }
    return cls(**fields)
