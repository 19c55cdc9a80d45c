"""Decides whether TRL's rollout worker can be made to open sessions concurrently, and has it do so.

Flow: the user → `make_concurrent` → TRL's `AsyncRolloutWorker`, which runs `async_loop` in its rollout process.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Final, TypeVar

_WORKER: Final = "trl.experimental.async_grpo.async_rollout_worker"
_LOOP: Final = "_AsyncRolloutLoop"
_LOOP_SLOT: Final = "_loop_cls"

SEAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "_generate_one": ("self", "prompt", "tool_dict", "tools", "group_id"),
    "_generate_loop": ("self", "stop_event"),
    "run": ("self",),
}
"""The overridden methods of TRL's rollout loop with the parameters they have in TRL 1.16."""

T = TypeVar("T")


def make_concurrent(trainer: T) -> T:
    """Have a trainer's rollouts open their sessions all at once instead of one after the other.

    To be called before `train()`. Where TRL's rollout loop is not the expected one, a warning says so and TRL's own
    behaviour stays: the results are the same, and sessions open one after the other.

    Args:
        trainer: An `AsyncGRPOTrainer` made with `spec.async_trainer_kwargs()`.

    Returns:
        The same trainer.

    Example:
        `trainer = make_concurrent(AsyncGRPOTrainer(model, args=args, **spec.async_trainer_kwargs()))`
    """
    worker: Any = getattr(trainer, "rollout_worker", None)
    if worker is None and hasattr(trainer, "rollout_worker"):
        return trainer  # rollouts are the first rank's
    if unexpected := unexpected_seams(worker):
        warnings.warn(
            f"TRL's rollout worker is not the one that can be made concurrent ({unexpected}); sessions open one after "
            "the other, as in TRL itself",
            RuntimeWarning,
            stacklevel=2,
        )
        return trainer
    worker._loop_cls = importlib.import_module("multienv.training.async_loop").ConcurrentRolloutLoop  # noqa: SLF001 - where TRL's own workers put theirs
    return trainer


def unexpected_seams(worker: Any) -> str:
    """Say what about a rollout worker is not as in TRL 1.16.

    Args:
        worker: A rollout worker, or its class.

    Returns:
        The findings in words; empty if there are none.
    """
    try:
        loop_class: Any = getattr(importlib.import_module(_WORKER), _LOOP)
    except (ImportError, AttributeError) as error:
        return str(error)
    chosen: Any = getattr(worker, _LOOP_SLOT, None)
    if chosen is not loop_class:
        return f"it runs {getattr(chosen, '__name__', 'no rollout loop of TRL')}"
    findings = []
    for name, expected in SEAMS.items():
        method = getattr(loop_class, name, None)
        if method is None:
            findings.append(f"{name} is missing")
        elif (parameters := tuple(inspect.signature(method).parameters)) != expected:
            findings.append(f"{name} is ({', '.join(parameters)})")
    if "environment_factory" not in inspect.signature(loop_class).parameters:
        findings.append("the loop takes no environment_factory")
    return "; ".join(findings)
