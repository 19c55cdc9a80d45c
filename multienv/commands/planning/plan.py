"""Decides how a plan is worked out: the length of the run, its batches and their sessions, its mixture, its pace.

Flow: `multienv plan` → `make_plan` → a survey, the batches that would be dealt, an earlier record → `Plan`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean
from typing import Any, Final, Self

from multienv.checks import Survey
from multienv.commands.planning.dealing import Dealt, deal, largest_need, rollouts_by_rank
from multienv.commands.planning.earlier import Earlier
from multienv.commands.planning.length import Length, length_of
from multienv.commands.planning.opening import batch_opening_s, opening_s
from multienv.commands.planning.values import BatchPlan, EnvironmentPlan, Plan, Seconds
from multienv.commands.planning.words import assumed, problems_before, too_few, unknown
from multienv.errors import MultiEnvError, SpecError
from multienv.live import shortage
from multienv.meta import MultiEnvSpec
from multienv.rewards import Balance, effective_shares
from multienv.sessions.slots import share
from multienv.specs import EnvSpec
from multienv.training.stream import BatchSize, is_followed, rows_of
from multienv.types import Column

MOST_DEALT: Final = 5_000
"""Batches that are dealt to count tasks and sessions; what a longer run does beyond that follows from these."""
_NUM_FIRST_TASKS: Final = 3


def make_plan(  # noqa: PLR0913 - the options of the command
    spec: MultiEnvSpec,
    survey: Survey,
    args: Any,
    *,
    num_batches: int = 5,
    earlier: Earlier | None = None,
    num_processes: int = 1,
    balance: Balance = "none",
    is_batch_fixed: bool = False,
) -> Plan:
    """Work out what a run with `MultiEnvGRPOTrainer` will do; nothing is raised for what keeps it from working.

    Args:
        spec: The mixture.
        survey: What its environments answered.
        args: TRL's configuration.
        num_batches: First batches that are shown.
        earlier: What an earlier record says.
        num_processes: Processes that will train together.
        balance: As in `MultiEnvGRPOTrainer`.
        is_batch_fixed: True where `generation_batch_size` was given, which is of all processes together.
    """
    num_ranks = max(num_processes, args.world_size)
    if is_batch_fixed:
        args = _at_batch_size(args, num_ranks)
    return _Planning(spec, survey, args, earlier, num_ranks, balance).plan(num_batches)


def _at_batch_size(args: Any, num_ranks: int) -> Any:
    """Return the configuration that TRL makes on so many processes of a `generation_batch_size` that was given.

    Raises:
        SpecError: TRL refuses it.

    Source:
        `GRPOConfig.__post_init__`.
    """
    of_all = args.per_device_train_batch_size * num_ranks
    if args.generation_batch_size % of_all:
        raise SpecError(
            f"generation_batch_size={args.generation_batch_size} is no multiple of per_device_train_batch_size="
            f"{args.per_device_train_batch_size} on {num_ranks} processes, {of_all} together; change one of them"
        )
    there = copy.copy(args)
    there.steps_per_generation = args.generation_batch_size // of_all
    return there


class _Planning:
    """Works out one plan."""

    def __init__(
        self, spec: MultiEnvSpec, survey: Survey, args: Any, earlier: Earlier | None, num_ranks: int, balance: Balance
    ) -> None:
        self._spec, self._survey, self._args, self._earlier, self._balance = spec, survey, args, earlier, balance
        self._num_ranks = num_ranks
        self._num_rollouts = args.per_device_train_batch_size * args.steps_per_generation * num_ranks
        self._size = BatchSize.of(args, self._num_rollouts, num_ranks)
        self._ors = {name: own for name, own in spec.environments.items() if isinstance(own, EnvSpec)}
        self._limits = {name: share(own.limits.max_sessions, num_ranks) for name, own in self._ors.items()}
        self._max_sessions = share(spec.live.ledger.max_sessions, num_ranks)
        opened = {look.name: look.visits[0] for look in survey.looks if look.visits}
        self._open_s = {name: visit.open_s for name, visit in opened.items() if visit.failure is None}

    def plan(self, num_batches: int) -> Plan:
        problems = list(
            problems_before(self._spec, self._survey, self._args, self._size, self._num_rollouts, self._balance)
        )
        plan = Plan(
            num_processes=self._num_ranks,
            num_generations=self._size.num_generations,
            groups_per_batch=self._size.num_groups,
            rollouts_per_batch=self._num_rollouts,
            rollouts_per_process=self._num_rollouts // self._num_ranks,
            steps_per_batch=self._size.num_repeats / self._size.num_accumulated,
            max_sessions=self._max_sessions,
            earlier=self._earlier,
            unknown=list(unknown(self._spec, self._earlier, self._open_s)),
            problems=problems,
        )
        if self._num_rollouts % self._size.num_generations or not self._size.num_groups:
            return plan
        if any(look.outline is None for look in self._survey.looks):
            return plan  # whose tasks are not known; the problems say why
        try:
            table = rows_of(self._spec)
            is_curriculum = is_followed(self._spec, table, is_shuffled=self._args.shuffle_dataset)
            length = self._length(len(table))
            dealt = list(islice(deal(self._spec, table, self._size, self._args), min(length.num_batches, MOST_DEALT)))
        except MultiEnvError as error:
            return replace(plan, problems=_distinct([*problems, str(error)]))
        if not dealt:
            problems = [*problems, too_few(len(table), self._size)]
        plan = replace(plan, is_curriculum=is_curriculum, num_steps=length.num_steps, num_batches=length.num_batches)
        return self._with_batches(plan, dealt, _Rows.of(table), problems, num_batches)

    def _with_batches(
        self, plan: Plan, dealt: Sequence[Dealt], rows: _Rows, problems: Sequence[str], num_batches: int
    ) -> Plan:
        """Fill in what follows from the batches that would be dealt."""
        needs = [self._sessions(rank) for batch in dealt for rank in rollouts_by_rank(batch.groups, self._size)]
        short = next((error for need in needs if (error := shortage(need, self._limits, self._max_sessions))), None)
        batches = [self._batch(batch) for batch in dealt[:num_batches]]
        played = Counter(name for batch in dealt for name in batch.groups)
        factor = (plan.num_batches or 0) / len(dealt) if dealt else 0.0
        environments = {
            name: self._environment(name, rows, played[name] * factor, needs, plan) for name in self._spec.environments
        }
        return replace(
            plan,
            environments=self._with_gradients(environments, played),
            batches=batches,
            process_sessions=max((need.total() for need in needs), default=0),
            seconds=self._seconds(batches, plan),
            assumed=list(
                assumed(
                    self._spec,
                    self._args,
                    self._earlier,
                    is_curriculum=plan.is_curriculum,
                    num_dealt=len(dealt),
                    num_batches=plan.num_batches or 0,
                )
            ),
            problems=_distinct([*problems, *([] if short is None else [str(short)])]),
        )

    def _length(self, num_rows: int) -> Length:
        args = self._args
        pace = self._size.pace(num_rows)
        return length_of(pace, max_steps=args.max_steps, num_train_epochs=args.num_train_epochs)

    def _sessions(self, rollouts: Mapping[str, int]) -> Counter[str]:
        return Counter({name: num for name, num in rollouts.items() if name in self._ors})

    def _opening_s(self, need: Mapping[str, int]) -> float | None:
        limits = {name: own.limits for name, own in self._ors.items()}
        starts = self._spec.live.ledger.max_concurrent_starts
        return batch_opening_s(need, self._open_s, limits, starts, self._num_ranks)

    def _batch(self, batch: Dealt) -> BatchPlan:
        took = [self._opening_s(self._sessions(rank)) for rank in rollouts_by_rank(batch.groups, self._size)]
        first: dict[str, list[str]] = {}
        for name, task in zip(batch.groups, batch.task_ids, strict=True):
            tasks = first.setdefault(name, [])
            if len(tasks) < _NUM_FIRST_TASKS and task not in tasks:
                tasks.append(task)
        known = [each for each in took if each is not None]
        is_known = len(known) == len(took)
        return BatchPlan(batch.asked, dict(Counter(batch.groups)), first, max(known) if is_known else None)

    def _environment(
        self, name: str, rows: _Rows, groups: float, needs: Iterable[Mapping[str, int]], plan: Plan
    ) -> EnvironmentPlan:
        num_rows, num_tasks = rows.num_rows.get(name, 0), rows.num_tasks.get(name, 0)
        declared, limit = self._spec.environments[name], self._limits.get(name)
        most = self._size.most_groups(limit) if plan.is_curriculum else num_rows
        planned = max((need.get(name, 0) for need in needs), default=0)
        is_ors, open_s = name in self._ors, self._open_s.get(name)
        rollouts = round(groups * self._size.num_generations)
        return EnvironmentPlan(
            num_tasks=num_tasks,
            rollouts=rollouts,
            sessions=rollouts if is_ors else 0,
            epochs=groups / num_tasks if num_tasks else 0.0,
            planned_sessions=planned,
            largest_sessions=largest_need(self._size, most, is_dealt=plan.is_curriculum) if is_ors and num_tasks else 0,
            max_sessions=limit,
            open_s=open_s,
            batch_open_s=None
            if open_s is None
            else opening_s(planned, open_s, self._ors[name].limits, self._num_ranks),
            reward_weight=declared.reward_weight,
            recorded=None if self._earlier is None else self._earlier.environments.get(name),
        )

    def _with_gradients(
        self, environments: Mapping[str, EnvironmentPlan], played: Mapping[str, int]
    ) -> dict[str, EnvironmentPlan]:
        """Fill in the shares of the gradient, with the longest completions and with those of a record."""
        names = [name for name in environments if played.get(name)]
        nominal = self._gradient(names, played, lambda _: float(self._args.max_completion_length or 1))
        recorded: dict[str, float] = {}
        lengths = {name: own.completion_tokens for name in names if (own := environments[name].recorded) is not None}
        if names and len(lengths) == len(names):
            recorded = self._gradient(names, played, lambda name: lengths[name])
        return {
            name: replace(each, gradient_share=nominal.get(name), recorded_share=recorded.get(name))
            for name, each in environments.items()
        }

    def _gradient(
        self, names: Sequence[str], played: Mapping[str, int], length: Callable[[str], float]
    ) -> dict[str, float]:
        weights = {name: self._spec.environments[name].reward_weight for name in names}
        num_rollouts, lengths = {name: played[name] for name in names}, {name: length(name) for name in names}
        try:
            return effective_shares(weights, num_rollouts, lengths, self._args.loss_type, self._balance)
        except SpecError:  # a loss type that is not known here
            return {}

    def _seconds(self, batches: Sequence[BatchPlan], plan: Plan) -> Seconds:
        took = [batch.open_s for batch in batches if batch.open_s is not None]
        opening = fmean(took) if took and len(took) == len(batches) else None
        if self._earlier is None:
            return Seconds(opening)
        tools, rest = self._earlier.tools_s, self._earlier.rest_s
        if opening is None or tools is None or rest is None:
            return Seconds(opening, tools, rest)
        whole = opening + tools + rest
        return Seconds(opening, tools, rest, whole / plan.steps_per_batch, whole * (plan.num_batches or 0))


@dataclass(frozen=True, slots=True)
class _Rows:
    """How many rows and different tasks the training dataset has of each environment."""

    num_rows: Mapping[str, int]
    num_tasks: Mapping[str, int]

    @classmethod
    def of(cls, table: Any) -> Self:
        owners, tasks = table[Column.ENVIRONMENT][:], table[Column.TASK_ID][:]
        different = dict(zip(tasks, owners, strict=True))
        return cls(Counter(owners), Counter(different.values()))


def _distinct(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))
