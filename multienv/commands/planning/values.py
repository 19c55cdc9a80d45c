"""Decides what a plan says: the values that are shown and written as JSON.

Flow: `plan.make_plan` → `Plan` → `multienv plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multienv.commands.planning.earlier import Earlier, Played


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """What a run will do with one environment.

    Attributes:
        num_tasks: Tasks that it trains on.
        rollouts: Rollouts in the whole run.
        sessions: Sessions that these open; 0 for an environment of another making.
        epochs: How often each task comes, on average, in the whole run.
        planned_sessions: Most sessions at once in one process, in the batches that were dealt.
        largest_sessions: The same in any batch that there can be, as when other environments are down.
        max_sessions: Its limit in one process; None for no limit.
        open_s: Seconds to open one session, as measured; None where none could be opened.
        batch_open_s: Seconds until `planned_sessions` are open; None where `open_s` is.
        reward_weight: What its advantages are multiplied by.
        gradient_share: Its share of the gradient if all rollouts have advantages of one size and the longest
            completions; None where the loss type is not known.
        recorded_share: The same with the completions of the earlier record; None without.
        recorded: What the earlier record says of it; None where it says nothing.
    """

    num_tasks: int
    rollouts: int = 0
    sessions: int = 0
    epochs: float = 0.0
    planned_sessions: int = 0
    largest_sessions: int = 0
    max_sessions: int | None = None
    open_s: float | None = None
    batch_open_s: float | None = None
    reward_weight: float = 1.0
    gradient_share: float | None = None
    recorded_share: float | None = None
    recorded: Played | None = None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One of the first batches.

    Attributes:
        asked: The share that the curriculum asks for, by environment; empty where TRL's own sampler draws.
        groups: Groups, by environment.
        first_tasks: The first tasks of each environment in it.
        open_s: Seconds until the sessions of its fullest process are open; None where that is not known.
    """

    asked: Mapping[str, float]
    groups: Mapping[str, int]
    first_tasks: Mapping[str, Sequence[str]]
    open_s: float | None


@dataclass(frozen=True, slots=True)
class Seconds:
    """What a generation batch takes, and with it a step; None for what is not known.

    Attributes:
        opening: Until its sessions are open.
        tools: Waiting for tools.
        rest: Everything else: the model, rewards, saving.
        step: One optimiser step.
        run: The whole run.
    """

    opening: float | None = None
    tools: float | None = None
    rest: float | None = None
    step: float | None = None
    run: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do.

    Attributes:
        num_processes: Processes that train together.
        num_generations: Rollouts of a group.
        groups_per_batch: Groups of a generation batch, of all processes.
        rollouts_per_batch: Rollouts of a generation batch, of all processes.
        rollouts_per_process: The share of one process.
        steps_per_batch: Optimiser steps for each generation batch.
        num_steps: Optimiser steps of the run; None where nothing can be planned.
        num_batches: Generation batches of the run; None where `num_steps` is.
        is_curriculum: False where TRL's own sampler draws the rows.
        environments: By name.
        batches: The first batches.
        process_sessions: Most sessions at once in one process, of all environments.
        max_sessions: The mixture's limit on that; None for no limit.
        seconds: What it takes.
        earlier: What the earlier record says; None without.
        assumed: What is taken for granted, in sentences.
        unknown: What is not known, in sentences.
        problems: What keeps the run from working, in sentences.
    """

    num_processes: int
    num_generations: int
    groups_per_batch: int
    rollouts_per_batch: int
    rollouts_per_process: int
    steps_per_batch: float
    num_steps: int | None = None
    num_batches: int | None = None
    is_curriculum: bool = True
    environments: Mapping[str, EnvironmentPlan] = field(default_factory=dict)
    batches: Sequence[BatchPlan] = ()
    process_sessions: int = 0
    max_sessions: int | None = None
    seconds: Seconds = Seconds()
    earlier: Earlier | None = None
    assumed: Sequence[str] = ()
    unknown: Sequence[str] = ()
    problems: Sequence[str] = ()
