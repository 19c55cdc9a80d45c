"""Decides how many groups of a batch each environment gets: whole numbers that never stray a group from the shares.

Flow: `Curriculum.plan` hands the shares of each batch to `Quotas.take`, which carries what is left over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from multienv.errors import CheckpointError, SessionLimitError

WHOLE: Final = 720_720_000_000
"""The parts that a group is counted in. Whole numbers, for sums of them are exact; divisible by all up to 16."""

_FINE: Final = 16
"""Parts are rounded to so many of a part first: a share scaled up and down again is the same."""


class Quotas:
    """Exact integer quotas with carry-over.

    With constant shares and no caps, what an environment got after any number of batches differs from its share by less
    than a group. The places of a batch are jobs with deadlines: a job may be done once its environment's share has
    begun to pay for it, and must be done when it has been paid in full; the earliest deadlines go first.

    Source:
        The chairman assignment problem; earliest deadline first is optimal for unit jobs.

    Example:
        >>> quotas = Quotas()
        >>> [quotas.take({"a": 0.7, "b": 0.3}, 1) for _ in range(4)]
        [{'a': 1}, {'b': 1}, {'a': 1}, {'a': 1}]
    """

    def __init__(self) -> None:
        self._credits: dict[str, int] = {}

    def take(
        self, shares: Mapping[str, float], num_groups: int, caps: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return the quotas of the next batch.

        Args:
            shares: By environment, in any unit. One without a share gets nothing and keeps what it is owed.
            num_groups: Groups of the batch.
            caps: Most groups of an environment in a batch; none for those not named.

        Returns:
            The environments that get groups; the numbers add up to `num_groups`.

        Raises:
            SessionLimitError: The caps together hold fewer groups than the batch.
        """
        whole = parts(shares)
        most = {name: min(num_groups, (caps or {}).get(name, num_groups)) for name in whole}
        if sum(most.values()) < num_groups:
            raise SessionLimitError(
                f"a batch has {num_groups} groups, and the limits let {', '.join(sorted(whole))} hold "
                f"{sum(most.values())} at once; raise max_sessions, or make the batch smaller"
            )
        for name, part in whole.items():
            self._credits[name] = self._credits.get(name, 0) + num_groups * part
        quota = {name: min(max(0, self._credits[name] // WHOLE), most[name]) for name in whole}

        def deadline(name: str, job: int) -> tuple[int, int, str]:
            """Order an environment's jobs: batches until it is paid for, then who is owed more."""
            left = job * WHOLE - self._credits[name]
            return -(-left // (num_groups * whole[name])), left, name

        missing = num_groups - sum(quota.values())
        begun = [name for name in whole if quota[name] < most[name] and self._credits[name] > quota[name] * WHOLE]
        begun.sort(key=lambda name: deadline(name, quota[name] + 1))
        for name in begun[: max(0, missing)]:
            quota[name] += 1
        for _ in range(num_groups - sum(quota.values())):  # shares that changed, or caps: go to whoever is next
            name = min((name for name in whole if quota[name] < most[name]), key=lambda n: deadline(n, quota[n] + 1))
            quota[name] += 1
        for _ in range(sum(quota.values()) - num_groups):  # shares that changed: leave out whoever can wait
            name = max((name for name in whole if quota[name]), key=lambda n: deadline(n, quota[n]))
            quota[name] -= 1
        for name, num in quota.items():
            self._credits[name] -= num * WHOLE
        return {name: num for name, num in quota.items() if num}

    def rename(self, names: Mapping[str, str]) -> None:
        """Keep only the environments named, under their new names."""
        self._credits = {new: self._credits[old] for old, new in names.items() if old in self._credits}

    def state_dict(self) -> dict[str, int]:
        """Return what each environment is owed, in parts of a group; plain JSON."""
        return dict(self._credits)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: It is none.
        """
        if not isinstance(state, Mapping) or not all(type(credit) is int for credit in state.values()):
            raise CheckpointError(f"{state!r} is not the state of quotas; accepted: what state_dict() returned")
        self._credits = dict(state)


def parts(shares: Mapping[str, float]) -> dict[str, int]:
    """Cut a whole into integer parts by largest remainder; every share above 0 has at least one.

    Args:
        shares: By environment, in any unit, not negative.

    Returns:
        The environments with a share; the parts add up to `WHOLE`, up to the smallest shares' one part.

    Example:
        >>> [part / WHOLE for part in parts({"a": 3, "b": 1}).values()]
        [0.75, 0.25]
    """
    total = math.fsum(shares.values())
    exact = {name: round(share / total * WHOLE * _FINE) / _FINE for name, share in shares.items() if share > 0}
    whole = {name: max(1, int(part)) for name, part in exact.items()}
    left = WHOLE - sum(whole.values())
    for name in sorted(whole, key=lambda name: (int(exact[name]) - exact[name], name))[: max(0, left)]:
        whole[name] += 1
    return whole


def capped(shares: Mapping[str, float], num_groups: int, caps: Mapping[str, int]) -> dict[str, float]:
    """Give what an environment cannot hold to the others, in proportion to their shares.

    Args:
        shares: By environment, in any unit.
        num_groups: Groups of a batch.
        caps: Most groups of an environment in a batch; none for those not named.

    Returns:
        Shares that add up to 1, none above its cap, if the caps hold a batch at all.

    Example:
        >>> capped({"a": 0.5, "b": 0.3, "c": 0.2}, 10, {"a": 2})
        {'a': 0.2, 'b': 0.48, 'c': 0.32}
    """
    total = math.fsum(shares.values())
    free = {name: share / total for name, share in shares.items() if share > 0}
    full: dict[str, float] = {}
    while free:
        left = 1.0 - math.fsum(full.values())
        total = math.fsum(free.values())
        scaled = {name: share / total * left for name, share in free.items()}
        over = {
            name: caps[name] / num_groups for name in scaled if scaled[name] * num_groups > caps.get(name, math.inf)
        }
        if not over:
            return {name: scaled.get(name, full.get(name, 0.0)) for name in shares}
        full |= over
        free = {name: share for name, share in free.items() if name not in over}
    return {name: full.get(name, 0.0) for name in shares}
