"""Decides what an AsyncGRPO rollout process gets for a foreign environment: its declaration, to be made live there.

Flow: `async_kwargs` → TRL pickles the factory → in its rollout process it makes `ForeignAdapter`s, one after the other.
"""

from __future__ import annotations

import inspect

from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.rewards import callable_name
from multienv.router import ForeignAdapter
from multienv.specs import ForeignSpec


class ForeignFactory:
    """The factory of one foreign environment's adapters. Survives pickling, where its declaration does.

    Args:
        spec: The mixture.
        name: The environment.
    """

    def __init__(self, spec: MultiEnvSpec, name: str) -> None:
        self.spec = spec
        self.name = name

    def __call__(self) -> ForeignAdapter:
        """Make an adapter; no server of the mixture is asked for anything."""
        return self.spec.live.foreign[self.name].factory()


def check_rewards(name: str, declared: ForeignSpec) -> None:
    """Refuse reward functions that read instances, which stay in AsyncGRPO's rollout process.

    Raises:
        SpecError: A reward function takes `environments`.
    """
    for function in declared.reward_funcs:
        if "environments" in inspect.signature(function).parameters:
            raise SpecError(
                f"environment {name!r}: reward function {callable_name(function)!r} reads environments, which "
                "AsyncGRPOTrainer does not pass; give the environment class a method get_reward(self) and leave the "
                "function out, or train with GRPOTrainer and spec.trainer_kwargs()",
                environment=name,
            )
