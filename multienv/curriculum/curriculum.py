"""Decides which tasks the next batch is made of, from what was declared and what was observed; the same on every rank.

Flow: `training.sampling` → `Curriculum.plan` → the rows of a batch → the trainer → `Curriculum.observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from multienv.curriculum.account import Account, Line
from multienv.curriculum.adaptive import Bandit
from multienv.curriculum.batch import Batch, dealt
from multienv.curriculum.checkpoint import digest, restore, state_of
from multienv.curriculum.entries import Entry, by_name, check_followed
from multienv.curriculum.outages import Outages
from multienv.curriculum.outcomes import Outcome, Pick
from multienv.curriculum.quotas import Quotas, capped
from multienv.curriculum.shares import base_weights, normalised, scheduled
from multienv.curriculum.stages import Stages
from multienv.curriculum.tasks import TaskOrder
from multienv.errors import OrderError, RoutingError, SpecError
from multienv.specs import CurriculumSpec


class Curriculum:
    """Plans batch after batch, and learns from what became of them.

    A plan is a function of the seed, the declaration, and the outcomes of the batches up to `lag` before the last one;
    never of when an outcome arrived. Batches that were planned are remembered until they are forgotten.

    Args:
        entries: The environments.
        spec: The declaration.
        num_groups: Groups of a batch.
        seed: Seed of the order of tasks, where the declaration has none.
        steps_before: From a batch to the training steps done before it; by default a batch is a step.
        lag: How many batches are planned before the outcome of one is there.
        num_ranks: Processes that a batch is dealt to, each a slice.
        is_shuffled: False goes through each environment's tasks in their own order.

    Raises:
        SpecError: There is nothing to train on, now or in a later stage or at a later step.
        SessionLimitError: The limits hold fewer groups than a batch has.

    Example:
        >>> curriculum = Curriculum([Entry("a", 10), Entry("b", 2)], CurriculumSpec(mixture="uniform"), num_groups=4)
        >>> [pick.environment for pick in curriculum.plan().groups]
        ['a', 'a', 'b', 'b']
    """

    def __init__(  # noqa: PLR0913 - what is declared, and how the trainer goes through it
        self,
        entries: Iterable[Entry],
        spec: CurriculumSpec,
        num_groups: int,
        *,
        seed: int = 0,
        steps_before: Callable[[int], int] = int,
        lag: int = 0,
        num_ranks: int = 1,
        is_shuffled: bool = True,
    ) -> None:
        if num_groups < 1 or num_ranks < 1 or lag < 0:
            raise SpecError(
                f"num_groups={num_groups}, num_ranks={num_ranks}, lag={lag}; accepted: at least one group and one "
                "rank, and a lag from 0"
            )
        self.entries: Final = by_name(entries)
        self.spec, self.num_groups, self.lag, self.num_ranks = spec, num_groups, lag, num_ranks
        self._steps_before = steps_before
        weights = {name: entry.sampling_weight for name, entry in self.entries.items()}
        self._base = base_weights(spec, weights, {name: entry.num_tasks for name, entry in self.entries.items()})
        self._caps = {name: entry.max_groups for name, entry in self.entries.items() if entry.max_groups is not None}
        self.seed: Final = seed if spec.seed is None else spec.seed
        self._places = {name: place for place, name in enumerate(self.entries)}
        self.priors: Final = normalised(self._base)
        self.orders = {
            name: TaskOrder(
                name,
                entry.num_tasks,
                self.seed,
                entry.rules,
                entry.expected,
                is_shuffled=is_shuffled,
                ids=entry.ids,
            )
            for name, entry in self.entries.items()
        }
        self.quotas, self.outages, self.account = Quotas(), Outages(), Account()
        self.stages = Stages(spec.stages)
        self.bandit = None if spec.adaptive is None else Bandit(spec.adaptive)
        self.num_planned = 0
        self.num_observed = 0
        self.batches: dict[int, Batch] = {}
        self.waiting: dict[int, list[Outcome]] = {}
        check_followed(self.entries, spec, num_groups, self.priors)

    def plan(self) -> Batch:
        """Plan the next batch."""
        index = self.num_planned
        self._learn(before=index - self.lag)
        asked = self._shares_at(self._steps_before(index))
        if self.bandit is not None:
            asked = self.bandit.shares(asked)
        wanted = asked if self.bandit is None else self.bandit.compensated(asked)
        trials: dict[str, int] = {}
        if not self.outages.is_over:
            wanted, trials = self.outages.shares(normalised(wanted), self.num_groups, self._caps)
        quota = self._quota(wanted, self.num_groups - sum(trials.values())) | trials
        stage = self.stages.current
        batch = Batch(
            index,
            dealt(
                [Pick(name, task) for name in self._sorted(quota) for task in self.orders[name].next(quota[name])],
                self.num_ranks,
            ),
            dict(asked),
            {} if stage is None else dict(stage.max_tool_calls),
            self.stages.place,
        )
        self.batches[index] = batch
        self.num_planned += 1
        return batch

    def _quota(self, shares: Mapping[str, float], num_groups: int) -> dict[str, int]:
        """Return how many of so many groups each environment gets."""
        if not num_groups:  # all of them are trials
            return {}
        caps = {name: cap for name, cap in self._caps.items() if name in shares}
        return self.quotas.take(capped(shares, num_groups, caps) if caps else shares, num_groups, caps)

    def _sorted(self, names: Iterable[str]) -> list[str]:
        """Return names in the order in which the environments were declared."""
        return sorted(names, key=self._places.__getitem__)

    def _shares_at(self, step: int) -> Mapping[str, float]:
        """Return the shares that are asked for at a step, before anything observed but the stage."""
        stage = self.stages.current
        if self.spec.schedule is not None:
            weights: Mapping[str, float] = scheduled(self.spec.schedule, step)
        elif stage is not None and stage.weights:
            weights = stage.weights
        else:
            return self.priors
        return normalised({name: weights.get(name, 0.0) for name in self.entries})

    def observe(self, index: int, outcomes: Sequence[Outcome]) -> None:
        """Take in what became of a batch; a batch that was observed before changes nothing.

        Args:
            index: The batch.
            outcomes: Of its groups, in their order; of all ranks.

        Raises:
            OrderError: It was not planned, or its predecessor has not been observed.
            RoutingError: The outcomes are not of its groups.
        """
        if 0 <= index < self.num_observed:
            return
        if index > self.num_observed or index not in self.batches:
            raise OrderError(
                f"batch {index} is observed, but the next to be observed is {self.num_observed} of {self.num_planned} "
                "planned ones; observe batches in the order in which they were planned"
            )
        batch = self.batches[index]
        if [(one.environment, one.task) for one in outcomes] != [(one.environment, one.task) for one in batch.groups]:
            raise RoutingError(
                f"the {len(outcomes)} outcomes of batch {index} are not of its {len(batch.groups)} groups, or in "
                "another order; observe one for each group, of all ranks, as they were planned"
            )
        self.num_observed += 1
        self.waiting[index] = list(outcomes)
        self.account.add(batch.asked, self.num_groups, outcomes)

    def _learn(self, before: int) -> None:
        """Learn from the batches observed, up to one; what came earlier than it had to waits."""
        for index in sorted(index for index in self.waiting if index < before):
            outcomes = self.waiting.pop(index)
            self.stages.observe(index, outcomes, self.num_planned)
            self.outages.observe(outcomes)
            if self.bandit is not None:
                self.bandit.observe(outcomes)
            for outcome in outcomes:
                if outcome.environment in self.orders:
                    self.orders[outcome.environment].observe(outcome)

    def forget(self, before: int) -> None:
        """Forget the plans of observed batches before one; they will not be asked for again."""
        for index in [index for index in self.batches if index < min(before, self.num_observed)]:
            del self.batches[index]

    @property
    def set_aside(self) -> dict[str, list[str]]:
        """The tasks that are left out for the rest of the run, for their sessions failed again and again; by id."""
        found = {}
        for name, order in self.orders.items():
            if places := order.set_aside:
                ids = self.entries[name].ids
                found[name] = [ids[place] if ids else str(place) for place in places]
        return found

    def metrics(self, batch: Batch, outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
        """Return the figures of each environment by name: what a batch asked for, what came of it, what was learnt.

        Args:
            batch: The batch.
            outcomes: Of its groups.
        """
        account = Account()
        account.add(batch.asked, self.num_groups, outcomes)
        learnt = {} if self.bandit is None else self.bandit.metrics()
        outages, quotas = self.outages.metrics(), self.quotas.metrics()
        metrics: dict[str, dict[str, float]] = {}
        for name, order in self.orders.items():
            line = account.lines.get(name, Line())
            metrics[name] = {
                "groups_asked": line.asked,
                "groups_dispatched": float(line.dispatched),
                "groups_owed": 0.0,
                "is_down": 0.0,
                **quotas.get(name, {}),
                **outages.get(name, {}),
                **({"nonzero_advantages": line.nonzero / line.rollouts} if line.rollouts else {}),
                **learnt.get(name, {}),
                **order.metrics(),
            }
        return metrics

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """What tells one list of tasks from another, by environment."""
        return {name: digest(name, entry.ids) for name, entry in self.entries.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on after a restart: plain JSON, tasks by their ids."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any], renamed: Mapping[str, str] | None = None) -> list[str]:
        """Go on from a state, exactly if nothing else was declared, and otherwise with what fits.

        Whatever was planned or observed before is forgotten. Where this raises, nothing has changed.

        Args:
            state: What `state_dict` returned.
            renamed: From the names of environments in the state to those they have now, where they differ.

        Returns:
            What is different now, in sentences.

        Raises:
            CheckpointError: It is no such state.
            SpecError: `renamed` names an environment that there is not.
        """
        return restore(self, state, renamed or {})
