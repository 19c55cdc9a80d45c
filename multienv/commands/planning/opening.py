"""Decides how long a batch's sessions take to open, from what one takes and from the limits on starts.

Flow: `plan` → here, with the seconds that were measured and the sessions that a batch needs in one process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from multienv.sessions.slots import share
from multienv.specs import Limits


def opening_s(num_sessions: int, open_s: float, limits: Limits, num_processes: int = 1) -> float:
    """Return the seconds until a number of sessions of one environment are open in one process.

    Args:
        num_sessions: How many are asked for at once.
        open_s: Seconds that one takes.
        limits: The environment's.
        num_processes: Processes that share the limits.

    Example:
        >>> opening_s(8, 2.0, Limits(max_concurrent_starts=4)), opening_s(8, 2.0, Limits(starts_per_s=1.0))
        (4.0, 9.0)
    """
    if not num_sessions:
        return 0.0
    at_once = share(limits.max_concurrent_starts, num_processes) or 1
    by_turns = math.ceil(num_sessions / at_once) * open_s
    if limits.starts_per_s is None:
        return by_turns
    return max(by_turns, (num_sessions - 1) * num_processes / limits.starts_per_s + open_s)


def batch_opening_s(
    sessions: Mapping[str, int],
    open_s: Mapping[str, float],
    limits: Mapping[str, Limits],
    max_concurrent_starts: int | None = None,
    num_processes: int = 1,
) -> float | None:
    """Return the seconds until all sessions of a batch are open in one process: those of the slowest environment.

    Args:
        sessions: How many sessions each environment needs there.
        open_s: Seconds that one of each takes.
        limits: Of each environment.
        max_concurrent_starts: Most sessions of all environments being opened at once; None for no limit.
        num_processes: Processes that share the limits.

    Returns:
        None where it is not known what a session of one of them takes.
    """
    needed = {name: num for name, num in sessions.items() if num}
    if not needed.keys() <= open_s.keys():
        return None
    slowest = max(
        (opening_s(num, open_s[name], limits[name], num_processes) for name, num in needed.items()), default=0
    )
    at_once = share(max_concurrent_starts, num_processes)
    together = 0.0 if at_once is None else math.fsum(num * open_s[name] for name, num in needed.items()) / at_once
    return max(float(slowest), together)
