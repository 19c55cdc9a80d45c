"""Decides what a user declares about the worth of an environment's episodes: a frozen value, checked at once.

Flow: part of an `EnvSpec`; `rewards` applies it to every `Episode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from multienv.errors import SpecError, nearest
from multienv.specs.limits import sentence
from multienv.types import JSONObject

Reduction: TypeAlias = Callable[[tuple[float, ...]], float]
"""From the step rewards of an episode, those that are not None, at least one, to one number."""

ReductionName: TypeAlias = Literal["last", "total", "best", "mean"]
"""The reductions that have a name."""

FailureCheck: TypeAlias = Callable[[JSONObject], bool]
"""From the metadata of a step to whether infrastructure failed in it."""

_NAMES: Final = get_args(ReductionName)
_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_SYNONYMS: Final = {"sum": "'total'", "max": "'best'", "avg": "'mean'", "discounted": "discounted(0.99)"}
_CONSTANT: Final = {
    "failed": "a failed episode is always None",
    "refused": "a refused episode is always None",
    "finished": "a finished episode counts what it earned; see reduction, scale and offset",
}


def _reduction(value: Any) -> Any:
    if (getattr(value, "__module__", ""), getattr(value, "__name__", "")) == ("multienv.rewards.reduce", "discounted"):
        value = "discounted"  # the call was forgotten
    if callable(value) or value in _NAMES:
        return value
    hint = nearest(value, _NAMES) if isinstance(value, str) else ""
    if isinstance(value, str) and value in _SYNONYMS:
        hint = f" (did you mean {_SYNONYMS[value]}?)"
    raise ValueError(
        f"reduction={value!r}{hint}; accepted: {', '.join(map(repr, _NAMES))}, discounted(gamma), or a function from "
        "the scored step rewards, a tuple, to a number"
    )


def _outcome(value: Any) -> Any:
    if value is None or value == "reduce" or _is_number(value):
        return value
    raise ValueError(
        f"unfinished and truncated accept 'reduce' for what was earned so far, None for unscored, or a finite number; "
        f"found {value!r}"
    )


def _unscored(value: Any) -> Any:
    if value is None or _is_number(value):
        return value
    raise ValueError(f"unscored={value!r}; accepted: a finite number, or None for unscored")


def _clip(value: Any) -> Any:
    if value is None:
        return None
    bounds = tuple(value) if isinstance(value, tuple | list) else ()
    if len(bounds) != 2 or not all(map(_is_number, bounds)) or not bounds[0] < bounds[1]:  # noqa: PLR2004 - low and high
        raise ValueError(f"clip={value!r}; accepted: (low, high) with low < high, both finite, or None")
    return bounds


def _failure_check(value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise ValueError(f"is_failure={value!r}; accepted: a function from a step's metadata, a dict, to a bool, or None")


class RewardSpec(BaseModel):
    """How the episodes of one environment become numbers. `docs/rewards.md` has the whole story.

    The step rewards are reduced to one number, which is then shaped, in this order: minus `step_penalty` for each tool
    call, times `scale`, plus `offset`, clipped. Steps after the one that finished the episode do not count. An episode
    that infrastructure ended is None, whatever is declared here.

    Attributes:
        reduction: How the scored step rewards become one number: `"last"`, `"total"`, `"best"`, `"mean"`,
            `multienv.discounted(gamma)`, or a function from a tuple of at least one float to a float. Say `"last"`
            yourself where it is right for several rewards, and there is no warning.
        unfinished: What an episode counts that the policy left unfinished: `"reduce"` for what was earned so far, None
            for unscored, or a number in place of the reduced one.
        truncated: The same for an episode that a limit ended.
        unscored: What such an episode counts under `"reduce"` when no step carried a reward; None for unscored, as in
            TRL. A policy whose silent rollouts go unscored has nothing to lose by silence, and ends there. A finished
            episode without a scored step is None all the same: the environment gave it nothing.
        scale: Factor of the reduced reward.
        offset: Added after scaling.
        clip: `(low, high)`, the bounds of the result; None for none.
        step_penalty: Taken off the reduced reward for each tool call, refused ones included.
        success_threshold: The reduced reward, before shaping, from which an episode is a success; None for more than 0.
        is_failure: Called with the metadata of each step that has some; True where the environment reports that
            infrastructure failed. The episode then counts as failed.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> RewardSpec(reduction="total", scale=0.1, clip=(-1, 1))
        RewardSpec(reduction='total', scale=0.1, clip=(-1.0, 1.0))
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reduction: Annotated[ReductionName | Reduction, BeforeValidator(_reduction)] = "last"
    unfinished: Annotated[Literal["reduce"] | float | None, BeforeValidator(_outcome)] = "reduce"
    truncated: Annotated[Literal["reduce"] | float | None, BeforeValidator(_outcome)] = "reduce"
    unscored: Annotated[float | None, BeforeValidator(_unscored)] = 0.0
    scale: _Finite = 1.0
    offset: _Finite = 0.0
    clip: Annotated[tuple[float, float] | None, BeforeValidator(_clip)] = None
    step_penalty: Annotated[_Finite, Field(ge=0)] = 0.0
    success_threshold: _Finite | None = None
    is_failure: Annotated[FailureCheck | None, BeforeValidator(_failure_check)] = None

    def __init__(self, /, **options: Any) -> None:
        if constant := next((name for name in options if name in _CONSTANT), None):
            raise SpecError(f"RewardSpec: {constant} is no option: {_CONSTANT[constant]}")
        try:
            super().__init__(**options)
        except ValidationError as error:
            sentences = "; ".join(sentence(problem, sorted(type(self).model_fields)) for problem in error.errors())
            raise SpecError(f"RewardSpec: {sentences}") from None

    @field_validator("scale")
    @classmethod
    def _acts(cls, value: float) -> float:
        if value == 0:
            raise ValueError(
                "scale=0 makes all episodes equal; accepted: any other number. To train without the environment's own "
                "reward, say EnvSpec(..., use_environment_reward=False)"
            )
        return value

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show only what differs from the defaults."""
        for name, value in super().__repr_args__():
            if name is None or value != type(self).model_fields[name].default:
                yield name, value
