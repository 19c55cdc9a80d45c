"""Decides how a curriculum is played without a model: its plans against a simulated policy, batch after batch.

Flow: `multienv simulate` or a caller → `simulate` → `Curriculum.plan` → `SimulatedPolicy.train` → `Curriculum.observe`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from multienv.curriculum.account import Account
from multienv.curriculum.curriculum import Curriculum
from multienv.curriculum.entries import Entry
from multienv.curriculum.learners import Learner, SimulatedEnvironment, SimulatedPolicy
from multienv.errors import SpecError, nearest
from multienv.specs import CurriculumSpec

_READ_AHEAD: Final = 1
"""Batches that are planned before the outcome of one is there, as in a training with `MultiEnvGRPOTrainer`."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One batch of a simulation, by environment.

    Attributes:
        asked: The share that was asked for.
        dispatched: Groups that were dispatched; an environment without any is missing.
        success: The mean success over all tasks of the policy that played the batch, not the sample of its rollouts.
    """

    asked: Mapping[str, float]
    dispatched: Mapping[str, int]
    success: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Simulation:
    """How a curriculum went.

    Attributes:
        moments: The batches, in order.
        final: The success after the last one, by environment.
        account: What was asked for and what became of it.
    """

    moments: tuple[Moment, ...]
    final: Mapping[str, float]
    account: Account

    @property
    def successes(self) -> list[Mapping[str, float]]:
        """The success by environment after 0, 1, 2, ... batches: one more than there are batches."""
        return [*(moment.success for moment in self.moments), self.final]

    @property
    def worst(self) -> str:
        """The environment with the lowest success at the end."""
        return min(self.final, key=lambda name: self.final[name])

    def batches_until(self, success: float) -> int | None:
        """Return how many batches were trained on when the worst environment first had a success; None for never."""
        reached = (num for num, each in enumerate(self.successes) if min(each.values()) >= success)
        return next(reached, None)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {
            "moments": [
                {"asked": dict(each.asked), "dispatched": dict(each.dispatched), "success": dict(each.success)}
                for each in self.moments
            ],
            "final": dict(self.final),
            "account": self.account.state_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Simulation:
        """Return the simulation that `to_dict` wrote down.

        Raises:
            CheckpointError: The account is none.
        """
        account = Account()
        account.load_state_dict(values["account"])
        return cls(tuple(Moment(**moment) for moment in values["moments"]), dict(values["final"]), account)


def simulate(
    entries: Iterable[Entry],
    learners: Mapping[str, Learner],
    spec: CurriculumSpec,
    *,
    num_groups: int = 16,
    num_generations: int = 8,
    num_batches: int = 200,
    seed: int = 0,
) -> Simulation:
    """Play a curriculum against a simulated policy; the same arguments give the same simulation.

    Args:
        entries: The environments, as the curriculum knows them.
        learners: How the policy fares in each of them, by name.
        spec: The curriculum.
        num_groups: Groups of a batch.
        num_generations: Rollouts of a group.
        num_batches: How many batches.
        seed: Seed of the tasks' order, their difficulties, and the rollouts.

    Raises:
        SpecError: There is nothing to simulate, an environment has no learner, or a learner names an unknown one.
        SessionLimitError: The environments may hold fewer groups than a batch has.

    Example:
        >>> entries = [Entry("easy", 40), Entry("hard", 40)]
        >>> learners = {"easy": Learner(start=0.5), "hard": Learner(start=0.1)}
        >>> simulate(entries, learners, CurriculumSpec(), num_batches=100).batches_until(0.8)
        21
    """
    entries = [entry for entry in entries if entry.num_tasks]
    check_learners([entry.name for entry in entries], learners)
    if spec.is_left_to_trl:
        raise SpecError(
            "mixture='dataset' leaves the rows to TRL's own sampler, so there is no curriculum to simulate; on average "
            'that sampler does what "proportional" does'
        )
    curriculum = Curriculum(entries, spec, num_groups, seed=seed, lag=_READ_AHEAD)
    policy = SimulatedPolicy(
        (SimulatedEnvironment(entry.name, entry.num_tasks, learners[entry.name], seed) for entry in entries),
        num_generations,
    )
    moments = []
    for index in range(num_batches):
        batch = curriculum.plan()
        success = policy.success
        curriculum.observe(index, policy.train(batch))
        curriculum.forget(index)
        moments.append(Moment(dict(batch.asked), dict(Counter(pick.environment for pick in batch.groups)), success))
    return Simulation(tuple(moments), policy.success, curriculum.account)


def check_learners(names: Iterable[str], learners: Mapping[str, Learner]) -> None:
    """Check that every environment has a learner, and that learners name no others.

    Raises:
        SpecError: One is missing or unknown.
    """
    known = list(names)
    if missing := [name for name in known if name not in learners]:
        raise SpecError(f"environment {missing[0]!r} has no learner; give each one, as in learners={{name: Learner()}}")
    for name, learner in learners.items():
        others = [other for other in known if other != name]
        for other in learner.transfer:
            if other not in others:
                raise SpecError(
                    f"environments.{name}.learner.transfer names {other!r}{nearest(other, others)}; accepted: the "
                    f"other environments ({', '.join(others) or 'there are none'})",
                    environment=name,
                )
