"""Decides who gets the places of an environment that refuses its rollouts, and how they are paid back.

Flow: `Curriculum.observe` → `Outages.observe`; `Curriculum.plan` → `Outages.shares` before the quotas.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_amount, is_count, mapping_of, read, renamed

PROBE_EVERY: Final = 4
"""Batches from one trial group of an environment that is down to the next."""

MAX_OWED_BATCHES: Final = 20
"""An environment is owed at most its share of so many batches: an outage of a week is not made up for."""

_NO_CAPS: Final[Mapping[str, int]] = MappingProxyType({})


class Outages:
    """Which environments are down, and what they are owed.

    An environment is down from a batch in which all its rollouts came to nothing and some were refused, until one of
    its rollouts is played again. While it is down it gets one trial group every `PROBE_EVERY` batches, and the others
    get its places; only what these cannot hold by their caps goes to it all the same. Trials take at most half of a
    batch, and in batches of one group every second one; where more are down, they take turns.

    An environment is owed the groups that it would have had and that others had instead. Whenever shares are asked for,
    that is at most `MAX_OWED_BATCHES` batches' worth of its share then, and what all are owed alike is struck off, for
    nobody can pay it. Back again, it gets up to twice its places, as far as its cap leaves room; all extras together
    take at most half the places of those that are owed nothing, each of them in proportion.

    With constant shares, no caps and nobody down, each is paid back within `MAX_OWED_BATCHES * (1 + 2 * owed / others)`
    batches, where `owed` is the share of all who are owed anything and `others` that of the rest. For as long as the
    extras are cut to half of the others' places, that much of a debt of at most `MAX_OWED_BATCHES * owed` batches is
    paid with each batch; afterwards everyone's places are doubled, which takes `MAX_OWED_BATCHES` batches at most.
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

    @property
    def is_over(self) -> bool:
        """True where no environment is down, and none is owed anything."""
        return not self._waits and not self._owed

    def observe(self, outcomes: Iterable[Outcome]) -> None:
        """Take in the groups of one batch."""
        own: dict[str, list[Outcome]] = defaultdict(list)
        is_quiet = not self._waits
        for outcome in outcomes:
            own[outcome.environment].append(outcome)
            is_quiet = is_quiet and not outcome.num_refused
        if is_quiet:
            return
        is_anyones = any(not group.is_lost for groups in own.values() for group in groups)
        for name, groups in own.items():
            if any(not group.is_lost for group in groups):
                self._waits.pop(name, None)
            elif any(group.num_refused for group in groups):
                self._waits.setdefault(name, 0)
            lost = sum(group.is_lost and group.num_refused > 0 for group in groups)
            if lost and is_anyones:  # in a batch in which nobody played, others had nothing instead
                self._owed[name] = self._owed.get(name, 0.0) + lost

    def shares(
        self, asked: Mapping[str, float], num_groups: int, caps: Mapping[str, int] = _NO_CAPS
    ) -> tuple[Mapping[str, float], dict[str, int]]:
        """Return the shares of those that are up in the next batch, and the groups of those that are down.

        Args:
            asked: Shares that add up to 1.
            num_groups: Groups of the batch.
            caps: Most groups of an environment in a batch; none for those not named.

        Returns:
            Shares by environment, in any unit, of the places that the trial groups leave; and the trial groups.
        """
        if self.is_over:
            return asked, {}
        places = {name: share * num_groups for name, share in asked.items() if share > 0}
        up = {name: num for name, num in places.items() if name not in self._waits}
        if not up:  # nobody is there to give the places to
            self._bound(places)
            return dict(asked), {}
        trials = self._tried(places, num_groups)
        self._bound(places)
        room = sum(min(caps.get(name, num_groups), num_groups) for name in up)
        lacking = num_groups - len(trials) - room
        for name in sorted(places.keys() - up.keys()) if lacking > 0 else ():
            more = min(max(lacking, 0), caps.get(name, num_groups) - trials.get(name, 0))
            trials[name], lacking = trials.get(name, 0) + more, lacking - more
        left = num_groups - sum(trials.values())
        for name, num in trials.items() if left else ():
            self._pay(name, num)
        return self._repaid(up, left, caps), trials

    def _tried(self, places: Mapping[str, float], num_groups: int) -> dict[str, int]:
        """Note another batch without those that are down, and return the trial groups they get all the same."""
        down = [name for name in self._waits if name in places]
        for name in down:
            self._owed[name] = self._owed.get(name, 0.0) + places[name]
            self._waits[name] += 1
        due = sorted((-self._waits[name], name) for name in down if self._waits[name] >= PROBE_EVERY)
        most = num_groups // 2 or int(all(self._waits[name] > 1 for name in down))
        for _, name in due[:most]:
            self._waits[name] = 0
        return {name: 1 for _, name in due[:most]}

    def _bound(self, places: Mapping[str, float]) -> None:
        """Strike off what all are owed alike, and what is more than anyone can be owed."""
        common = min(self._owed.get(name, 0.0) / num for name, num in places.items())
        for name, num in places.items():
            if name in self._owed:
                self._pay(name, max(common * num, self._owed[name] - MAX_OWED_BATCHES * num))

    def _repaid(self, up: Mapping[str, float], left: int, caps: Mapping[str, int]) -> dict[str, float]:
        """Return the places of those that are up, after payment."""
        total = math.fsum(up.values())
        places = {name: num / total * left for name, num in up.items()}
        extras = {
            name: max(0.0, min(self._owed[name], num, caps.get(name, math.inf) - num))
            for name, num in places.items()
            if name in self._owed
        }
        others = math.fsum(num for name, num in places.items() if name not in extras)
        wanted = math.fsum(extras.values())
        if not others or not wanted:
            return places
        scale = min(1.0, others / 2 / wanted)
        for name, extra in extras.items():
            self._pay(name, extra * scale)
        kept = 1 - scale * wanted / others
        return {name: num + scale * extras[name] if name in extras else num * kept for name, num in places.items()}

    def _pay(self, name: str, groups: float) -> None:
        left = self._owed.get(name, 0.0) - groups
        if left > 1e-9:  # noqa: PLR2004 - what is left of adding and taking away
            self._owed[name] = left
        else:
            self._owed.pop(name, None)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the figures of each environment that is down, or owed groups."""
        return {
            name: {"groups_owed": self._owed.get(name, 0.0), "is_down": float(name in self._waits)}
            for name in self._waits.keys() | self._owed.keys()
        }

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
        loaded = read(state, "the outages", waits=mapping_of(is_count), owed=mapping_of(is_amount))
        self._waits, self._owed = dict(loaded["waits"]), dict(loaded["owed"])
