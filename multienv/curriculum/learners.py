"""Decides how a simulated policy succeeds, learns and forgets: one skill per environment, no model.

Flow: `simulation.simulate` → `SimulatedPolicy.train` with each batch → the `Outcome`s that the curriculum observes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final

from multienv.curriculum.batch import Batch
from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_count, is_number, is_share, mapping_of
from multienv.errors import SpecError

_MAX_LEVELS: Final = 64
_STD_FLOOR: Final = 1e-4
_UNIT: Final = ("start", "ceiling", "failure_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """How a policy fares in one environment.

    A task's success is `ceiling * logistic(skill - difficulty)`. A group adds `speed * 4 * s * (1 - s)` to the skill,
    where `s` is the share of its scored rollouts that succeeded: all alike teach nothing. Where the ceiling is below 1,
    only the part of the failures that skill can avoid teaches, so noise at the ceiling is signal without progress.

    Attributes:
        start: Mean success over the environment's tasks before training, above 0 and below `ceiling`.
        speed: Skill gained from a group of which one half succeeds.
        ceiling: The success that no skill exceeds.
        spread: Standard deviation of the tasks' difficulties, in the unit of skill; 0 for tasks that are all alike.
        interference: Skill lost to a group of another environment of which one half succeeds. What the policy could do
            at the start is not lost.
        transfer: From another environment to the share of its gains in skill that is gained here too. It does not
            interfere.
        outages: Spans of batches, each from its first batch to the one after its last, in which rollouts are refused.
        failure_rate: How likely infrastructure breaks a rollout.
        num_tokens: Tokens of a rollout.

    Raises:
        SpecError: A value cannot be right.

    Example:
        >>> Learner(start=0.1, outages=[(40, 60)]).is_down(59), Learner().is_down(59)
        (True, False)
    """

    start: float = 0.2
    speed: float = 0.05
    ceiling: float = 1.0
    spread: float = 1.0
    interference: float = 0.0
    transfer: Mapping[str, float] = field(default_factory=dict)
    outages: Sequence[Sequence[int]] = ()
    failure_rate: float = 0.0
    num_tokens: int = 500

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("start", "speed", "ceiling", "spread", "interference", "failure_rate"):
            value, most = getattr(self, name), 1.0 if name in _UNIT else math.inf
            if not is_number(value) or not 0 <= value <= most:
                raise SpecError(f"{name}={value!r}; accepted: a number from 0" + (" to 1" if name in _UNIT else ""))
        if not 0 < self.start < self.ceiling:
            raise SpecError(f"start={self.start!r}; accepted: above 0 and below ceiling={self.ceiling!r}")
        if not is_count(self.num_tokens):
            raise SpecError(f"num_tokens={self.num_tokens!r}; accepted: a whole number from 0")
        if not mapping_of(is_share)(self.transfer):
            raise SpecError(f"transfer={self.transfer!r}; accepted: shares from 0 to 1, as in {{'seta': 0.2}}")
        if not isinstance(self.outages, list | tuple) or not all(map(_is_span, self.outages)):
            raise SpecError(
                f"outages={self.outages!r}; accepted: pairs of batches, the second one larger, as in [[40, 60]]"
            )

    def is_down(self, batch: int) -> bool:
        """Tell whether the environment refuses the rollouts of a batch."""
        return any(first <= batch < end for first, end in self.outages)


def _is_span(value: Any) -> bool:
    """Tell whether a value is a span of batches."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_count, value)) and value[0] < value[1]  # noqa: PLR2004 - a pair


class SimulatedEnvironment:
    """One environment and what the policy can do in it.

    The tasks' difficulties are the quantiles of a normal distribution, at most 64 of them, dealt to the tasks by the
    seed; so the mean success over all tasks is known exactly however many there are.

    Args:
        name: Its name; part of the seed, so that equal groups go equally well whatever the other environments do.
        num_tasks: How many tasks it has.
        learner: The declaration.
        seed: Seed of difficulties and rollouts.
    """

    def __init__(self, name: str, num_tasks: int, learner: Learner, seed: int) -> None:
        self.name, self.learner = name, learner
        self._random = random.Random(f"{seed}/{name}")  # noqa: S311 - a simulation
        num_levels = min(num_tasks, _MAX_LEVELS)
        normal = NormalDist()
        self._difficulties = [learner.spread * normal.inv_cdf((i + 0.5) / num_levels) for i in range(num_levels)]
        self._weights = [(num_tasks - level - 1) // num_levels + 1 for level in range(num_levels)]
        self._levels = bytearray(task % num_levels for task in range(num_tasks))
        self._random.shuffle(self._levels)
        self._start_skill = self.skill = self._skill_at(learner.start)

    @property
    def success(self) -> float:
        """The mean success over all tasks, with the skill of now; no sample."""
        return self._mean(self.skill)

    def success_at(self, task: int) -> float:
        """Return how likely a rollout of a task succeeds, with the skill of now."""
        return self._success(self.skill, self._difficulties[self._levels[task]])

    def play(self, task: int, num_rollouts: int, *, is_down: bool) -> Outcome:
        """Play a group, and return what became of it."""
        if is_down:
            return Outcome(self.name, task, num_rollouts, num_refused=num_rollouts)
        success, rate, draw = self.success_at(task), self.learner.failure_rate, self._random.random
        num_failed = sum(draw() < rate for _ in range(num_rollouts)) if rate else 0
        num_scored = num_rollouts - num_failed
        num_successes = sum(draw() < success for _ in range(num_scored))
        return Outcome(
            self.name,
            task,
            num_rollouts,
            num_finished=num_scored,
            num_failed=num_failed,
            num_scored=num_scored,
            num_successes=num_successes,
            num_nonzero=num_scored if 0 < num_successes < num_scored else 0,
            sum_abs_advantage=sum_abs_advantage(num_successes, num_scored),
            num_tokens=num_scored * self.learner.num_tokens,
        )

    def gain(self, outcome: Outcome) -> float:
        """Return the skill that a group adds."""
        success, ceiling = self.success_at(outcome.task), self.learner.ceiling
        avoidable = (ceiling - success) / (1 - success) if success < 1 else 0.0
        return self.learner.speed * signal(outcome) * avoidable

    def move(self, gain: float) -> None:
        """Change the skill, down to that of the start at most."""
        self.skill = max(self._start_skill, self.skill + gain)

    def _success(self, skill: float, difficulty: float) -> float:
        return self.learner.ceiling * 0.5 * (1 + math.tanh((skill - difficulty) / 2))  # the logistic, free of overflow

    def _mean(self, skill: float) -> float:
        pairs = zip(self._difficulties, self._weights, strict=True)
        total = math.fsum(weight * self._success(skill, difficulty) for difficulty, weight in pairs)
        return min(self.learner.ceiling, total / len(self._levels))

    def _skill_at(self, success: float) -> float:
        """Return the least skill with a mean success, by bisection."""
        reach = 40 + 4 * self.learner.spread
        low, high = -reach, reach
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean(middle) < success else (low, middle)
        return high


class SimulatedPolicy:
    """A policy in several environments: it plays batches, learns from them, and forgets.

    Args:
        environments: The environments.
        num_generations: Rollouts of a group.
    """

    def __init__(self, environments: Iterable[SimulatedEnvironment], num_generations: int) -> None:
        self._environments: Final = {environment.name: environment for environment in environments}
        self._num_generations = num_generations

    @property
    def success(self) -> dict[str, float]:
        """The mean success over the tasks of each environment."""
        return {name: environment.success for name, environment in self._environments.items()}

    def train(self, batch: Batch) -> list[Outcome]:
        """Play a batch with the skill before it, learn from it, and return what became of its groups."""
        outcomes = []
        for pick in batch.groups:
            environment = self._environments[pick.environment]
            is_down = environment.learner.is_down(batch.index)
            outcomes.append(environment.play(pick.task, self._num_generations, is_down=is_down))
        gains, signals = dict.fromkeys(self._environments, 0.0), dict.fromkeys(self._environments, 0.0)
        for outcome in outcomes:
            gains[outcome.environment] += self._environments[outcome.environment].gain(outcome)
            signals[outcome.environment] += signal(outcome)
        for name, environment in self._environments.items():
            learner = environment.learner
            others = [other for other in signals if other != name]
            shared = math.fsum(learner.transfer.get(other, 0.0) * gains[other] for other in others)
            lost = learner.interference * math.fsum(signals[other] for other in others if other not in learner.transfer)
            environment.move(gains[name] + shared - lost)
        return outcomes


def signal(outcome: Outcome) -> float:
    """Return how far a group's rewards are apart: 0 where all are alike, 1 where one half succeeds.

    Example:
        >>> signal(Outcome("a", 0, 8, num_scored=8, num_successes=4)), signal(Outcome("a", 0, 8, num_scored=8))
        (1.0, 0.0)
    """
    if not outcome.num_scored:
        return 0.0
    share = outcome.num_successes / outcome.num_scored
    return 4 * share * (1 - share)


def sum_abs_advantage(num_successes: int, num_scored: int) -> float:
    """Return the sum of |advantage| of a group whose rewards are 0 and 1, normalised as TRL does.

    Example:
        >>> round(sum_abs_advantage(4, 8), 3), sum_abs_advantage(8, 8)
        (7.482, 0.0)

    Source:
        TRL's `GRPOTrainer`: (reward - mean) / (std + 1e-4), the standard deviation with Bessel's correction.
    """
    if not 0 < num_successes < num_scored:
        return 0.0
    size = 2 * num_successes * (num_scored - num_successes) / num_scored
    std = math.sqrt(num_successes * (num_scored - num_successes) / (num_scored * (num_scored - 1)))
    return size / (std + _STD_FLOOR)
