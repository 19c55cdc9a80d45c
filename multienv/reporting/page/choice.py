"""Decides which episodes are put into a page that cannot hold all: some of each kind, spread over the run.

Flow: `write` → `in_order_of_choice` → as many of the first as there is room for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest

from multienv.reporting.page.figures import phase_of
from multienv.types import Episode


def in_order_of_choice(episodes: Sequence[Episode]) -> list[int]:
    """Return the places of episodes so that the first of them, however many, stand for all.

    Every environment and status of training and of evaluation takes its turn, and what it gives is spread evenly over
    its episodes.

    Args:
        episodes: In the order in which they were played.
    """
    kinds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, episode in enumerate(episodes):
        kinds[phase_of(episode), episode.environment, episode.status].append(place)
    turns = zip_longest(*([own[i] for i in spread_out(len(own))] for own in kinds.values()))
    return [place for place in chain.from_iterable(turns) if place is not None]


def spread_out(count: int) -> list[int]:
    """Return the numbers below a count so that the first of them, however many, lie evenly.

    Example:
        >>> spread_out(6)
        [0, 4, 2, 1, 5, 3]
    """
    width = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{width}b}"[::-1], 2))
