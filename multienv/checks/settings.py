"""Decides what is said about a trainer's configuration: whether that trainer can route rows to several environments.

Flow: `run` → here, with the `args` given to `MultiEnvSpec.check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from importlib import metadata
from typing import Any, Final

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Mixture
from multienv.specs import EnvSpec

_OLDEST_TRL: Final = (1, 16)


class TrainerFamily(StrEnum):
    """Which trainers a configuration is for."""

    NOT_GIVEN = "not given"
    GRPO = "takes a dict of factories"
    ASYNC = "takes a dict of factories, and pickles it"
    WITHOUT = "takes no environments"
    UNKNOWN = "unknown"


def family_of(args: Any) -> TrainerFamily:
    """Return which trainers a configuration is for, by the names of its classes; nothing is imported for it.

    Source:
        In TRL 1.16 `GRPOTrainer`, `GMPOTrainer` and `AsyncGRPOTrainer` have `environment_factory`, and each takes a
        dict; no trainer takes a single callable only.
    """
    if args is None:
        return TrainerFamily.NOT_GIVEN
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(args).__mro__}
    if ("trl", "GRPOConfig") in bases:
        return TrainerFamily.GRPO
    if ("trl", "AsyncGRPOConfig") in bases:
        return TrainerFamily.ASYNC
    return TrainerFamily.WITHOUT if ("transformers", "TrainingArguments") in bases else TrainerFamily.UNKNOWN


def check_trainer(mixture: Mixture) -> Iterator[Finding]:
    """Say how the mixture reaches a trainer of this kind, if it can."""
    family, name = family_of(mixture.args), type(mixture.args).__name__
    single = "For a trainer of your own that takes a single callable, give it spec.meta_environment_factory."
    if family is TrainerFamily.WITHOUT:
        yield Finding(
            Severity.ERROR,
            None,
            Code.TRAINER_WITHOUT_ENVIRONMENTS,
            f"args is a {name}, and TRL's trainer for it has no environment_factory.",
            f"Use GRPOConfig with MultiEnvGRPOTrainer or GRPOTrainer. {single}",
        )
    elif family is TrainerFamily.UNKNOWN:
        yield Finding(
            Severity.WARNING,
            None,
            Code.TRAINER_UNKNOWN,
            f"args is of type {name}, which is no configuration of TRL; what its trainer takes is not known.",
            f"Give check() the GRPOConfig or AsyncGRPOConfig of the run. {single}",
        )
    elif family is TrainerFamily.ASYNC:
        yield Finding(
            Severity.NOTE,
            None,
            Code.ASYNC_TRAINER,
            "AsyncGRPOTrainer pickles its slots into another process, does not shuffle, and opens one session after "
            "the other.",
            "Use make_concurrent(AsyncGRPOTrainer(model, args=args, **spec.async_trainer_kwargs())).",
        )


def check_version(_mixture: Mixture) -> Iterator[Finding]:
    """Say so if TRL is older than what this library relies on."""
    installed = _installed("trl")
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < _OLDEST_TRL:
        yield Finding(
            Severity.ERROR,
            None,
            Code.TRL_TOO_OLD,
            f"trl {installed} is installed; before 1.16 unrewarded rollouts may score 0.0.",
            "Install trl>=1.16.",
        )


def _installed(package: str) -> str:
    return metadata.version(package)


def check_columns(mixture: Mixture) -> Iterator[Finding]:
    """Say so if the trainer would drop the column that rows are routed by.

    Source:
        `GRPOTrainer._set_signature_columns_if_needed` keeps `prompt`, `image` and `images`. `AsyncGRPOTrainer` gives
        its rows to the rollout process before any column is dropped.
    """
    if family_of(mixture.args) is TrainerFamily.GRPO and getattr(mixture.args, "remove_unused_columns", False):
        yield Finding(
            Severity.ERROR,
            None,
            Code.REMOVES_COLUMNS,
            "remove_unused_columns=True drops the column 'environment', and no row can be routed.",
            "Leave it at the default of GRPOConfig, remove_unused_columns=False.",
        )


def check_tool_limits(mixture: Mixture) -> Iterator[Finding]:
    """Say so where the trainer's limit leaves no room for an environment's own."""
    most = getattr(mixture.args, "max_tool_calling_iterations", None)
    if not isinstance(most, int):
        return
    for name, spec in mixture.specs.items():
        own = spec.limits.max_tool_calls if isinstance(spec, EnvSpec) else None
        if own is not None and most < own:
            yield Finding(
                Severity.NOTE,
                name,
                Code.TOOL_LIMIT_LOWER,
                f"limits.max_tool_calls={own} is more than max_tool_calling_iterations={most}, which ends its rollouts "
                "first unless one message makes several calls.",
                f"Raise max_tool_calling_iterations to {own}, or leave it out; each environment has its own limit.",
            )
