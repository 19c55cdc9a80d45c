"""Decides what is known of a mixture when it is judged: what was declared, and what each environment answered.

Flow: `looking` fills in one `Look` per ORS environment → the checks, `multienv check`, `multienv plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from multienv.checks.findings import Code, Finding, Severity
from multienv.foreign import ForeignEnvironment
from multienv.manifest import PinnedChanges
from multienv.router import Presentation
from multienv.sessions import EnvironmentClient, Outline
from multienv.specs import CurriculumSpec, EnvSpec, ForeignSpec
from multienv.types import Prompt, TerminalTool, ToolListing, ToolSpec

ComparePins: TypeAlias = Callable[[Collection[str]], PinnedChanges]
"""Says what has become of the pinned tasks of some ORS environments, by their names."""
_CURRICULUM = CurriculumSpec()
_FORWARDED: Final = "api_key"


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
        max_open: The share of them that this process may open; None for no limit.
        curriculum: Which environment is trained on how often.
        repeats_rows: True where a task can be several rows of the training dataset.
        outlines: What is known of the tasks of the ORS environments that could be asked.
        held_out: The same of the tasks they are evaluated on, where that is known.
        system_prompt: System message of environments without one of their own.
        max_model_tokens: Most tokens of a prompt and its completion together; None where nobody says.
        compare_pins: Reads what a manifest pins; None for a mixture without one.
        pins: What has become of what is pinned; None where that is not known.
    """

    specs: Mapping[str, EnvSpec | ForeignSpec]
    clients: Mapping[str, EnvironmentClient]
    foreign: Mapping[str, ForeignEnvironment]
    presentation: Presentation
    has_shared_rewards: bool = False
    args: Any = None
    max_sessions: int | None = None
    max_open: int | None = None
    curriculum: CurriculumSpec = _CURRICULUM
    repeats_rows: bool = False
    outlines: Mapping[str, Outline] = field(default_factory=dict)
    held_out: Mapping[str, Outline] = field(default_factory=dict)
    system_prompt: str | None = None
    max_model_tokens: int | None = None
    compare_pins: ComparePins | None = None
    pins: PinnedChanges | None = None

    @property
    def num_rows(self) -> dict[str, int]:
        """How many training rows each environment has, where that is known without reading anything more."""
        counted: dict[str, int] = {}
        for name, spec in self.specs.items():
            if isinstance(spec, ForeignSpec):
                if "train_dataset" in spec.__dict__:  # an object's attributes are read when they are needed, not here
                    counted[name] = spec.num_rows
            elif name in self.outlines:
                pinned = None if self.pins is None else self.pins.num_kept.get(name)
                declared = 0 if spec.evaluation_only else self.outlines[name].num_rows
                counted[name] = declared if pinned is None else pinned
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
        prompt: The task's prompt, as a conversation where it has one; empty if there was no session.
        listing: The tools of the task; None if there was no session.
        open_s: Seconds from the request for the session until its prompt was there, as `LiveSession` has them.
        num_tries: How often opening it was tried.
        failure: Why there was none, or None.
    """

    index: int
    prompt: Prompt = ()
    listing: ToolListing | None = None
    open_s: float = 0.0
    num_tries: int = 1
    failure: Exception | None = None


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
        splits: Its splits with their numbers of tasks, None for one that is not known; empty if none is.
        visits: What the sessions said that were opened, the first declared task's first; empty where its tasks are not
            those declared.
        required_secrets: Names of the secrets a session needs.
        secrets_failure: Why these are not known, or None.
        num_tokens: How long the prompt of each visited task is with its tools, by index; empty where nobody knows the
            policy.
        tokens_failure: Why that is not known, or None.
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
    splits: Mapping[str, int | None] = field(default_factory=dict)
    visits: tuple[Visit, ...] = ()
    required_secrets: tuple[str, ...] = ()
    secrets_failure: Exception | None = None
    num_tokens: Mapping[int, int] = field(default_factory=dict)
    tokens_failure: Exception | None = None

    @property
    def index(self) -> int:
        """The task that the first session was opened for."""
        return self.visits[0].index if self.visits else self.spec.first_choice.first

    @property
    def prompt(self) -> Prompt:
        """That task's prompt; empty if there was no session."""
        return self.visits[0].prompt if self.visits else ()

    @property
    def missing_secrets(self) -> tuple[str, ...]:
        """The required secrets that are not declared; the key of a catalogue target is one of its sessions already."""
        given = {*(self.spec.secrets or {}), _FORWARDED}
        return tuple(name for name in self.required_secrets if name not in given)

    @property
    def evaluated(self) -> Outline | None:
        """What is known of the tasks it is evaluated on; None where that is nothing."""
        return self.outline if self.spec.training is None else self.held_out

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
    def seen(self) -> ToolListing:
        """All of that as one listing, as TRL's own trainers have it."""
        shared = self.listings.get(None, ToolListing())
        return replace(shared, tools=self.tools, terminal_tool=self.terminal_tool)

    @property
    def plain_severity(self) -> Severity:
        """How serious it is that TRL's own trainers show less than was published."""
        return Severity.NOTE if self.is_exact else Severity.WARNING

    def finding(self, severity: Severity, code: Code, message: str, fix: str = "") -> Finding:
        """Return a finding about this environment."""
        return Finding(severity, self.name, code, message, fix)
