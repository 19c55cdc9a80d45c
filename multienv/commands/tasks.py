"""Decides which task a person means by an environment's name and an index or a task id, and opens its episode.

Flow: `preview`, `play` → `named` → a row of the dataset → `opened_episode` → an adapter, as training has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from multienv.commands.screen import working
from multienv.errors import SessionError, SpecError, nearest
from multienv.meta import MultiEnvSpec
from multienv.router import EnvironmentAdapter
from multienv.router.conversations import whole_prompt
from multienv.sessions import session_loop
from multienv.specs import EnvSpec
from multienv.types import Column, JSONObject


def named(spec: MultiEnvSpec, environment: str | None, task: int | str | None = None) -> dict[str, Any]:
    """Return the row of a task.

    Args:
        spec: The mixture.
        environment: The environment; None where there is one only, or where `task` is a task id.
        task: Index of a task within its split, or a `task_id`; None for the first task.

    Raises:
        SpecError: There is no such environment, or no such task among the chosen ones.
    """
    wanted = None if task is None else str(task).strip()
    name = environment_named(spec, environment, wanted)
    known: list[Any] = []
    for rows in _rows(spec, name):
        key = Column.TASK_ID if wanted is not None and "/" in wanted else Column.TASK_INDEX
        owners, values = rows[Column.ENVIRONMENT][:], rows[key][:]
        places = [place for place, owner in enumerate(owners) if owner == name]
        place = next((place for place in places if wanted in (None, str(values[place]))), None)
        if place is not None:
            return dict(rows[place])
        identities = rows[Column.TASK_ID][:]
        known += [identities[place] for place in places]
    listed = known if len(known) <= 6 else [*known[:3], "...", known[-1]]  # noqa: PLR2004 - what fits into a line
    raise SpecError(
        f"environment {name!r} has no task {wanted!r} among the {len(known)} that are chosen; accepted: a task_id of "
        f"{', '.join(listed) or 'none'}, or the index at its end"
    )


def environment_named(spec: MultiEnvSpec, environment: str | None, task: str | None = None) -> str:
    """Return the environment that is meant; nothing is asked or loaded for that.

    Args:
        spec: The mixture.
        environment: Its name; None where there is one only, or where `task` is a task id.
        task: Index or task id.

    Raises:
        SpecError: There is no such environment, or there are several.
    """
    known = list(spec.environments)
    if environment is None and task is not None and "/" in task:
        environment = next((name for name in known if task.startswith(f"{name}/")), task.split("/", maxsplit=1)[0])
    if environment is None:
        if len(known) > 1:
            raise SpecError(f"there are several environments; choose one with --environment: {', '.join(known)}")
        environment = known[0]
    if environment not in known:
        hint = nearest(environment, known)
        raise SpecError(f"unknown environment {environment!r}{hint}; the file has {', '.join(known)}")
    if not isinstance(spec.environments[environment], EnvSpec):
        raise SpecError(f"environment {environment!r} knows nothing of ORS, so it has no session; choose another")
    return environment


def _rows(spec: MultiEnvSpec, environment: str) -> Iterator[Any]:
    """Yield the tables with tasks that an environment trains on, and then those it is evaluated on."""
    declared: Any = spec.environments[environment]
    if not declared.evaluation_only:
        yield spec.task_dataset
    if (held_out := spec.eval_dataset.get(environment)) is not None:
        yield held_out


@dataclass(frozen=True, slots=True)
class OpenedEpisode:
    """An episode whose session is open.

    Attributes:
        adapter: What TRL would reset and call.
        messages: The prompt, as TRL puts it together.
    """

    adapter: EnvironmentAdapter
    messages: list[JSONObject]


@contextmanager
def opened_episode(spec: MultiEnvSpec, row: dict[str, Any]) -> Iterator[OpenedEpisode]:
    """Open the episode of a task; its session is closed at the end, whatever happens.

    Args:
        spec: The mixture; see `MultiEnvSpec.present_to` for who reads.
        row: The task's row.

    Raises:
        SessionError: Its session cannot be opened, or what it sends cannot be shown.
    """
    name = row[Column.ENVIRONMENT]
    factory: Any = spec.environment_factory[name]
    adapter: EnvironmentAdapter = factory()
    adapter._route.warned.add(name)  # noqa: SLF001 - what fails is told here, by an error or at the end
    try:
        with working(f"opening a session for {row[Column.TASK_ID]}"), _told_by_an_error():
            content = adapter.reset(**row)
        if not adapter.episode.is_scorable:
            raise SessionError(adapter.episode.reason, environment=name)
        yield OpenedEpisode(adapter, whole_prompt(row, adapter._play.conversation, content))  # noqa: SLF001 - hidden from TRL only
    finally:
        session_loop().run(adapter._let_go())  # noqa: SLF001 - see above


@contextmanager
def _told_by_an_error() -> Iterator[None]:
    """Keep the log quiet about an episode that fails, for the error that is raised says the same."""
    logger = logging.getLogger("multienv.router.play")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
