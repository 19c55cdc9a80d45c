"""Decides what is said about rewards before any is given: weights that act on nothing, environments nothing scores.

Flow: `run` → here, with the declarations and the trainer's `args`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Mixture
from multienv.checks.settings import TrainerFamily, family_of
from multienv.rewards import weights_notice
from multienv.specs import EnvSpec, ForeignSpec


def check_weights(mixture: Mixture) -> Iterator[Finding]:
    """Say so if reward weights do nothing under these settings."""
    weights = {name: spec.reward_weight for name, spec in mixture.specs.items()}
    notice = weights_notice(weights)
    family, args = family_of(mixture.args), mixture.args
    if notice is None or family in (TrainerFamily.WITHOUT, TrainerFamily.UNKNOWN):
        return
    if family is TrainerFamily.NOT_GIVEN:
        yield Finding(
            Severity.NOTE, None, Code.REWARD_WEIGHT_IDLE, f"{notice}.", "Call check(args) with the run's own."
        )
        return
    listed = ", ".join(f"{name}={weight:g}" for name, weight in weights.items() if weight != 1.0)
    if family is TrainerFamily.ASYNC:
        message = f"reward_weight ({listed}) is not used: AsyncGRPOTrainer adds up all rewards with weight 1."
        yield Finding(Severity.WARNING, None, Code.REWARD_WEIGHT_IDLE, message, "Scale the rewards themselves.")
    elif args.reward_weights is None:
        message = f"reward_weight ({listed}) is not used: args has no reward_weights."
        fix = "Pass GRPOConfig(reward_weights=spec.reward_weights, ...)."
        yield Finding(Severity.WARNING, None, Code.REWARD_WEIGHT_IDLE, message, fix)
    elif args.scale_rewards == "group" and args.multi_objective_aggregation == "sum_then_normalize":
        yield Finding(
            Severity.WARNING,
            None,
            Code.REWARD_WEIGHT_IDLE,
            f'reward_weight ({listed}) has next to no effect with scale_rewards="group": a group holds one '
            "environment, and its weight is divided out again.",
            'Set scale_rewards="batch" or "none", or multi_objective_aggregation="normalize_then_sum".',
        )


def check_reward_sources(mixture: Mixture) -> Iterator[Finding]:
    """Name the environments that nothing scores."""
    if mixture.has_shared_rewards:
        return
    for name, spec in mixture.specs.items():
        is_scored = (
            spec.use_environment_reward or bool(spec.reward_funcs) if isinstance(spec, EnvSpec) else _scored(spec)
        )
        if not is_scored:
            yield Finding(
                Severity.NOTE,
                name,
                Code.NO_REWARD,
                "nothing scores its rollouts: it has no reward functions, and no reward of its own is used.",
                "Give it reward_funcs, or leave use_environment_reward at True; a TRL environment may have get_reward.",
            )


def _scored(spec: ForeignSpec) -> bool:
    """Tell whether a foreign environment is scored; True where that can be known only by making or reading it."""
    made: Any = spec.__dict__.get("environment_factory")
    while isinstance(made, functools.partial):
        made = made.func
    if not isinstance(made, type):
        return True
    return inspect.isfunction(getattr(made, "get_reward", None)) or bool(spec.__dict__.get("reward_funcs", True))
