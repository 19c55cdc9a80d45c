"""Decides the course of the lessons: rehearse on the environments, warm up, train on all of them in one run.

Flow: `run` calls `learn` with the servers' addresses and gets the trained policy back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from multienv import EnvSpec, MultiEnvSpec
from multienv.curriculum import Line
from multienv.demo.habits import HABITS, MAX_CALLS
from multienv.demo.rewards import REWARDS
from multienv.demo.training import train
from multienv.tiny.policy_cache import cached_warm_up, default_cache_dir
from multienv.tiny.rehearsal import Dialogue, rehearse
from multienv.tiny.surroundings import on_one_thread, quietly
from multienv.tiny.warmup import Policy, Recipe

if TYPE_CHECKING:
    from rich.progress import Progress

_NUM_DIALOGUES_PER_TASK: Final = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose.

    Attributes:
        max_steps: Training steps.
        seed: Seed of everything.
        curriculum: Preset of the curriculum.
        output_dir: Where the record, the log and, in `model`, the trained policy go.
        cache_dir: Where warmed-up policies are kept; None for the user's cache folder.
        recipe: How the policy is warmed up.
    """

    max_steps: int
    seed: int
    curriculum: str
    output_dir: Path
    cache_dir: Path | None
    recipe: Recipe


def learn(urls: Mapping[str, str], settings: Settings, progress: Progress) -> Mapping[str, Line]:
    """Make a policy, train it on all environments and save it; leave no session open, whatever happens.

    Args:
        urls: From each environment's name to its server.
        settings: What the user chose.
        progress: Shows how far each lesson is.

    Returns:
        The account of the mixture, by environment; empty where the rows were left to TRL.
    """
    with on_one_thread(), quietly():
        environments = {name: EnvSpec(url, reward=REWARDS[name]) for name, url in urls.items()}
        with MultiEnvSpec(environments, curriculum=settings.curriculum) as spec:
            policy = _warmed_up(_rehearsed(spec, settings, progress), settings, progress)
            account = _train(policy, spec, settings, progress)
        policy.save(settings.output_dir / "model")
    return account


def _rehearsed(spec: MultiEnvSpec, settings: Settings, progress: Progress) -> list[Dialogue]:
    adapters = {name: factory() for name, factory in spec.environment_factory.items()}
    rng = Random(settings.seed)  # noqa: S311 - the players' whims need no secrecy
    rows = spec.task_dataset
    dialogues = rehearse(
        rows, adapters, HABITS, num_dialogues_per_task=_NUM_DIALOGUES_PER_TASK, max_calls=MAX_CALLS, rng=rng
    )
    return list(progress.track(dialogues, total=len(rows) * _NUM_DIALOGUES_PER_TASK, description="rehearsing"))


def _warmed_up(dialogues: list[Dialogue], settings: Settings, progress: Progress) -> Policy:
    warming_up = progress.add_task("warming up", total=settings.recipe.num_steps)
    policy = cached_warm_up(
        dialogues,
        seed=settings.seed,
        cache_dir=settings.cache_dir or default_cache_dir(),
        recipe=settings.recipe,
        on_step=lambda: progress.advance(warming_up),
    )
    progress.update(warming_up, completed=settings.recipe.num_steps)
    return policy


def _train(policy: Policy, spec: MultiEnvSpec, settings: Settings, progress: Progress) -> Mapping[str, Line]:
    training = progress.add_task("training", total=settings.max_steps)
    return train(
        spec,
        policy,
        max_steps=settings.max_steps,
        seed=settings.seed,
        output_dir=settings.output_dir,
        on_step=lambda: progress.advance(training),
    )
