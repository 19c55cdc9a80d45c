"""Decides who gets the places of an environment that refuses its rollouts, and how they are paid back.

Flow: `Curriculum.observe` → `Outages.observe`; `Curriculum.plan` → `Outages.shares` before the quotas.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_count, is_number, mapping_of, read, renamed

PROBE_EVERY: Final = 4
"""Batches from one trial group of an environment that is down to the next."""

MAX_OWED_BATCHES: Final = 20
"""An environment is owed at most its share of so many batches: an outage of a week is not made up for."""


class Outages:
    """Which environments are down, and what they are owed.

    An environment is down from a batch in which all its rollouts came to nothing and some were refused, until one of
    its rollouts is played again. While it is down it gets one trial group every `PROBE_EVERY` batches, and the others
    get its places. Afterwards its share is doubled, but all extras together take at most half a batch, until it has
    what it missed, at most `MAX_OWED_BATCHES` batches' worth.
    """

    def __init__(self) -> None:
        self._waits: dict[str, int] = {}
        self._owed: dict[str, float] = {}

    @property
    def down(self) -> frozenset[str]:
        """The environments that are down."""
        return frozenset(self._waits)

    @property
    def owed(self) -> Mapping[str, float]:
        """Groups owed, by environment."""
        return dict(self._owed)

    def observe(self, outcomes: Iterable[Outcome]) -> None:
        """Take in the groups of one batch."""
        own: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            own[outcome.environment].append(outcome)
        for name, groups in own.items():
            if any(not group.is_lost for group in groups):
                self._waits.pop(name, None)
            elif any(group.num_refused for group in groups):
                self._waits.setdefault(name, 0)
            if lost := sum(group.is_lost and group.num_refused > 0 for group in groups):
                self._owed[name] = self._owed.get(name, 0.0) + lost

    def shares(self, asked: Mapping[str, float], num_groups: int) -> tuple[Mapping[str, float], dict[str, int]]:
        """Return the shares of those that are up in the next batch, and the trial groups of those that are down.

        Args:
            asked: Shares that add up to 1.
            num_groups: Groups of the batch.

        Returns:
            Shares by environment, in any unit, of the places that the trial groups leave; and the trial groups.
        """
        if not self._waits and not self._owed:
            return asked, {}
        up = {name: share for name, share in asked.items() if share > 0 and name not in self._waits}
        if not up:  # nobody is there to give the places to
            return dict(asked), {}
        trials = self._wait(asked, num_groups, num_trials_at_most=num_groups - 1)
        left = num_groups - len(trials)
        extras = {
            name: min(self._owed[name], share * num_groups, left / 2)
            for name, share in up.items()
            if self._owed.get(name, 0.0) > 0
        }
        scale = min(1.0, left / 2 / math.fsum(extras.values())) if extras else 1.0
        for name, extra in extras.items():
            self._pay(name, extra * scale)
        rest = left - scale * math.fsum(extras.values())
        total = math.fsum(up.values())
        return {name: share / total * rest + scale * extras.get(name, 0.0) for name, share in up.items()}, trials

    def _wait(self, asked: Mapping[str, float], num_groups: int, *, num_trials_at_most: int) -> dict[str, int]:
        """Note another batch without those that are down, and return the trial groups they get all the same."""
        trials: dict[str, int] = {}
        for name in sorted(self._waits):
            if not asked.get(name):
                continue
            share = asked[name] * num_groups
            self._owed[name] = min(self._owed.get(name, 0.0) + share, MAX_OWED_BATCHES * share)
            self._waits[name] += 1
            if self._waits[name] % PROBE_EVERY == 0 and len(trials) < num_trials_at_most:
                trials[name] = 1
                self._pay(name, 1.0)
        return trials

    def _pay(self, name: str, groups: float) -> None:
        left = self._owed.get(name, 0.0) - groups
        if left > 1e-9:  # noqa: PLR2004 - what is left of adding and taking away
            self._owed[name] = left
        else:
            self._owed.pop(name, None)

    def rename(self, names: Mapping[str, str]) -> None:
        """Keep only the environments named, under their new names."""
        self._waits, self._owed = renamed(self._waits, names), renamed(self._owed, names)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after a restart; plain JSON."""
        return {"waits": dict(self._waits), "owed": dict(self._owed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: It is none.
        """
        loaded = read(state, "the outages", waits=mapping_of(is_count), owed=mapping_of(is_number))
        self._waits, self._owed = dict(loaded["waits"]), dict(loaded["owed"])
