"""Decides which environments of another making may stand beside a mixture's own.

Flow: `MultiEnvGRPOTrainer` hands over its `environment_factory` before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.router import EnvironmentAdapter, ForeignAdapter


def check_beside(spec: MultiEnvSpec, others: Mapping[str, Any]) -> None:
    """Check that no name is given twice.

    Args:
        spec: The mixture.
        others: What the user gave as `environment_factory`.

    Raises:
        SpecError: A name of the mixture is among them, or its very factory.
    """
    twice = sorted(others.keys() & spec.environments.keys())
    if any(_is_own(spec, name, others[name]) for name in twice):
        raise SpecError(
            f"environment_factory holds the spec's own {', '.join(twice)}; spec=... fills train_dataset, "
            "environment_factory and reward_funcs itself: leave out spec.trainer_kwargs()"
        )
    if twice:
        raise SpecError(f"environment_factory and spec both have {', '.join(twice)}; give each its own name")


def _is_own(spec: MultiEnvSpec, name: str, factory: Any) -> bool:
    """Tell whether a factory was read off the spec; nothing is fetched for one of another making."""
    is_ours = isinstance(factory, type) and issubclass(factory, EnvironmentAdapter | ForeignAdapter)
    return is_ours and factory is spec.environment_factory[name]
