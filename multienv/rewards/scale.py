"""Decides how large an environment's advantages usually are, so that they can be divided by it.

Flow: `weights.Weighing` takes in the totals of each batch here, then asks for each environment's factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from multienv.errors import SpecError
from multienv.rewards.shares import Totals


class RunningScale:
    """How large each environment's advantages are: an exponential moving average over batches, forgetting slowly.

    The mean square of a batch is over the rollouts that carry a signal, and is averaged with weights 1, `decay`,
    `decay`², ... from the newest batch backwards.

    Args:
        decay: Weight of the batch before, from 0 to less than 1.
        epsilon: Added to the root mean square before dividing by it.
    """

    def __init__(self, decay: float = 0.9, epsilon: float = 1e-8) -> None:
        if not 0 <= decay < 1:
            raise SpecError(f"decay={decay!r}; accepted: a number from 0 to less than 1; 0 looks at one batch only")
        self.decay, self.epsilon = decay, epsilon
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def update(self, totals: Mapping[str, Totals]) -> None:
        """Take in one batch; environments without a signal in it keep what they had."""
        for name, own in totals.items():
            if own.num_signals and math.isfinite(own.sum_squares):
                mean = own.sum_squares / own.num_signals
                self._sums[name] = self.decay * self._sums.get(name, 0.0) + mean
                self._weights[name] = self.decay * self._weights.get(name, 0.0) + 1.0

    def factor(self, name: str) -> float:
        """Return what to multiply an environment's advantages with; 1 for one that never had a signal."""
        if name not in self._sums:
            return 1.0
        return 1.0 / (math.sqrt(self._sums[name] / self._weights[name]) + self.epsilon)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after a restart; plain JSON."""
        return {"decay": self.decay, "sums": dict(self._sums), "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; an environment that it does not know starts anew.

        Raises:
            SpecError: It is not the state of such a scale.
        """
        try:
            decay = float(state["decay"])
            sums = {str(name): float(value) for name, value in state["sums"].items()}
            weights = {str(name): float(value) for name, value in state["weights"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SpecError(f"{state!r} is not the state of a running scale; give what state_dict() returned") from None
        is_sound = all(math.isfinite(value) and value >= 0 for value in sums.values())
        if decay != self.decay or sums.keys() != weights.keys() or not is_sound or any(w < 1 for w in weights.values()):
            raise SpecError(
                f"the state of a running scale does not fit: {dict(state)!r}; accepted: what state_dict() of one with "
                f"decay={self.decay} returned. Start from another checkpoint, or without normalize_advantages"
            )
        self._sums, self._weights = sums, weights
