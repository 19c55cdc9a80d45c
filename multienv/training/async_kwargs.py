"""Decides what fills the slots of TRL's `AsyncGRPOTrainer`, and refuses what could not work there.

Flow: `MultiEnvSpec.async_trainer_kwargs` → here → `AsyncGRPOTrainer`, which pickles it into its rollout process.
"""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.rewards.functions import callable_name, is_async
from multienv.router import ForeignAdapter
from multienv.specs import EnvSpec, ForeignSpec
from multienv.training.async_adapter import AsyncFactory
from multienv.training.async_foreign import ForeignFactory, check_rewards
from multienv.types import Column

_NOT_PASSED: Final = frozenset({"environments", "trainer_state", "log_extra", "log_metric"})
"""What `GRPOTrainer` passes to reward functions, and `AsyncGRPOTrainer` does not."""


def trainer_kwargs(spec: MultiEnvSpec) -> dict[str, Any]:
    """Return the slots of `AsyncGRPOTrainer` for a mixture; see `MultiEnvSpec.async_trainer_kwargs`."""
    for name, declared in spec.environments.items():
        if getattr(declared, "use_group_reward", False):
            raise SpecError(
                f"environment {name!r}: use_group_reward=True, and AsyncGRPOTrainer scores rollouts one by one; leave "
                "it out, or train with MultiEnvGRPOTrainer",
                environment=name,
            )
    for owner, function in _users_functions(spec):
        _check_function(owner, function)
    for name, declared in spec.environments.items():
        _check_travels(f"environment {name!r}", declared)
        if isinstance(declared, ForeignSpec):
            check_rewards(name, declared)
    weights = {name: declared.reward_weight for name, declared in spec.environments.items()}
    if acting := ", ".join(f"{name}={weight:g}" for name, weight in weights.items() if weight != 1.0):
        warnings.warn(
            f"reward_weight ({acting}) is not used: AsyncGRPOTrainer adds up all rewards with weight 1",
            UserWarning,
            stacklevel=3,
        )
    if evaluated := ", ".join(spec.eval_dataset):
        warnings.warn(
            f"the evaluation of {evaluated} is not made: AsyncGRPOTrainer has no eval_dataset",
            UserWarning,
            stacklevel=3,
        )
    dataset = spec.train_dataset
    return {
        "train_dataset": dataset.select(interleaved(list(dataset[Column.ENVIRONMENT]))),
        "environment_factory": {
            name: ForeignFactory(spec, name)
            if issubclass(made, ForeignAdapter)
            else AsyncFactory(spec, name, made._route.listing)  # noqa: SLF001 - hidden from TRL, not from this library
            for name, made in spec.environment_factory.items()
        },
        "reward_funcs": _reward_funcs(spec),
    }


def interleaved(names: Sequence[str]) -> list[int]:
    """Order rows so that every stretch of them is mixed like the whole. AsyncGRPO does not shuffle.

    Args:
        names: The environment of each row.

    Returns:
        The rows in their new order: each environment's in their own order, spread evenly from beginning to end.

    Example:
        >>> interleaved(["a", "a", "a", "a", "b", "b"])
        [0, 4, 1, 2, 5, 3]
    """
    sizes = Counter(names)
    seen: Counter[str] = Counter()
    places: list[tuple[float, int]] = []
    for row, name in enumerate(names):
        places.append(((seen[name] + 0.5) / sizes[name], row))
        seen[name] += 1
    return [row for _, row in sorted(places)]


class SpecReward:
    """A user's reward function, reached through the spec: the routing around it is made anew in each process.

    Args:
        spec: The mixture.
        place: Which of `spec.reward_funcs` it is.
    """

    def __init__(self, spec: MultiEnvSpec, place: int) -> None:
        self._spec = spec
        self._place = place
        self.__name__ = callable_name(spec.reward_funcs[place])

    def __call__(self, **batch: Any) -> Any:
        """Score a batch: one `float | None` per row."""
        return self._spec.reward_funcs[self._place](**batch)


class AsyncSpecReward(SpecReward):
    """The same for a function that is async; TRL asks the class which of the two it is."""

    async def __call__(self, **batch: Any) -> Any:
        """Score a batch: one `float | None` per row."""
        return await super().__call__(**batch)


def _reward_funcs(spec: MultiEnvSpec) -> list[SpecReward]:
    """Return the users' functions; what the environments give themselves comes from `get_reward`."""
    declarations = spec.environments.items()
    own = {name for name, made in declarations if isinstance(made, EnvSpec) and made.use_environment_reward}
    return [
        (AsyncSpecReward if is_async(function) else SpecReward)(spec, place)
        for place, function in enumerate(spec.reward_funcs)
        if callable_name(function) not in own
    ]


def _users_functions(spec: MultiEnvSpec) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, declared in spec.environments.items():
        for function in declared.reward_funcs:
            yield f"of environment {name!r}", function
    for function in spec._shared:  # noqa: SLF001 - as the user gave them, before the spec wraps them
        yield "for all environments", function


def _check_function(owner: str, function: Any) -> None:
    """Refuse a reward function that could not be called in AsyncGRPO's rollout process.

    Raises:
        SpecError: It is no function, needs a keyword that is not passed there, or cannot be sent there.
    """
    what = f"reward function {callable_name(function)!r} {owner}"
    if not callable(function):
        raise SpecError(f"{what} is of type {type(function).__name__}; AsyncGRPOTrainer takes functions only")
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name in _NOT_PASSED and parameter.default is inspect.Parameter.empty
    ]
    if needed:
        raise SpecError(
            f"{what} needs {', '.join(needed)}, which AsyncGRPOTrainer does not pass: it gives reward functions the "
            "prompts, the completions and the columns. Give the parameter a default and do without, or train with "
            "GRPOTrainer and spec.trainer_kwargs(). The environments' own rewards reach AsyncGRPO in any case"
        )
    _check_travels(what, function)


def _check_travels(what: str, value: object) -> None:
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SpecError(
            f"{what} cannot be sent to AsyncGRPO's rollout process ({error}); accepted: functions and classes defined "
            "at the top of a module, functools.partial of them, and callable objects that pickle"
        ) from error
