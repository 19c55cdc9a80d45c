"""Decides which policy an offline run begins with: a tiny one, warmed up on rehearsals of the run's own tasks.

Flow: `commands` with `--offline` asks `offline_policy` for a policy, saves it, and hands TRL its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from multienv.errors import SpecError, nearest
from multienv.offline.habits import MAX_CALLS, Apprentice
from multienv.tiny.policy_cache import cached_warm_up, default_cache_dir
from multienv.tiny.rehearsal import Dialogue, rehearse
from multienv.tiny.surroundings import on_one_thread, quietly
from multienv.tiny.warmup import Policy, Recipe, fit_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from multienv.meta import MultiEnvSpec

RECIPE: Final = Recipe(num_steps=500, learning_rate=1e-2, initializer_range=0.1, attention_gain=2.0, is_sparing=True)
"""How the policy is warmed up: until it does about what the apprentice does."""

_NUM_DIALOGUES: Final = 720

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is to do."""


def _unheard(_what: str, _num_done: int, _num_all: int) -> None:
    """Tell nobody."""


def offline_policy(
    spec: MultiEnvSpec,
    presets: Mapping[str, str],
    *,
    seed: int = 0,
    cache_dir: Path | None = None,
    recipe: Recipe = RECIPE,
    on_progress: OnProgress = _unheard,
) -> Policy:
    """Make a policy that knows the tools of a mixture's replicas, and uses them carelessly.

    It is made for the tasks and prompts of this mixture: a line it has not rehearsed costs it many tokens. A warm-up
    takes half a minute; one with the same ingredients is kept and used again.

    Args:
        spec: The mixture. Those of its tasks that belong to replicas are played, one after another.
        presets: From the name of each environment that is a replica to its preset. Others are left out.
        seed: Seed of the rehearsal, the initial weights and the batches.
        cache_dir: Where warmed-up policies are kept; None for the user's cache folder.
        recipe: How the policy is warmed up.
        on_progress: Told how far the rehearsal and the warm-up are.

    Returns:
        The policy.

    Raises:
        SpecError: No environment has a preset, or there is no such environment or preset.
    """
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
    spec: MultiEnvSpec, presets: Mapping[str, str], *, seed: int = 0, on_progress: OnProgress = _unheard
) -> PreTrainedTokenizerFast:
    """Make the tokenizer of `offline_policy` alone, in a few seconds, for those who only want to count tokens.

    Args:
        spec: See `offline_policy`.
        presets: See `offline_policy`.
        seed: Seed of the rehearsal.
        on_progress: Told how far the rehearsal is.

    Returns:
        The tokenizer that `offline_policy` gives its policy.

    Raises:
        SpecError: See `offline_policy`.
    """
    with quietly():
        return fit_tokenizer(_rehearsed(spec, presets, seed, on_progress))


def _rehearsed(spec: MultiEnvSpec, presets: Mapping[str, str], seed: int, on_progress: OnProgress) -> list[Dialogue]:
    factories = spec.environment_factory
    _check(presets, factories)
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


def _check(presets: Mapping[str, str], known: Mapping[str, Any]) -> None:
    if not presets:
        raise SpecError("presets={} leaves nothing to rehearse; give at least one environment by name with its preset")
    for name in presets:
        if name not in known:
            raise SpecError(
                f"presets: there is no environment {name!r}{nearest(name, known)}; the mixture has: {', '.join(known)}"
            )
