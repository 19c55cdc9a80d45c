"""Decides which policy an offline run begins with: a tiny one, warmed up on rehearsals of the run's own tasks.

Flow: `commands` with `--offline` asks `offline_policy` for a policy, saves it, and hands TRL its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.offline.habits import MAX_CALLS, Apprentice
from multienv.tiny.policy_cache import cached_warm_up, default_cache_dir
from multienv.tiny.rehearsal import Dialogue, rehearse
from multienv.tiny.surroundings import on_one_thread, quietly
from multienv.tiny.warmup import Policy, Recipe, tokenizer_for

RECIPE: Final = Recipe(num_steps=500, learning_rate=6e-3, initializer_range=0.1, attention_gain=2.0, is_sparing=True)
"""How the policy is warmed up: in about 25 seconds, most of the way to what the apprentice does."""

_NUM_DIALOGUES: Final = 720

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is to do."""


def offline_policy(
    spec: MultiEnvSpec,
    presets: Mapping[str, str],
    *,
    seed: int = 0,
    cache_dir: Path | None = None,
    recipe: Recipe = RECIPE,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> Policy:
    """Make a policy that knows the tools of a mixture's replicas, and uses them carelessly.

    Args:
        spec: The mixture, whose environments are replicas. Its tasks are played, one after another.
        presets: From the name of an environment to the preset whose replica it is. Other environments are left out.
        seed: Seed of the initial weights, the rehearsal and the batches.
        cache_dir: Where warmed-up policies are kept; None for the user's cache folder.
        recipe: How the policy is warmed up, if none is kept.
        on_progress: Told how far the rehearsal and the warm-up are.

    Returns:
        The policy. Like the tokens it knows by heart, it is made for the mixture's own tasks and prompts.

    Raises:
        SpecError: No environment has a preset, or an environment or a preset is unknown.
    """
    if not presets:
        raise SpecError("presets={} leaves nothing to rehearse; name the preset of at least one environment")
    with on_one_thread(), quietly():
        dialogues = _rehearsed(spec, presets, seed, on_progress)
        steps_taken = iter(range(1, recipe.num_steps + 1))
        return cached_warm_up(
            dialogues,
            seed=seed,
            cache_dir=cache_dir or default_cache_dir(),
            recipe=recipe,
            on_step=lambda: on_progress("warming up", next(steps_taken), recipe.num_steps),
        )


def offline_tokenizer(
    spec: MultiEnvSpec,
    presets: Mapping[str, str],
    *,
    seed: int = 0,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> Any:
    """Make the tokenizer of the policy that `offline_policy` makes, and no model.

    Args:
        spec: The mixture, whose environments are replicas.
        presets: From the name of an environment to the preset whose replica it is.
        seed: Seed of the rehearsal.
        on_progress: Told how far the rehearsal is.

    Raises:
        SpecError: An environment or a preset is unknown.
    """
    with on_one_thread(), quietly():
        return tokenizer_for(_rehearsed(spec, presets, seed, on_progress))


def _rehearsed(spec: MultiEnvSpec, presets: Mapping[str, str], seed: int, on_progress: OnProgress) -> list[Dialogue]:
    factories = spec.environment_factory
    if unknown := presets.keys() - factories.keys():
        raise SpecError(f"presets name {sorted(unknown)}, which the mixture has not; it has {sorted(factories)}")
    rng = Random(seed)  # noqa: S311 - a player's whims need no secrecy
    rows: list[Mapping[str, Any]] = [row for row in spec.task_dataset if row["environment"] in presets]
    rows = rows if len(rows) <= _NUM_DIALOGUES else rng.sample(rows, _NUM_DIALOGUES)
    num_dialogues_per_task = _NUM_DIALOGUES // len(rows)
    playing = rehearse(
        rows,
        {name: factories[name]() for name in presets},
        {name: Apprentice(preset_name) for name, preset_name in presets.items()},
        num_dialogues_per_task=num_dialogues_per_task,
        max_calls=MAX_CALLS,
        rng=rng,
    )
    dialogues = []
    for dialogue in playing:
        dialogues.append(dialogue)
        on_progress("rehearsing", len(dialogues), len(rows) * num_dialogues_per_task)
    return dialogues
