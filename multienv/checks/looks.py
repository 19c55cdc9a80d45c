"""Decides what is asked of each environment before anything is judged: its tools, tasks and secrets, and one session.

Flow: `run.run_checks` → `look_at` → one `Look` per ORS environment → the checks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from multienv.checks.findings import Code, Finding, Severity
from multienv.errors import SpecError
from multienv.foreign import ForeignEnvironment
from multienv.router import Presentation
from multienv.sessions import EnvironmentClient, LiveSession, Outline, session_loop
from multienv.specs import CurriculumSpec, EnvSpec, ForeignSpec
from multienv.types import Prompt, TerminalTool, ToolListing, ToolSpec

T = TypeVar("T")
_CURRICULUM = CurriculumSpec()


@dataclass(frozen=True, slots=True)
class Mixture:
    """What is checked.

    Attributes:
        specs: The declarations by name.
        clients: The ORS environments.
        foreign: The environments of another making.
        presentation: Who reads what they send.
        has_shared_rewards: True for a mixture with reward functions for all environments.
        args: The trainer's configuration, or None.
        max_sessions: Most sessions of all environments at once, or None.
        curriculum: Which environment is trained on how often.
        repeats_rows: True where a task can be several rows of the training dataset.
        outlines: What is known of the tasks of the ORS environments that could be asked.
        system_prompt: System message of environments without one of their own.
        max_model_tokens: Most tokens of a prompt and its completion together; None where nobody says.
    """

    specs: Mapping[str, EnvSpec | ForeignSpec]
    clients: Mapping[str, EnvironmentClient]
    foreign: Mapping[str, ForeignEnvironment]
    presentation: Presentation
    has_shared_rewards: bool = False
    args: Any = None
    max_sessions: int | None = None
    curriculum: CurriculumSpec = _CURRICULUM
    repeats_rows: bool = False
    outlines: Mapping[str, Outline] = field(default_factory=dict)
    system_prompt: str | None = None
    max_model_tokens: int | None = None

    @property
    def num_rows(self) -> dict[str, int]:
        """How many training rows each environment has, where that is known without reading anything more."""
        counted: dict[str, int] = {}
        for name, spec in self.specs.items():
            if isinstance(spec, ForeignSpec):
                if "train_dataset" in spec.__dict__:  # an object's attributes are read when they are needed, not here
                    counted[name] = spec.num_rows
            elif name in self.outlines:
                counted[name] = 0 if spec.evaluation_only else self.outlines[name].num_rows
        return counted

    @property
    def knows_policy(self) -> bool:
        """True once `present_to` was called."""
        return self.presentation.processing_class is not None or bool(self.presentation.reserved)


@dataclass(frozen=True, slots=True)
class Visit:
    """What one session said.

    Attributes:
        index: The task it was opened for.
        prompt: The task's prompt, as a conversation where it has one.
        listing: The tools of the task.
        open_s: Seconds until its prompt was there.
    """

    index: int
    prompt: Prompt
    listing: ToolListing
    open_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """What one ORS environment answered.

    Attributes:
        name: Its name in the mixture.
        spec: Its declaration.
        is_exact: True where a trainer shows it as published: schemas, conversations, each task's own tools.
        failure: Why nothing else is known, or None.
        listings: What is known of its tools, as `EnvironmentClient.listings` has it.
        outline: What is known of its tasks, or None.
        tasks_failure: Why that is not known, or None.
        held_out: The same for the tasks it is evaluated on, where it trains on others; or None.
        held_out_failure: Why that is not known, or None.
        index: The task that a session was opened for.
        prompt: That task's prompt, as a conversation where it has one; empty if there was no session.
        session_failure: Why there was none, or None.
        required_secrets: Names of the secrets a session needs.
        secrets_failure: Why these are not known, or None.
        splits: Its splits with their numbers of tasks; empty where it could not say.
        visits: What the sessions that were opened said, the first of them `index`'s.
    """

    name: str
    spec: EnvSpec
    is_exact: bool = False
    failure: Exception | None = None
    listings: Mapping[int | str | None, ToolListing] = field(default_factory=dict)
    outline: Outline | None = None
    tasks_failure: Exception | None = None
    held_out: Outline | None = None
    held_out_failure: Exception | None = None
    index: int = 0
    prompt: Prompt = ()
    session_failure: Exception | None = None
    required_secrets: tuple[str, ...] = ()
    secrets_failure: Exception | None = None
    splits: Mapping[str, int] = field(default_factory=dict)
    visits: tuple[Visit, ...] = ()

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Every tool that is known, in the form that is known first: those TRL's own trainers bind."""
        first: dict[str, ToolSpec] = {}
        for listing in self.listings.values():
            for tool in listing.tools:
                first.setdefault(tool.name, tool)
        return tuple(first.values())

    @property
    def terminal_tool(self) -> TerminalTool | None:
        """The terminal tool, if any task has one."""
        return next((listing.terminal_tool for listing in self.listings.values() if listing.terminal_tool), None)

    @property
    def plain_severity(self) -> Severity:
        """How serious it is that TRL's own trainers show less than was published."""
        return Severity.NOTE if self.is_exact else Severity.WARNING

    def finding(self, severity: Severity, code: Code, message: str, fix: str = "") -> Finding:
        """Return a finding about this environment."""
        return Finding(severity, self.name, code, message, fix)


def look_at(clients: Mapping[str, EnvironmentClient], num_visits: int = 1) -> list[Look]:
    """Look at every environment, all at once. What fails is in the look; nothing is raised.

    Each is asked for its tools, its splits, its first declared task and its secrets, and one session is opened for that
    task, and closed. There is no session where the server holds no such task.

    Args:
        clients: The environments.
        num_visits: Tasks of each that a session is opened for, evenly over those that are chosen.
    """
    looking = [_start(client, num_visits) for client in clients.values()]
    return session_loop().run(_all(looking)) if looking else []


async def _all(looking: list[Coroutine[Any, Any, Look]]) -> list[Look]:
    return list(await asyncio.gather(*looking))


def _start(client: EnvironmentClient, num_visits: int) -> Coroutine[Any, Any, Look]:
    """Return the coroutine that looks; what must be done on the caller's thread is done here."""
    index = client.spec.first_choice.first
    try:
        opening: Coroutine[Any, Any, LiveSession] | Exception = client.open(index)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        opening = error
    return _look(client, index, opening, num_visits)


async def _look(
    client: EnvironmentClient, index: int, opening: Coroutine[Any, Any, LiveSession] | Exception, num_visits: int
) -> Look:
    look = Look(client.name, client.spec, client.takes_messages, index=index)
    if isinstance(opening, Exception):
        return replace(look, failure=opening)
    try:
        shared = await client.fetch_shared_tools()
    except BaseException as error:
        opening.close()
        if not isinstance(error, Exception):
            raise
        return replace(look, failure=error)
    listings: dict[int | str | None, ToolListing] = {**client.listings, None: shared}
    secrets, outline = await asyncio.gather(
        _attempt(client.fetch_required_secrets()), _attempt(client.fetch_outline(client.spec.first_choice))
    )
    if isinstance(secrets, Exception):
        look = replace(look, secrets_failure=secrets)
    else:
        look = replace(look, required_secrets=tuple(secrets))
    look = replace(look, tasks_failure=outline) if isinstance(outline, Exception) else replace(look, outline=outline)
    if isinstance(outline, SpecError):
        opening.close()
        return replace(look, listings=listings)
    if client.spec.training is not None and client.spec.evaluation is not None:
        held_out = await _attempt(client.fetch_outline(client.spec.evaluation))
        if isinstance(held_out, Exception):
            look = replace(look, held_out_failure=held_out)
        else:
            look = replace(look, held_out=held_out)
    splits = await _attempt(client.fetch_splits())
    more = [] if isinstance(outline, Exception) else _spread(client, outline.num_rows, num_visits)
    visits = await asyncio.gather(
        _attempt(_visit(index, opening, shared)),
        *(_attempt(_visit(another, client.open(another), shared)) for another in more if another != index),
    )
    first = visits[0]
    look = replace(
        look,
        splits={} if isinstance(splits, Exception) else splits,
        visits=tuple(visit for visit in visits if isinstance(visit, Visit)),
    )
    if isinstance(first, Exception):
        look = replace(look, session_failure=first)
    else:
        look = replace(look, prompt=first.prompt)
        if first.listing is not shared:
            listings[index] = first.listing
    return replace(look, listings=listings)


def _spread(client: EnvironmentClient, num_rows: int, num_visits: int) -> list[int]:
    """Return indices of chosen tasks, evenly over all of them."""
    choice = client.spec.first_choice
    chosen = sorted(set(range(num_rows) if choice.indices is None else choice.indices) - choice.excluded_indices)
    most = min(num_visits, len(chosen))
    return [chosen[place * (len(chosen) - 1) // max(1, most - 1)] for place in range(most)] if most > 1 else []


async def _attempt(coroutine: Coroutine[Any, Any, T]) -> T | Exception:
    try:
        return await coroutine
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return error


async def _visit(index: int, opening: Coroutine[Any, Any, LiveSession], shared: ToolListing) -> Visit:
    """Open the session, read what its task says, and close it."""
    started = time.monotonic()
    live = await opening
    took_s = time.monotonic() - started
    try:
        if (live.listing or shared).has_messages:
            await live.fetch_prompt(as_messages=True)
        return Visit(index, live.prompt, live.listing or shared, took_s)
    finally:
        await live.close()
