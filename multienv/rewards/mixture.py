"""Decides which reward functions a mixture is made of: each environment's own, the user's for it, and the shared ones.

Flow: `meta` collects them here, in fixed order, and hands them to TRL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from multienv.errors import SpecError
from multienv.rewards.functions import Columns, LogColumns, callable_name, is_function, routed
from multienv.rewards.outcome import environment_reward
from multienv.specs import EnvSpec, RewardFunction


def environment_functions(
    name: str, spec: EnvSpec, known: Sequence[str], columns: Callable[[], Columns], log_columns: LogColumns
) -> list[RewardFunction]:
    """Return the functions of one ORS environment: its own reward, then the user's for it.

    Args:
        name: The environment.
        spec: Its declaration.
        known: All environments of the mixture.
        columns: Gives the dataset's metadata columns, when the first batch comes.
        log_columns: The mixture's logged columns.
    """
    own = [environment_reward(name, known, spec.reward)] if spec.use_environment_reward else []
    return own + [routed(function, name, known, columns, log_columns) for function in spec.reward_funcs]


def check_distinct(rewards: Iterable[Any]) -> None:
    """Check that no two reward functions have one name.

    Raises:
        SpecError: Two of them have.
    """
    counts = Counter(callable_name(function) for function in rewards if is_function(function))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise SpecError(
            f"several reward functions are named {', '.join(map(repr, twice))}; TRL logs them by name, so give "
            "each function its own __name__"
        )


def several_functions(value: Any) -> tuple[Any, ...]:
    """Turn reward functions for all environments into a tuple; TRL takes functions, models and models' names.

    Raises:
        SpecError: Something in it is none of these.
    """
    is_one = callable(value) or isinstance(value, str)
    functions = (value,) if is_one else tuple(value) if isinstance(value, Iterable) else (value,)
    for function in functions:
        if not callable(function) and not isinstance(function, str):
            raise SpecError(
                f"reward_funcs holds {function!r} of type {type(function).__name__}; accepted: reward functions, "
                "reward models, and models' names, as for GRPOTrainer"
            )
    return functions
