"""Decides how the mixture follows what can be learnt: a bandit on the mean |advantage| of each environment.

Flow: `Curriculum.observe` → `Bandit.observe`; `Curriculum.plan` → `Bandit.shares` → `Bandit.compensated`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import mul, sub
from typing import Any, Final

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_amount, is_share, mapping_of, read, renamed
from multienv.errors import CheckpointError
from multienv.specs import Adaptive

_LARGEST: Final = 1e300
"""A larger sum of |advantage| is no advantage but a number that ran away, like an infinite one."""

_COARSE: Final = 1e-200


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
        own: dict[str, tuple[float, int, int, int]] = {}
        for outcome in outcomes:
            if outcome.num_scored and 0 <= outcome.sum_abs_advantage <= _LARGEST:
                size, num_scored, num_signals, num_groups = own.get(outcome.environment, (0.0, 0, 0, 0))
                own[outcome.environment] = (
                    size + outcome.sum_abs_advantage,
                    num_scored + outcome.num_scored,
                    num_signals + (outcome.num_nonzero > 0),
                    num_groups + 1,
                )
        for name, (size, num_scored, num_signals, num_groups) in own.items():
            self._average(self._scores, name, size / num_scored)
            self._average(self._signals, name, num_signals / num_groups)

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
        names = list(priors) if all(priors.values()) else [name for name, prior in priors.items() if prior]
        weights = [priors[name] for name in names]
        targets = _scaled(self._targets(names), weights)
        olds = _scaled([self._tilts.get(name, 1.0) for name in names], weights)
        steps = list(map(sub, targets, olds))
        floor, free = self._spec.floor, 1 - self._spec.floor
        most = free * max(map(abs, map(mul, weights, steps)))
        part = min(1.0, self._spec.max_change / max(most, 1e-12))
        tilts = [old + part * step for old, step in zip(olds, steps, strict=True)]
        self._tilts.update(zip(names, tilts, strict=True))
        moved = [prior * (floor + free * tilt) for prior, tilt in zip(weights, tilts, strict=True)]
        return dict.fromkeys(priors, 0.0) | dict(zip(names, moved, strict=True))

    def _targets(self, names: Sequence[str]) -> list[float]:
        """Return tilts in any unit; an environment not seen yet has the mean score of the others in the mixture."""
        known = [self._scores[name] for name in names if name in self._scores]
        if not known:
            return [1.0] * len(names)
        best, mean = max(known), math.fsum(known) / len(known)
        temperature = self._spec.temperature
        return [math.exp(min(0.0, self._scores.get(name, mean) - best) / temperature) for name in names]

    def compensated(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return weights by which the shares reach the gradient, where some groups carry no signal.

        Args:
            shares: What is to reach the gradient, by environment.

        Returns:
            Weights to dispatch by, at most `max_compensation` times the shares. An environment not seen yet counts like
            the mean of the others, or it would stand behind them when a stage begins with it.
        """
        most = self._spec.max_compensation
        known = [self._signals[name] for name, share in shares.items() if share and name in self._signals]
        unseen = math.fsum(known) / len(known) if known else 1.0
        weights = dict(shares)
        for name in shares:
            if (signal := self._signals.get(name, unseen)) < 1:
                weights[name] *= min(most, 1 / signal) if signal else most
        return weights

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
        amounts = mapping_of(is_amount)
        loaded = read(state, "the bandit", scores=amounts, signals=mapping_of(is_share), tilts=amounts)
        if loaded["scores"].keys() != loaded["signals"].keys():
            raise CheckpointError("the state of the bandit has scores and signals of different environments")
        self._scores, self._signals, self._tilts = (dict(loaded[key]) for key in ("scores", "signals", "tilts"))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the figures of each environment: mean |advantage|, share of groups with a signal."""
        return {
            name: {"mean_abs_advantage": score, "signal": self._signals[name]} for name, score in self._scores.items()
        }


def _scaled(tilts: Sequence[float], priors: Sequence[float]) -> list[float]:
    """Scale tilts so that their mean under the priors is 1; without tilts where a float is too coarse for that."""
    mean = math.fsum(map(mul, priors, tilts))
    return [tilt / mean for tilt in tilts] if mean > _COARSE else [1.0] * len(tilts)
