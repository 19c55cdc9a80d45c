"""Decides what can go wrong on a server, when, and how often: values that are written down before anything runs.

Flow: a test declares `Fault`s → `FaultServer` → `FaultScript` says for each request which one plays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from multienv.errors import SpecError


class Phase(StrEnum):
    """The requests a fault can hit."""

    LISTING = "listing"
    """`GET /list_environments`, which reaches the server for the first time."""
    OPENING = "opening"
    """`POST /create`, which makes a session for a task."""
    PROMPT = "prompt"
    """`GET /{environment}/prompt`."""
    CALL = "call"
    """`POST /{environment}/call`."""
    CLOSE = "close"
    """`POST /delete`, which tears the session down."""


class FaultKind(StrEnum):
    """The ways to fail."""

    REFUSE = "refuse"
    """Nothing happens; the connection is closed without an answer."""
    HANG = "hang"
    """Nothing happens and no answer comes, for `seconds`; then the request is served."""
    UNAUTHORIZED = "401"
    """Nothing happens; the key is refused."""
    TOO_MANY = "429"
    """Nothing happens; the client is asked to come back after `retry_after_s`."""
    ERROR = "500"
    """Nothing happens; the answer is an error."""
    STARTING = "503 starting"
    """Nothing happens; a proxy says that the environment is still starting."""
    BAD_GATEWAY = "502 afterwards"
    """The request takes effect; a proxy then says that it did not get the answer."""
    LOST = "lost answer"
    """The request takes effect; the connection is then closed without an answer."""
    DROP = "drop mid-stream"
    """The request takes effect; the connection is closed in the middle of the answer."""
    SLOW = "slow bytes"
    """The request takes effect; the bytes of the answer trickle in over `seconds`."""
    MALFORMED = "malformed JSON"
    """The request takes effect; the answer is cut-off JSON."""
    WRONG_SCHEMA = "wrong schema"
    """The request takes effect; the answer is JSON without the fields of the standard."""
    NAN = "NaN reward"
    """The tool runs; its reward is not a number."""
    REAPED = "reaped (404)"
    """The server has forgotten the session and says that it knows none of that id."""
    DELETED = "deleted (410)"
    """The server has forgotten the session and says that it is gone."""
    RESTART = "restart"
    """The server forgets all its sessions and closes the connection without an answer."""


STATUS: Final = {
    FaultKind.UNAUTHORIZED: 401,
    FaultKind.TOO_MANY: 429,
    FaultKind.ERROR: 500,
    FaultKind.STARTING: 503,
    FaultKind.BAD_GATEWAY: 502,
    FaultKind.REAPED: 404,
    FaultKind.DELETED: 410,
}
"""The status of the kinds that are a status."""
_FORGETTING: Final = frozenset({FaultKind.REAPED, FaultKind.DELETED, FaultKind.RESTART})
_NEVER: Final = {
    FaultKind.NAN: frozenset(Phase) - {Phase.CALL},
    FaultKind.REAPED: frozenset({Phase.LISTING, Phase.OPENING}),
    FaultKind.DELETED: frozenset({Phase.LISTING, Phase.OPENING}),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens, to which requests, how often.

    Args:
        kind: What happens.
        phase: Which requests it hits.
        task_index: Only those of sessions of this task; None for any.
        tool: Only calls of this tool; None for any.
        times: How many requests it hits; None for all of them.
        seconds: How long `HANG` and `SLOW` take.
        retry_after_s: What `TOO_MANY` and `STARTING` ask for.
        status: Status to answer with instead of the kind's own.
        detail: Text of an answer that is a status; `{key}` stands for the key that the request carried.

    Raises:
        SpecError: A fault of this kind cannot happen in this phase.

    Example:
        >>> Fault(FaultKind.ERROR, Phase.OPENING, task_index=3)
        Fault(500 at opening, task 3, once)
    """

    kind: FaultKind
    phase: Phase
    task_index: int | None = None
    tool: str | None = None
    times: int | None = 1
    seconds: float = 3600.0
    retry_after_s: int = 0
    status: int | None = None
    detail: str = "a fault that was asked for"

    def __post_init__(self) -> None:
        """Refuse what makes no sense; `"500"` and `"call"` are as good as their enum members."""
        try:
            object.__setattr__(self, "kind", FaultKind(self.kind))
            object.__setattr__(self, "phase", Phase(self.phase))
        except ValueError:
            kinds, phases = ", ".join(map(repr, map(str, FaultKind))), ", ".join(map(repr, map(str, Phase)))
            raise SpecError(
                f"Fault({self.kind!r}, {self.phase!r}) is no fault; accepted kinds: {kinds}; accepted phases: {phases}"
            ) from None
        if not self.is_possible(self.kind, self.phase):
            possible = ", ".join(phase for phase in Phase if self.is_possible(self.kind, phase))
            raise SpecError(f"a fault {self.kind!s} cannot happen at {self.phase!s}; accepted phases: {possible}")

    @staticmethod
    def is_possible(kind: FaultKind, phase: Phase) -> bool:
        """Tell whether a kind of fault can happen in a phase: only calls have rewards, only sessions can be lost."""
        return phase not in _NEVER.get(kind, ())

    @property
    def forgets(self) -> bool:
        """True when the server has lost the session before it answers."""
        return self.kind in _FORGETTING

    def __repr__(self) -> str:
        """Say it in words."""
        where = "" if self.task_index is None else f", task {self.task_index}"
        often = {None: "always", 1: "once"}.get(self.times, f"{self.times} times")
        return f"Fault({self.kind} at {self.phase}{where}, {often})"


class FaultScript:
    """The faults of a server, in the order in which they are declared, and how often each has played.

    Args:
        faults: For each request the first one that fits and has not been used up plays.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = tuple(faults)
        self.num_played = [0] * len(self.faults)

    def take(self, phase: Phase, task_index: int | None, tool: str | None) -> Fault | None:
        """Return the fault that this request meets, or None, and count it.

        Args:
            phase: What the request is.
            task_index: Task of its session, or None.
            tool: Tool it calls, or None.
        """
        for place, fault in enumerate(self.faults):
            if (
                fault.phase is phase
                and fault.task_index in (None, task_index)
                and fault.tool in (None, tool)
                and (fault.times is None or self.num_played[place] < fault.times)
            ):
                self.num_played[place] += 1
                return fault
        return None
