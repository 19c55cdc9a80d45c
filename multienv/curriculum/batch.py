"""Decides in which order the groups of a batch lie, so that no rank holds more of an environment than it must.

Flow: `Curriculum.plan` → `dealt` → `Batch` → the sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multienv.curriculum.outcomes import Pick


@dataclass(frozen=True, slots=True)
class Batch:
    """The plan of one generation batch.

    Attributes:
        index: Its number, from 0.
        groups: The tasks, one for each group, in the order of the batch.
        asked: The share of each environment that was asked for, before limits, outages and compensation.
        max_tool_calls: Horizons of the stage, by environment.
        stage: The stage that it was planned in, from 0.
    """

    index: int
    groups: tuple[Pick, ...]
    asked: Mapping[str, float]
    max_tool_calls: Mapping[str, int] = field(default_factory=dict)
    stage: int = 0


def dealt(groups: Sequence[Pick], num_ranks: int) -> tuple[Pick, ...]:
    """Deal groups to ranks one by one, and lay the ranks' slices one after the other.

    Groups that follow each other are of one environment, so its groups are spread over the ranks as evenly as can be.

    Args:
        groups: Environment after environment.
        num_ranks: How many slices; where the groups cannot be cut into equal ones, they are left as they are.

    Example:
        >>> [pick.environment for pick in dealt([Pick("a", 0), Pick("a", 1), Pick("b", 0), Pick("b", 1)], 2)]
        ['a', 'b', 'a', 'b']
    """
    if len(groups) % num_ranks:
        return tuple(groups)
    return tuple(pick for rank in range(num_ranks) for pick in groups[rank::num_ranks])
