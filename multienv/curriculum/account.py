"""Decides what is counted of the mixture: what was asked for, and what became of it, environment by environment.

Flow: `Curriculum.observe` → `Account.add` → the trainer's metrics and the table at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_amount, is_count, mapping_of, read
from multienv.errors import CheckpointError


@dataclass(slots=True)
class Line:
    """What was asked for and what became of it, of one environment.

    Attributes:
        asked: Groups by the share that was asked for, before limits, outages and compensation.
        dispatched: Groups dispatched.
        rollouts: Rollouts of these groups.
        finished: Rollouts whose environment said that the episode is over.
        scored: Rollouts with a reward.
        nonzero: Rollouts with an advantage other than zero.
        tokens: Tokens that are trained on.
    """

    asked: float = 0.0
    dispatched: int = 0
    rollouts: int = 0
    finished: int = 0
    scored: int = 0
    nonzero: int = 0
    tokens: int = 0


COLUMNS = tuple(field.name for field in fields(Line))


class Account:
    """The account of a mixture: one `Line` for each environment that was ever asked for."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}

    @property
    def lines(self) -> Mapping[str, Line]:
        """The lines by environment."""
        return dict(self._lines)

    def add(self, asked: Mapping[str, float], num_groups: int, outcomes: Iterable[Outcome]) -> None:
        """Take in one batch.

        Args:
            asked: The shares asked for, by environment.
            num_groups: Groups of the batch.
            outcomes: Of all groups that were dispatched.
        """
        lines = self._lines
        for name, share in asked.items():
            line = lines.get(name) or lines.setdefault(name, Line())
            line.asked += share * num_groups
        for outcome in outcomes:
            line = self._line(outcome.environment)
            line.dispatched += 1
            line.rollouts += outcome.num_rollouts
            line.finished += outcome.num_finished
            line.scored += outcome.num_scored
            line.nonzero += outcome.num_nonzero
            line.tokens += outcome.num_tokens

    def _line(self, name: str) -> Line:
        return self._lines.setdefault(name, Line())

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the sums so far, by environment and column."""
        return {
            name: {column: float(getattr(line, column)) for column in COLUMNS} for name, line in self._lines.items()
        }

    def rename(self, names: Mapping[str, str]) -> None:
        """Put lines under new names; an environment that is gone keeps its line, for it was trained on."""
        before, self._lines = self._lines, {}
        for name, line in before.items():
            own = self._line(names.get(name, name))
            for column in COLUMNS:  # two lines meet where a name was that of one that is gone
                setattr(own, column, getattr(own, column) + getattr(line, column))

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after a restart; plain JSON."""
        return {name: {column: getattr(line, column) for column in COLUMNS} for name, line in self._lines.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: It is none.
        """
        if not mapping_of(lambda line: isinstance(line, Mapping))(state):
            raise CheckpointError(
                f"{state!r:.200} is not the state of an account; accepted: what state_dict() returned"
            )
        checks = dict.fromkeys(COLUMNS, is_count) | {"asked": is_amount}
        self._lines = {name: Line(**read(line, "the account", **checks)) for name, line in state.items()}
