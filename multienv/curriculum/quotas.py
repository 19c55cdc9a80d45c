"""Decides how many groups of a batch each environment gets: whole numbers that never stray a group from the shares.

Flow: `Curriculum.plan` hands the shares of each batch to `Quotas.take`, which carries what is left over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from multienv.curriculum.shares import comparable, normalised
from multienv.curriculum.state import mapping_of
from multienv.errors import CheckpointError, SessionLimitError

WHOLE: Final = 720_720_000_000
"""The parts that a group is counted in. Whole numbers, for sums of them are exact; divisible by all up to 16."""

_LIMIT: Final = 1_000_000 * WHOLE
"""No environment is ever owed so much, or has had so much too many."""


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
        [{'a': 1}, {'a': 1}, {'b': 1}, {'a': 1}]
    """

    def __init__(self) -> None:
        self._credits: dict[str, int] = {}
        self._shares: Mapping[str, float] = {}
        self._parts: dict[str, int] = {}

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
        whole = self._parts_of(shares)
        most = {name: min(num_groups, cap) for name, cap in (caps or {}).items() if name in whole}
        if len(most) == len(whole) and sum(most.values()) < num_groups:
            raise SessionLimitError(
                f"a batch has {num_groups} groups, and the limits let {', '.join(sorted(whole))} hold "
                f"{sum(most.values())} at once; raise limits.max_sessions, or make the batch smaller: lower "
                "per_device_train_batch_size or steps_per_generation"
            )
        for name, part in whole.items():
            self._credits[name] = self._credits.get(name, 0) + num_groups * part
        quota = _Places(whole, self._credits, num_groups, most).filled()
        for name, num in quota.items():
            self._credits[name] -= num * WHOLE
        return {name: num for name, num in quota.items() if num}

    def _parts_of(self, shares: Mapping[str, float]) -> dict[str, int]:
        """Return the parts of shares, which are often those of the batch before."""
        if shares != self._shares:
            self._shares, self._parts = dict(shares), parts(shares)
        return self._parts

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return what each environment carries over to the next batch, in groups: less than one, up or down."""
        return {name: {"groups_carried": credit / WHOLE} for name, credit in self._credits.items()}

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
        if not mapping_of(lambda credit: type(credit) is int and abs(credit) < _LIMIT)(state):
            raise CheckpointError(f"{state!r:.200} is not the state of quotas; accepted: what state_dict() returned")
        self._credits = dict(state)


class _Places:
    """The places of one batch, and who may or must have them."""

    def __init__(
        self, whole: Mapping[str, int], owed: Mapping[str, int], num_groups: int, most: Mapping[str, int]
    ) -> None:
        self._whole, self._owed, self._num_groups, self._most = whole, owed, num_groups, most
        self._quota = {name: min(num // WHOLE, num_groups) if (num := owed[name]) >= WHOLE else 0 for name in whole}
        for name, cap in most.items():
            self._quota[name] = min(self._quota[name], cap)

    def filled(self) -> dict[str, int]:
        """Return who gets how many."""
        quota = self._quota
        missing = self._num_groups - sum(quota.values())
        if missing > 0:
            for *_, name in nsmallest(missing, self._begun()):
                quota[name] += 1
            missing = self._num_groups - sum(quota.values())
        for _ in range(missing):  # shares that changed, or caps: they go to whoever is next
            quota[min(filter(self._has_room, quota), key=self._next)] += 1
        for _ in range(-missing):  # shares that changed: whoever can wait is left out
            quota[max(filter(quota.get, quota), key=self._last)] -= 1
        return quota

    def _begun(self) -> list[tuple[int, int, str]]:
        """Return the deadlines of the jobs that may be done; written out, for it takes most of a decision's time."""
        whole, owed, most, num_groups = self._whole, self._owed, self._most, self._num_groups
        begun = []
        for name, num in self._quota.items():
            left = (num + 1) * WHOLE - owed[name]
            if left < WHOLE and num < most.get(name, num_groups):
                begun.append((-(-left // (num_groups * whole[name])), left, name))
        return begun

    def _has_room(self, name: str) -> bool:
        return self._quota[name] < self._most.get(name, self._num_groups)

    def _next(self, name: str) -> tuple[int, int, str]:
        return self._deadline(name, self._quota[name] + 1)

    def _last(self, name: str) -> tuple[int, int, str]:
        return self._deadline(name, self._quota[name])

    def _deadline(self, name: str, job: int) -> tuple[int, int, str]:
        """Order jobs: batches until one is paid for in full, then who is owed more."""
        left = job * WHOLE - self._owed[name]
        return -(-left // (self._num_groups * self._whole[name])), left, name


def parts(shares: Mapping[str, float]) -> dict[str, int]:
    """Cut a whole into integer parts; every share above 0 has at least one, and the largest has what rounding leaves.

    Args:
        shares: By environment, in any unit, not negative.

    Returns:
        The environments with a share; the parts add up to `WHOLE`.

    Raises:
        SpecError: All shares are 0.

    Example:
        >>> [part / WHOLE for part in parts({"a": 3, "b": 1}).values()]
        [0.75, 0.25]
    """
    sized = comparable(shares)
    scale = WHOLE / math.fsum(sized.values())
    whole = {name: int(sized[name] * scale + 0.5) or 1 for name, share in shares.items() if share > 0}
    largest = max(whole.values())
    whole[min(name for name, part in whole.items() if part == largest)] += WHOLE - sum(whole.values())
    return whole


def capped(shares: Mapping[str, float], num_groups: int, caps: Mapping[str, int]) -> dict[str, float]:
    """Give what an environment cannot hold to the others, in proportion to their shares.

    Args:
        shares: By environment, in any unit.
        num_groups: Groups of a batch.
        caps: Most groups of an environment in a batch; none for those not named.

    Returns:
        Shares that add up to 1, none above its cap, if the caps hold a batch at all; otherwise the caps.

    Raises:
        SpecError: All shares are 0.

    Example:
        >>> capped({"a": 0.5, "b": 0.25, "c": 0.25}, 8, {"a": 2})
        {'a': 0.25, 'b': 0.375, 'c': 0.375}
    """
    free = {name: share for name, share in normalised(shares).items() if share > 0}
    full: dict[str, float] = {}
    while free:
        left = max(0.0, 1.0 - math.fsum(full.values()))
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
