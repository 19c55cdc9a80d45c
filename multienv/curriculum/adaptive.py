"""Decides how the mixture follows what can be learnt: a bandit on the mean |advantage| of each environment.

Flow: `Curriculum.observe` → `Bandit.observe`; `Curriculum.plan` → `Bandit.shares` → `Bandit.compensated`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_number, is_share, mapping_of, read, renamed
from multienv.specs import Adaptive


class Bandit:
    """Tilts the prior shares towards environments whose advantages are large.

    An environment's share is `prior * (floor + (1 - floor) * tilt)`. The tilts are `exp(score / temperature)`, scaled
    so that the shares add up to those of the priors, and approached no faster than `max_change` allows. The score is
    a running mean over batches of the mean |advantage| of scored rollouts. Episodes that infrastructure ended have no
    advantage and move nothing.

    Args:
        spec: The declaration.
    """

    def __init__(self, spec: Adaptive) -> None:
        self._spec = spec
        self._scores: dict[str, float] = {}
        self._signals: dict[str, float] = {}
        self._tilts: dict[str, float] = {}

    def observe(self, outcomes: Iterable[Outcome]) -> None:
        """Take in the groups of one batch."""
        own: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            if outcome.num_scored and math.isfinite(outcome.sum_abs_advantage):
                own[outcome.environment].append(outcome)
        for name, groups in own.items():
            size = math.fsum(group.sum_abs_advantage for group in groups)
            self._average(self._scores, name, size / sum(group.num_scored for group in groups))
            self._average(self._signals, name, sum(group.num_nonzero > 0 for group in groups) / len(groups))

    def _average(self, averages: dict[str, float], name: str, newest: float) -> None:
        weight = self._spec.smoothing if name in averages else 1.0
        averages[name] = (1 - weight) * averages.get(name, 0.0) + weight * newest

    def shares(self, priors: Mapping[str, float]) -> dict[str, float]:
        """Return the shares of the next batch, one step from those of the last.

        Args:
            priors: Shares that add up to 1; an environment with none gets none.

        Returns:
            Shares that add up to 1, each at least `floor` of its prior.
        """
        targets = _scaled(self._targets(priors), priors)
        olds = _scaled({name: self._tilts.get(name, 1.0) for name in priors}, priors)
        floor, free = self._spec.floor, 1 - self._spec.floor
        moves = [free * prior * abs(targets[name] - olds[name]) for name, prior in priors.items()]
        part = min(1.0, self._spec.max_change / max((*moves, 1e-12)))
        self._tilts |= {name: olds[name] + part * (targets[name] - olds[name]) for name in priors}
        return {name: prior * (floor + free * self._tilts[name]) for name, prior in priors.items()}

    def _targets(self, priors: Mapping[str, float]) -> dict[str, float]:
        """Return tilts in any unit; an environment not seen yet has the mean score of the others."""
        known = [self._scores[name] for name in priors if name in self._scores]
        if not known:
            return dict.fromkeys(priors, 1.0)
        best, mean = max(known), math.fsum(known) / len(known)
        return {name: math.exp((self._scores.get(name, mean) - best) / self._spec.temperature) for name in priors}

    def compensated(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return weights by which the shares reach the gradient, where some groups carry no signal.

        Args:
            shares: What is to reach the gradient, by environment.

        Returns:
            Weights to dispatch by, at most `max_compensation` times the shares.
        """
        most = self._spec.max_compensation
        return {name: share * min(most, 1 / max(self._signals.get(name, 1.0), 1e-9)) for name, share in shares.items()}

    def rename(self, names: Mapping[str, str]) -> None:
        """Keep only the environments named, under their new names."""
        self._scores, self._signals, self._tilts = (
            renamed(values, names) for values in (self._scores, self._signals, self._tilts)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after a restart; plain JSON."""
        return {"scores": dict(self._scores), "signals": dict(self._signals), "tilts": dict(self._tilts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: It is none.
        """
        numbers = mapping_of(lambda value: is_number(value) and value >= 0)
        loaded = read(state, "the bandit", scores=numbers, signals=mapping_of(is_share), tilts=numbers)
        self._scores, self._signals, self._tilts = (dict(loaded[key]) for key in ("scores", "signals", "tilts"))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the figures of each environment: mean |advantage|, share of groups with a signal."""
        return {
            name: {"mean_abs_advantage": score, "signal": self._signals[name]} for name, score in self._scores.items()
        }


def _scaled(tilts: Mapping[str, float], priors: Mapping[str, float]) -> dict[str, float]:
    """Scale tilts so that their mean under the priors is 1."""
    mean = math.fsum(prior * tilts[name] for name, prior in priors.items())
    return {name: tilt / mean if mean > 0 else 1.0 for name, tilt in tilts.items()}
