"""Decides what `multienv plan` says a run will do: its batches, their sessions, its mixture, its pace.

What is said is measured, where a session can be opened or a record read; or follows from the declaration; or is named
as not known.

Flow: `cli.plan` → `run_plan` → a survey, the real curriculum, an earlier record → tables or JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from multienv.checks import OF_PLAIN_TRAINERS, Severity, Survey
from multienv.commands.screen import print_json, working
from multienv.curriculum import Batch, Curriculum, Entry
from multienv.errors import MultiEnvError, SpecError
from multienv.reporting import read_episodes
from multienv.rewards import effective_shares
from multienv.specs import EnvSpec, Limits

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec
    from multienv.types import Episode


@dataclass(frozen=True, slots=True)
class Measured:
    """What an earlier run's record says of an environment, a rollout on average.

    Attributes:
        tool_s: Seconds in tools.
        tool_calls: Tool calls.
        completion_tokens: Trained tokens.
    """

    tool_s: float
    tool_calls: float
    completion_tokens: float


@dataclass(frozen=True, slots=True)
class Share:
    """What a run will do with one environment.

    Attributes:
        num_tasks: Tasks that it trains on; None where they cannot be counted.
        groups_per_batch: Groups in a batch, on average over the batches that were planned.
        most_sessions: Most sessions that a batch opens at once in one process, as planned.
        max_sessions: Its limit in one process; None for no limit.
        open_s: Seconds to open one session, as measured; None where none could be opened.
        batch_open_s: Seconds until all its sessions of a batch are open; None where `open_s` is.
        rollouts: Rollouts in the whole run.
        epochs: How often each task is played as a group in the whole run.
        gradient_share: Its share of the gradient at equal advantages.
        measured: What an earlier record says; None without.
    """

    num_tasks: int | None
    groups_per_batch: float
    most_sessions: int
    max_sessions: int | None
    open_s: float | None
    batch_open_s: float | None
    rollouts: int
    epochs: float | None
    gradient_share: float | None
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do.

    Attributes:
        num_processes: Processes that train together.
        rollouts_per_batch: Rollouts of a generation batch, in all processes.
        groups_per_batch: Groups of a generation batch.
        num_steps: Optimiser steps; None where the dataset decides.
        num_batches: Generation batches of the run; None where `num_steps` is.
        environments: By name.
        batches: The groups of the first batches, by environment.
        environment_s: Seconds of a batch that environments take at least; None where nothing was measured.
        problems: What keeps the run from working.
        unknown: What is not known, in words.
    """

    num_processes: int
    rollouts_per_batch: int
    groups_per_batch: int
    num_steps: int | None
    num_batches: int | None
    environments: Mapping[str, Share]
    batches: Sequence[Mapping[str, int]]
    environment_s: float | None
    problems: Sequence[str] = ()
    unknown: Sequence[str] = field(default_factory=list)


def run_plan(  # noqa: PLR0913 - the options of the command
    spec: MultiEnvSpec,
    *,
    args: Any,
    num_batches: int = 5,
    record: Path | None = None,
    world_size: int = 1,
    balance: Any = "none",
    console: Console,
    is_json: bool = False,
) -> int:
    """Say what a run will do, before it does it.

    Args:
        spec: The mixture.
        args: TRL's configuration.
        num_batches: Batches that are planned.
        record: Output directory of an earlier run, or None.
        world_size: Processes that will train together.
        balance: As in `MultiEnvGRPOTrainer`.
        console: Where it is shown.
        is_json: Show it as JSON instead.

    Returns:
        1 where the run cannot work, else 0.

    Raises:
        RecordError: There is no such record.
    """
    with working("asking every environment"):
        survey = spec.survey(args)
    plan = make_plan(spec, survey, args, num_batches=num_batches, record=record, world_size=world_size, balance=balance)
    if is_json:
        print_json(asdict(plan))
    else:
        _show(plan, record, console)
    return int(bool(plan.problems))


def make_plan(
    spec: MultiEnvSpec,
    survey: Survey,
    args: Any,
    *,
    num_batches: int,
    record: Path | None,
    world_size: int,
    balance: Any = "none",
) -> Plan:
    """Work out what a run will do; see `run_plan`."""
    rollouts = args.per_device_train_batch_size * world_size * args.steps_per_generation
    num_groups = rollouts // args.num_generations
    num_steps = args.max_steps if args.max_steps > 0 else None
    per_batch = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
    total = None if num_steps is None else math.ceil(num_steps / per_batch)
    rows = survey.mixture.num_rows
    problems = [
        f"{finding.environment or 'the mixture'}: {finding.message}"
        for finding in survey.findings
        if finding.severity is Severity.ERROR and finding.code not in OF_PLAIN_TRAINERS
    ]
    batches: list[Batch] = []
    if rollouts % args.num_generations:
        problems.append(
            f"a batch has {rollouts} rollouts, which is no multiple of num_generations={args.num_generations}"
        )
    elif rows.keys() == spec.environments.keys() and any(rows.values()):
        batches, problem = _planned(spec, rows, args, num_groups, min(num_batches, total or num_batches), world_size)
        problems += [problem] if problem else []
    played = Counter(pick.environment for batch in batches for pick in batch.groups)
    measured = {} if record is None else measured_of(read_episodes(record))
    opened = {look.name: look.visits[0].open_s for look in survey.looks if look.visits}
    shares = {
        name: _share(
            declared,
            batches,
            name,
            args.num_generations,
            world_size,
            rows.get(name),
            total,
            opened.get(name),
            measured.get(name),
        )
        for name, declared in spec.environments.items()
    }
    gradient = _gradient(spec, args, played, measured, balance)
    shares = {name: _with_gradient(share, gradient.get(name)) for name, share in shares.items()}
    seconds = [
        share.batch_open_s + (share.measured.tool_s if share.measured is not None else 0.0)
        for share in shares.values()
        if share.batch_open_s is not None and share.most_sessions
    ]
    return Plan(
        num_processes=world_size,
        rollouts_per_batch=rollouts,
        groups_per_batch=num_groups,
        num_steps=num_steps,
        num_batches=total,
        environments=shares,
        batches=[dict(Counter(pick.environment for pick in batch.groups)) for batch in batches],
        environment_s=max(seconds) if seconds else None,
        problems=problems,
        unknown=_unknown(num_steps, record, opened, spec),
    )


def measured_of(episodes: Sequence[Episode]) -> dict[str, Measured]:
    """Return what a record says of each environment, over the rollouts that infrastructure did not end."""
    found = {}
    for name in dict.fromkeys(episode.environment for episode in episodes):
        own = [episode for episode in episodes if episode.environment == name and episode.is_scorable]
        if own:
            found[name] = Measured(
                tool_s=fmean(sum(step.duration_s for step in episode.steps) for episode in own),
                tool_calls=fmean(episode.num_tool_calls for episode in own),
                completion_tokens=fmean(episode.num_completion_tokens for episode in own),
            )
    return found


def opening_s(num_sessions: int, open_s: float, limits: Limits, num_processes: int = 1) -> float:
    """Return the seconds until a number of sessions are open in one process, within its share of the limits.

    Args:
        num_sessions: How many are opened at once.
        open_s: Seconds that one takes.
        limits: The environment's.
        num_processes: Processes that share the limits.

    Example:
        >>> opening_s(8, 2.0, Limits(max_concurrent_starts=4)), opening_s(8, 2.0, Limits(starts_per_s=1.0))
        (4.0, 9.0)
    """
    if not num_sessions:
        return 0.0
    at_once = max(1, limits.max_concurrent_starts // num_processes)
    by_turns = math.ceil(num_sessions / at_once) * open_s
    rate = None if limits.starts_per_s is None else limits.starts_per_s / num_processes
    return by_turns if rate is None else max(by_turns, (num_sessions - 1) / rate + open_s)


def _planned(
    spec: MultiEnvSpec, rows: Mapping[str, int], args: Any, num_groups: int, num_batches: int, world_size: int
) -> tuple[list[Batch], str]:
    """Plan the first batches as the trainer would before anything was observed; else say why it could not."""
    if spec.curriculum.is_left_to_trl:
        return [], ""
    entries = []
    for name, declared in spec.environments.items():
        if not rows[name]:
            continue
        limit = declared.limits.max_sessions if isinstance(declared, EnvSpec) else None
        share = None if limit is None else max(1, limit // world_size)
        ranks = world_size if num_groups % world_size == 0 else 1
        most = None if share is None else ranks * (share // args.num_generations)
        entries.append(
            Entry(name, rows[name], declared.sampling_weight or 1.0, rules=declared.task_rules, max_groups=most)
        )
    try:
        curriculum = Curriculum(
            entries,
            spec.curriculum,
            num_groups,
            seed=args.seed,
            lag=num_batches,
            num_ranks=world_size,
            is_shuffled=args.shuffle_dataset,
        )
        return [curriculum.plan() for _ in range(num_batches)], ""
    except MultiEnvError as error:
        return [], str(error)


def _share(  # noqa: PLR0913, PLR0917 - the figures of one row
    declared: Any,
    batches: Sequence[Batch],
    name: str,
    num_generations: int,
    world_size: int,
    num_tasks: int | None,
    total: int | None,
    open_s: float | None,
    measured: Measured | None,
) -> Share:
    groups = [sum(pick.environment == name for pick in batch.groups) for batch in batches]
    average = fmean(batch.asked.get(name, 0.0) * len(batch.groups) for batch in batches) if batches else 0.0
    most = math.ceil(max(groups, default=0) * num_generations / world_size)
    limits = declared.limits if isinstance(declared, EnvSpec) else Limits()
    rollouts = 0 if total is None else round(average * total * num_generations)
    return Share(
        num_tasks=num_tasks,
        groups_per_batch=average,
        most_sessions=most,
        max_sessions=None if limits.max_sessions is None else max(1, limits.max_sessions // world_size),
        open_s=open_s,
        batch_open_s=None if open_s is None else opening_s(most, open_s, limits, world_size),
        rollouts=rollouts,
        epochs=average * total / num_tasks if total is not None and num_tasks else None,
        gradient_share=None,
        measured=measured,
    )


def _with_gradient(share: Share, gradient: float | None) -> Share:
    return replace(share, gradient_share=gradient)


def _gradient(
    spec: MultiEnvSpec, args: Any, played: Mapping[str, int], measured: Mapping[str, Measured], balance: Any
) -> dict[str, float]:
    """Return the shares of the gradient, with lengths from a record where there is one, else all alike."""
    names = [name for name in spec.environments if played.get(name)]
    if not names:
        return {}
    all_measured = all(name in measured for name in names)
    lengths = {
        name: max(1.0, measured[name].completion_tokens) if all_measured else float(args.max_completion_length or 1)
        for name in names
    }
    weights = {name: spec.environments[name].reward_weight for name in names}
    try:
        return effective_shares(weights, {name: played[name] for name in names}, lengths, args.loss_type, balance)
    except SpecError:  # a loss type that is not known here
        return {}


def _unknown(num_steps: int | None, record: Path | None, opened: Mapping[str, float], spec: MultiEnvSpec) -> list[str]:
    unknown = ["how long the model takes to generate and to learn: it is not loaded here"]
    if num_steps is None:
        unknown.append("the number of steps: max_steps is not set, so the length of the dataset decides")
    if record is None:
        unknown.append("seconds in tools and tokens of a rollout: give --record with the directory of an earlier run")
    if missing := [name for name in spec.environments if name not in opened]:
        unknown.append(f"how long a session takes to open: {', '.join(missing)}")
    return unknown


def _show(plan: Plan, record: Path | None, console: Console) -> None:
    steps = "" if plan.num_steps is None else f"{plan.num_steps:,} steps, {plan.num_batches:,} generation batches, "
    console.print(
        f"{steps}each {plan.rollouts_per_batch:,} rollouts in {plan.groups_per_batch:,} groups, "
        f"on {plan.num_processes} process{'es' if plan.num_processes > 1 else ''}",
        highlight=False,
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("environment", no_wrap=True)
    for heading in (
        "tasks",
        "groups\na batch",
        "sessions\n(limit)",
        "open s\n(a batch)",
        "rollouts",
        "epochs",
        "gradient",
        "tools s",
    ):
        table.add_column(heading, justify="right")
    for name, share in plan.environments.items():
        table.add_row(
            escape(name),
            _number(share.num_tasks, ",d"),
            f"{share.groups_per_batch:.1f}",
            f"{share.most_sessions:,} ({_number(share.max_sessions, ',d')})",
            f"{_number(share.open_s, '.2f')} ({_number(share.batch_open_s, '.1f')})",
            f"{share.rollouts:,}" if plan.num_batches is not None else "-",
            _number(share.epochs, ".2f"),
            _number(share.gradient_share, ".0%"),
            "-" if share.measured is None else f"{share.measured.tool_s:.2f}",
        )
    console.print(table)
    for number, batch in enumerate(plan.batches):
        listed = ", ".join(f"{name} {num}" for name, num in batch.items())
        console.print(f"batch {number}: {listed}", markup=False, highlight=False)
    if plan.environment_s is not None:
        what = "opening sessions and calling tools" if record is not None else "opening sessions"
        console.print(f"a batch takes {plan.environment_s:.1f} s at least, for {what}", highlight=False)
    for unknown in plan.unknown:
        console.print(f"not known: {unknown}", style="dim", markup=False, highlight=False)
    for problem in plan.problems:
        console.print(f"it cannot work: {problem}", style="bold red", markup=False, highlight=False)


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)
