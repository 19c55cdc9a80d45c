"""Decides what a report is: one file that holds its data, its style and its program, and asks nobody for anything.

Flow: `commands.report` or a user → `write_report` → `read_episodes`, `figures`, `choice`, `reader` → `report.html`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from multienv.errors import RecordError, SpecError
from multienv.files import write_whole
from multienv.reporting.page.choice import in_order_of_choice
from multienv.reporting.page.curves import STATUSES
from multienv.reporting.page.figures import Phase, figures_of
from multienv.reporting.page.logged import read_log
from multienv.reporting.page.reader import shown
from multienv.reporting.page.spread import finite
from multienv.reporting.read import read_episodes
from multienv.reporting.record import file_of
from multienv.types import Episode, JSONObject

MAX_EPISODE_CHARS: Final = 64_000_000
"""Most characters of all episodes in a page: beyond that browsers take long to open it."""
SCRIPTS: Final = (
    "dom.js",
    "charts.js",
    "tables.js",
    "sections.js",
    "trouble.js",
    "reader.js",
    "episode.js",
    "main.js",
)


@dataclass(frozen=True, slots=True)
class Report:
    """A report that is not written yet.

    Attributes:
        run: The run's name in the record; empty where its newest line does not say.
        figures: What the page says of training and of evaluation, over all episodes.
        num_episodes: How many episodes the record has of the run.
        num_in_page: How many of them can be read in the page.
        html: The page.
    """

    run: str
    figures: tuple[Phase, ...]
    num_episodes: int
    num_in_page: int
    html: str


def write_report(
    directory: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
    max_episodes: int = 2_000,
) -> Path:
    """Write what a run has left behind as one HTML page, which needs no network and no other file.

    The run, a training or an evaluation, may still be going on.

    Args:
        directory: The run's output directory.
        path: Where to write it; `report.html` in that directory if not said.
        run: Which run, by the `run` of its lines; None for the last one.
        max_episodes: How many episodes can be read in the page at most. All figures are over all episodes.

    Returns:
        Where it was written: whole, or not at all.

    Raises:
        RecordError: There is no record, it cannot be read, or the page cannot be written.
        SpecError: max_episodes is below 0.
    """
    written = Path(directory, "report.html") if path is None else Path(path)
    save(make_report(directory, run=run, max_episodes=max_episodes).html, written)
    return written


def make_report(directory: str | os.PathLike[str], *, run: str | None = None, max_episodes: int = 2_000) -> Report:
    """Make the page that `write_report` writes.

    Raises:
        RecordError: There is no record, or it cannot be read.
        SpecError: max_episodes is below 0.
    """
    if max_episodes < 0:
        raise SpecError(f"max_episodes={max_episodes}; accepted: 0 or more; leave it out for 2000")
    if run is None:
        run = _newest_run(Path(directory))
    try:
        episodes = read_episodes(directory, run)
    except OSError as error:
        raise RecordError(
            f"{error.filename or os.fspath(directory)} cannot be read: {error.strerror}; make it readable"
        ) from None
    starts = [start for episode in episodes if (start := finite(episode.started_at))]
    log = read_log(Path(directory), min(starts, default=0.0))
    figures = figures_of(episodes, log)
    in_page = _embedded(episodes, max_episodes)
    about: JSONObject = {
        "name": Path(directory).resolve().name,
        "run": run or "",
        "written_at": time.time(),
        "statuses": [str(status) for status in STATUSES],
        "log": log.source,
        "has_asked": log.has_asked,
        "num_episodes": len(episodes),
        "num_in_page": len(in_page),
        "phases": [dataclasses.asdict(phase) for phase in figures],
    }
    page = page_of(about["name"], embedded(about), f"[{','.join(in_page)}]")
    return Report(run or "", figures, len(episodes), len(in_page), page)


def embedded(value: Any) -> str:
    r"""Write a value as JSON that is safe inside a script element: ASCII, and nothing that HTML takes for its own.

    Example:
        >>> print(embedded(["</script>", "\u2028"]))
        ["\u003c/script\u003e","\u2028"]
    """
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return written.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def page_of(name: str, about: str, episodes: str) -> str:
    """Put a page together. Its policy lets it run its own script and style, known by their hashes, and load nothing.

    Args:
        name: Shown as the title.
        about: What it says, as `embedded` JSON.
        episodes: The episodes to read, likewise.
    """
    style = _file("report.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_file, SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(name).encode("ascii", "xmlcharrefreplace").decode(),
        "style": style,
        "about": about,
        "episodes": episodes,
        "script": script,
    }
    before, *rest = _file("report.html").split("{{")
    for part in rest:  # in one pass: what is put in is never looked at for places to put something in
        key, _, after = part.partition("}}")
        before += parts[key] + after
    return before


def save(text: str, path: Path) -> None:
    """Write a file whole, or leave what is there.

    Raises:
        RecordError: It cannot be written.
    """
    try:
        write_whole(path, text)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise RecordError(
            f"{str(path)!r} cannot be written: {why}; give a path in a directory that you may write to"
        ) from None


def _embedded(episodes: Sequence[Episode], max_episodes: int) -> list[str]:
    """Choose the episodes that can be read in the page, and write them, in the order in which they were played."""
    chosen: dict[int, str] = {}
    room = MAX_EPISODE_CHARS
    for place in in_order_of_choice(episodes)[:max_episodes]:
        written = embedded(shown(episodes[place], place))
        if len(written) > room:
            break
        room -= len(written)
        chosen[place] = written
    return [chosen[place] for place in sorted(chosen)]


def _newest_run(directory: Path) -> str | None:
    """Return the run of the last line of the first rank's file; None leaves it to `read_episodes`."""
    try:
        last = b""
        with file_of(directory, 0).open("rb") as file:
            for raw in file:
                last = raw if raw.endswith(b"\n") else last
        run = json.loads(last)["run"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return run if isinstance(run, str) else None


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
