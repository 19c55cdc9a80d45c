"""Decides what an environment must do to be trained on, and how what it does is reported.

Flow: `check_environment` → `Report` → its caller's assertion, or a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """What the Open Reward Standard asks of an environment, in the order in which it is checked."""

    CONNECTS = "can be reached"
    """The target exists, and the environment is on it."""
    SPLITS = "lists its splits"
    """At least one, under different names; the split asked for is among them."""
    NUM_TASKS = "counts its tasks"
    """At least one."""
    TASKS = "gives the same tasks one by one and by range"
    """A session is opened by index, a dataset is read by range."""
    TOOLS = "names its tools and describes their arguments"
    """Different names; a JSON Schema of an object, or none for a tool without arguments."""
    OPENS = "opens a session"
    """Within `open_timeout_s`."""
    PROMPT = "has a prompt"
    """With text in it."""
    UNKNOWN_TOOL = "refuses a tool it does not have"
    """As the policy's mistake: the session lives."""
    BAD_ARGUMENTS = "refuses arguments that do not fit"
    """As the policy's mistake: the session lives."""
    INDEPENDENT = "keeps two sessions of one task apart"
    """Different ids; one lives after the other was closed."""
    CLOSES = "forgets a session that was closed"
    """Nothing of it answers afterwards."""
    FINISHES = "refuses calls after the end"
    """The finishing call finishes, its reward is a number or null, and the next call is refused."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        check: What was checked.
        ok: True or False; None when it was not checked.
        detail: What was seen; why not, where it was not checked.
    """

    check: Check
    ok: bool | None
    detail: str

    def __str__(self) -> str:
        """Say it in one line."""
        sign = {True: "ok", False: "BROKEN", None: "-"}[self.ok]
        return f"{sign:<7}{self.check}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `check_environment` found.

    Args:
        target: What was checked.
        findings: One per `Check`, in order.
    """

    target: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True when nothing that was checked is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings of checks that the environment does not pass."""
        return tuple(finding for finding in self.findings if finding.ok is False)

    def __str__(self) -> str:
        """Say it in a few lines."""
        return "\n".join([f"{self.target}: {len(self.broken)} broken", *(f"  {finding}" for finding in self.findings)])
