"""Decides how long a run is: its steps, and the generation batches that these take.

Flow: `plan` → here, with the pace of the data loader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from multienv.training.sampling import Pace


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is.

    Attributes:
        num_steps: Optimiser steps.
        num_batches: Generation batches that are played for them.
    """

    num_steps: int
    num_batches: int


def length_of(pace: Pace, *, max_steps: int, num_train_epochs: float) -> Length:
    """Return how long a run is.

    Args:
        pace: How the data loader goes through an epoch.
        max_steps: As in `GRPOConfig`; below 1 the epochs decide.
        num_train_epochs: As there.

    Example:
        >>> length_of(Pace(8, 4, num_batches=10, num_accumulated=2), max_steps=0, num_train_epochs=1.5)
        Length(num_steps=30, num_batches=15)

    Source:
        `Trainer.set_initial_training_values` of transformers.
    """
    num_steps = max_steps if max_steps > 0 else math.ceil(num_train_epochs * pace.steps_per_epoch)
    num_epochs, rest = divmod(num_steps, pace.steps_per_epoch)
    begun = -(-rest * pace.num_accumulated // pace.num_repeats)
    return Length(num_steps, num_epochs * pace.num_batches + min(begun, pace.num_batches))
