"""Decides what an evaluation leaves behind, and what of it counts when it is gone on with.

A line of `episodes.jsonl` is that of any record, with one key more. `evaluation.json` says what the attempts have in
common; another evaluation does not mix with them.

Flow: `run` → `EvaluationRecord` → `episodes.jsonl` → `read_attempts`.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multienv.errors import RecordError, SpecError
from multienv.evaluation.play import Attempt
from multienv.files import write_whole
from multienv.reporting import plain
from multienv.reporting.lines import Line, to_line
from multienv.reporting.record import append, file_of, leave_out, parsed
from multienv.types import Episode

SETTINGS_NAME: Final = "evaluation.json"
_KEY: Final = "evaluation"


@dataclass(slots=True)
class EvaluationRecord:
    """The record that an evaluation writes.

    Attributes:
        directory: Where it is.
        run: Which run its lines belong to.
        secrets: Values that must not be in it.
        attempts: What it holds.
        lock: Keeps other evaluations out of the directory; None where it is not kept.
    """

    directory: Path
    run: str
    secrets: Collection[str]
    attempts: list[Attempt]
    lock: int | None = None

    @classmethod
    def begin(cls, directory: Path, settings: Mapping[str, Any], secrets: Collection[str]) -> EvaluationRecord:
        """Begin a record, or go on with the one that is there; attempts that infrastructure ended are taken out.

        Args:
            directory: Made if missing.
            settings: What all attempts have in common.
            secrets: Values that must not be in it.

        Raises:
            SpecError: The directory holds another evaluation, one that is still going on, or cannot be written.
        """
        path, settings = directory / SETTINGS_NAME, plain(settings, secrets)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = _locked(directory)
            if path.exists():
                run = _same_run(path, settings)
                leave_out(file_of(directory, 0), lambda line: line.run == run and not line.episode.is_scorable)
                return cls(directory, run, secrets, read_attempts(directory), lock)
            if file_of(directory, 0).exists():
                raise SpecError(f"{directory} holds the record of a training; evaluate into another directory")
            run = uuid.uuid4().hex
            write_whole(path, json.dumps({"run": run, "settings": settings}, indent=1) + "\n")
        except OSError as error:
            raise SpecError(f"{directory} cannot be written: {error.strerror}; choose another directory") from None
        return cls(directory, run, secrets, [], lock)

    def close(self) -> None:
        """Let other evaluations into the directory; safe to call twice."""
        lock, self.lock = self.lock, None
        if lock is not None:
            os.close(lock)

    def add(self, attempt: Attempt) -> None:
        """Write an attempt down.

        Raises:
            SpecError: It cannot be written.
        """
        line = json.loads(to_line(Line(self.run, len(self.attempts), attempt.episode), self.secrets))
        line[_KEY] = {
            "attempt": attempt.number,
            "difficulty": plain(attempt.difficulty, self.secrets),
            "is_success": attempt.is_success,
            "prompt_tokens": attempt.prompt_tokens,
            "completion_tokens": attempt.completion_tokens,
            "requests_s": list(attempt.requests_s),
            "seconds": attempt.seconds,
        }
        try:
            append(file_of(self.directory, 0), [json.dumps(line, allow_nan=False).encode() + b"\n"])
        except OSError as error:
            raise SpecError(
                f"{self.directory} cannot be written: {error.strerror or error}; what is there can be gone on with"
            ) from None
        self.attempts.append(attempt)


def read_attempts(directory: Path) -> list[Attempt]:
    """Read the attempts of an evaluation.

    Raises:
        RecordError: There is no evaluation.
    """
    settings, record = directory / SETTINGS_NAME, file_of(directory, 0)
    if not settings.exists():
        raise RecordError(f"{directory} holds no {SETTINGS_NAME}; give the output directory of a multienv eval")
    run = read_settings(directory)["run"]
    if not record.exists():
        return []
    found = ((raw, line) for raw, line in parsed(record) if line is not None and line.run == run)
    return [_attempt(line.episode, json.loads(raw).get(_KEY, {})) for raw, line in found]


def read_settings(directory: Path) -> dict[str, Any]:
    """Read what the attempts of an evaluation have in common.

    Raises:
        RecordError: It cannot be read.
    """
    path = directory / SETTINGS_NAME
    try:
        read: Any = json.loads(path.read_bytes())
        return {"run": str(read["run"]), "settings": dict(read["settings"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} cannot be read: {error}; evaluate into another directory") from None


def _locked(directory: Path) -> int:
    """Keep other evaluations out of a directory, until what is returned is closed or the process ends.

    Raises:
        SpecError: One is going on in it.
    """
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SpecError(
            f"{directory} is being written by another evaluation; wait for its end, or evaluate into another directory"
        ) from None
    except OSError:  # a file system without locks
        pass
    return lock


def _same_run(path: Path, settings: Mapping[str, Any]) -> str:
    read = read_settings(path.parent)
    known = read["settings"]
    for key in dict.fromkeys([*known, *settings]):
        if known.get(key) != settings.get(key):
            raise SpecError(
                f"{path.parent} holds an evaluation with {key}={known.get(key)!r:.200}, and this one has "
                f"{settings.get(key)!r:.200}; evaluate into another directory"
            )
    return str(read["run"])


def _attempt(episode: Episode, said: Mapping[str, Any]) -> Attempt:
    return Attempt(
        episode,
        number=int(said.get("attempt", 0)),
        difficulty=said.get("difficulty"),
        is_success=said.get("is_success"),
        prompt_tokens=int(said.get("prompt_tokens", 0)),
        completion_tokens=int(said.get("completion_tokens", 0)),
        requests_s=tuple(said.get("requests_s", ())),
        seconds=float(said.get("seconds", 0.0)),
    )
