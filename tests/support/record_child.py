"""Writes episodes until it is killed. Run with DIR and the first training step."""

from __future__ import annotations

import itertools
import sys

from multienv.reporting import EpisodeRecord
from multienv.types import Episode, EpisodeStatus, Step


def main(directory: str, first_step: int) -> None:
    record = EpisodeRecord(directory)
    record.run = "run"
    steps = tuple(Step("tool", {"text": "x" * 1_900}, "y" * 1_900, 1.0) for _ in range(100))
    for step in itertools.count(first_step):
        record.add(
            [Episode("a", f"a/train/{row}", None, steps, EpisodeStatus.FINISHED, training_step=step) for row in (0, 1)]
        )
        print(step, flush=True)  # noqa: T201 - tells the parent that the step is in the file


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
