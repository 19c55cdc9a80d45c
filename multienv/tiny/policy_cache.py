"""Decides when a warm-up can be skipped: when one with the very same ingredients has been kept.

Flow: `demo` and `offline` ask `cached_warm_up` for a policy; `warmup` is called only if none is kept.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transformers import AutoModelForCausalLM, AutoTokenizer

from multienv.tiny import model, warmup
from multienv.tiny.warmup import Policy, Recipe, warm_up

if TYPE_CHECKING:
    from multienv.tiny.rehearsal import Dialogue

logger = logging.getLogger(__name__)

_PACKAGES: Final = ("tokenizers", "torch", "transformers", "trl")


def default_cache_dir() -> Path:
    """Return the user's cache folder for warmed-up policies; `XDG_CACHE_HOME` is respected."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "multienv" / "policies"


def cached_warm_up(
    dialogues: Sequence[Dialogue],
    *,
    seed: int,
    cache_dir: Path,
    recipe: Recipe,
    on_step: Callable[[], None] = lambda: None,
) -> Policy:
    """Return the policy that `warm_up` makes of the dialogues, from the cache if it is there.

    Args:
        dialogues: What to imitate.
        seed: Seed of the initial weights and of the batches.
        cache_dir: Folder of kept policies, made if missing; one that cannot be written is done without.
        recipe: How a warm-up is done.
        on_step: Called after every step of a warm-up that does take place.

    Returns:
        The policy.
    """
    folder = cache_dir / _key(dialogues, seed, recipe)
    if not folder.is_dir():
        policy = warm_up(dialogues, seed=seed, recipe=recipe, on_step=on_step)
        try:
            _keep(policy, folder)
        except OSError as error:
            logger.warning("the warmed-up policy is not kept for the next run: %s", error)
            return policy
    return Policy(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))


def _key(dialogues: Sequence[Dialogue], seed: int, recipe: Recipe) -> str:
    """Name everything a warm-up depends on: the dialogues, the recipe, our code and the packages it leans on."""
    ingredients = {
        "dialogues": [asdict(dialogue) for dialogue in dialogues],
        "seed": seed,
        "recipe": asdict(recipe),
        "code": [inspect.getsource(module) for module in (model, warmup)],
        "packages": {package: version(package) for package in _PACKAGES},
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def _keep(policy: Policy, folder: Path) -> None:
    """Save a policy so that its folder appears whole or not at all; of two runs that race, the first wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        policy.save(partial)
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
