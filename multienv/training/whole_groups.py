"""Decides whether groups that are scored as a whole are each held by one process.

Flow: `MultiEnvGRPOTrainer`, `multienv plan` → `check_whole_groups` before anything is trained.
"""

from __future__ import annotations

from typing import Any

from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec


def check_whole_groups(spec: MultiEnvSpec, args: Any, *, is_evaluated: bool) -> None:
    """Refuse to score whole groups where a rank would hold a part of one.

    Args:
        spec: The mixture.
        args: A `GRPOConfig`.
        is_evaluated: True where the training evaluates as well.

    Raises:
        SpecError: A rank would.
    """
    grouped = [name for name, own in spec.environments.items() if getattr(own, "use_group_reward", False)]
    sizes = "per_device_train_batch_size * steps_per_generation", "num_generations"
    held = [(*sizes, args.per_device_train_batch_size * args.steps_per_generation, args.num_generations)]
    if is_evaluated:
        sizes = "per_device_eval_batch_size", "num_generations_eval"
        held.append((*sizes, args.per_device_eval_batch_size, args.num_generations_eval or args.num_generations))
    for product, divisor, rows, num_generations in held:
        if grouped and rows % num_generations:
            raise SpecError(
                f"use_group_reward of {', '.join(grouped)}: a process holds {rows} rollouts of a batch, which is "
                f"no multiple of {divisor}={num_generations}, so a group would be spread over ranks; make "
                f"{product} a multiple of it"
            )
