"""Decides when a line of the record is there: whole or not at all, once, and never again after a resume.

One file a rank: `episodes.jsonl`, `episodes.rank1.jsonl`, ... Lines are only ever added, each by one write to the end
of the file. What a killed process left of a line is cut off before the next one; a resume cuts off what it plays again.

Flow: `training.episodes` → `EpisodeRecord` → the file, which `read` reads at any time.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from multienv.errors import RecordError
from multienv.reporting.lines import Line, from_line, to_line
from multienv.types import Episode

logger = logging.getLogger(__name__)
_BLOCK: Final = 1 << 16


def file_of(directory: str | os.PathLike[str], rank: int) -> Path:
    """Return the file of one rank.

    Example:
        >>> file_of("out", 0).name, file_of("out", 1).name
        ('episodes.jsonl', 'episodes.rank1.jsonl')
    """
    return Path(directory, "episodes.jsonl" if rank == 0 else f"episodes.rank{rank}.jsonl")


class EpisodeRecord:
    """The record that one rank writes. A disk that fails costs the record, not the run.

    Args:
        directory: Where the files are; made when the first line is written.
        rank: Whose file.
        secrets: Values that must not be in it.

    Attributes:
        run: Which run the lines belong to; all ranks of a run have the same.
    """

    def __init__(self, directory: str | os.PathLike[str], rank: int = 0, secrets: Collection[str] = ()) -> None:
        self.run = uuid.uuid4().hex
        self._directory = Path(directory)
        self._rank = rank
        self._secrets = frozenset(secrets)
        self._played: tuple[int | None, bool] | None = None
        self._num_rows = 0
        self._has_trained = False
        self._is_broken = False

    def add(self, episodes: Iterable[Episode]) -> None:
        """Write the episodes of one batch, in their order."""
        lines = []
        for episode in episodes:
            played = (episode.training_step, episode.is_evaluation)
            if played != self._played:
                self._played, self._num_rows = played, 0
                self._has_trained |= not episode.is_evaluation
            lines.append(to_line(Line(self.run, self._num_rows, episode), self._secrets))
            self._num_rows += 1
        try:
            append(file_of(self._directory, self._rank), lines)
        except OSError as error:
            level = logging.DEBUG if self._is_broken else logging.WARNING
            self._is_broken = True
            logger.log(level, "%d rollouts are missing from the record: %s", len(lines), error)

    def new_run(self) -> str:
        """Return what to call a run that begins now; what was evaluated before it belongs to it."""
        return uuid.uuid4().hex if self._has_trained else self.run

    def last_run(self) -> str | None:
        """Return the run that trained last, by this rank's file; None without one."""
        path, last = file_of(self._directory, self._rank), None
        try:
            for _, line in parsed(path):
                last = line.run if line is not None and not line.episode.is_evaluation else last
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("%s cannot be read, so its run is not gone on with: %s", path, error)
        return last

    def resume(self, run: str, step: int, num_ranks: int = 1, *, evaluates_first: bool = False) -> None:
        """Go on with a run from a checkpoint: what it will play again is cut off.

        Args:
            run: The run.
            step: Optimiser steps done at the checkpoint; the evaluation of that step was done before it was saved.
            num_ranks: How many there are now; the files of others are the first rank's to cut.
            evaluates_first: True where the evaluation of that step is done again.
        """
        self.run = run
        self._played = None

        def is_played_again(line: Line) -> bool:
            episode = line.episode
            done = step if episode.is_evaluation and not evaluates_first else step - 1
            return line.run == run and (episode.training_step or 0) > done

        paths = {file_of(self._directory, self._rank)}
        if self._rank == 0:
            paths |= set(self._directory.glob("episodes.rank*.jsonl"))
            paths -= {file_of(self._directory, rank) for rank in range(1, num_ranks)}
        for path in paths:
            try:
                leave_out(path, is_played_again)
            except OSError as error:
                logger.warning("%s may hold rollouts twice, for it could not be cut at step %d: %s", path, step, error)


def append(path: Path, lines: Iterable[bytes]) -> None:
    """Add lines to a file, each whole; half a line at its end is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        _cut_half_line(file)
        for line in lines:
            if os.write(file, line) != len(line):
                _cut_half_line(file)
                raise OSError(f"a line did not fit into {path}")
    finally:
        os.close(file)


def leave_out(path: Path, is_unwanted: Callable[[Line], bool]) -> None:
    """Take lines out of a file; whoever reads it meanwhile sees the old one or the new one."""
    if not path.exists():
        return
    if not any(line is not None and is_unwanted(line) for _, line in parsed(path)):
        return
    new = path.with_suffix(".new")
    with new.open("wb") as file:  # line by line: a long run's record does not fit into memory
        file.writelines(raw for raw, line in parsed(path) if line is None or not is_unwanted(line))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def parsed(path: Path) -> Iterable[tuple[bytes, Line | None]]:
    """Read the whole lines of a file; half a line at its end, which may still be being written, is left out.

    Yields:
        Each line as it is in the file, and what it says; None for one that cannot be read.

    Raises:
        RecordError: A later version of this library wrote it.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            try:
                line = from_line(raw)
            except RecordError:
                raise
            except (ValueError, RecursionError) as error:
                logger.warning("%s, line %d is left out: %s", path, number, error)
                line = None
            yield raw, line


def _cut_half_line(file: int) -> None:
    """Cut off what comes after the last end of a line."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
