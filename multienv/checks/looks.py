"""Decides what is asked of each environment before anything is judged: its tools, tasks and secrets, and one session.

Flow: `run.run_checks` → `look_at` → one `Look` per ORS environment → the checks.
"""

from __future__ import annotations

import asyncio
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


def look_at(clients: Mapping[str, EnvironmentClient]) -> list[Look]:
    """Look at every environment, all at once. What fails is in the look; nothing is raised.

    Each is asked for its tools, its splits, its first declared task and its secrets, and one session is opened for that
    task, and closed. There is no session where the server holds no such task.
    """
    looking = [_start(client) for client in clients.values()]
    return session_loop().run(_all(looking)) if looking else []


async def _all(looking: list[Coroutine[Any, Any, Look]]) -> list[Look]:
    return list(await asyncio.gather(*looking))


def _start(client: EnvironmentClient) -> Coroutine[Any, Any, Look]:
    """Return the coroutine that looks; what must be done on the caller's thread is done here."""
    index = client.spec.first_choice.first
    try:
        opening: Coroutine[Any, Any, LiveSession] | Exception = client.open(index)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        opening = error
    return _look(client, index, opening)


async def _look(client: EnvironmentClient, index: int, opening: Coroutine[Any, Any, LiveSession] | Exception) -> Look:
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
    visit = await _attempt(_visit(opening, shared))
    if isinstance(visit, Exception):
        look = replace(look, session_failure=visit)
    else:
        listing, prompt = visit
        look = replace(look, prompt=prompt)
        if listing is not None:
            listings[index] = listing
    return replace(look, listings=listings)


async def _attempt(coroutine: Coroutine[Any, Any, T]) -> T | Exception:
    try:
        return await coroutine
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return error


async def _visit(opening: Coroutine[Any, Any, LiveSession], shared: ToolListing) -> tuple[ToolListing | None, Prompt]:
    """Open the session, read what its task says, and close it."""
    live = await opening
    try:
        if (live.listing or shared).has_messages:
            await live.fetch_prompt(as_messages=True)
        return live.listing, live.prompt
    finally:
        await live.close()
