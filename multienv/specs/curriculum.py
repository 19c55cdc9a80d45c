"""Decides what a user declares about the mixture over time: which environment how often, in stages, adapted or not.

Flow: `MultiEnvSpec(curriculum=...)` → `declare_curriculum` → `multienv.curriculum`, which plans batch after batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import Field, field_validator, model_validator

from multienv.errors import SpecError, nearest
from multienv.specs.declaration import Declaration

MixtureName: TypeAlias = Literal["weights", "uniform", "proportional", "temperature", "dataset"]
"""How the sampling weights come about; "dataset" leaves the rows to TRL's own sampler."""

PRESETS: Final = (*get_args(MixtureName), "adaptive")
"""What `curriculum=` accepts as a string."""

Weights: TypeAlias = Mapping[str, float]
_Share = Annotated[float, Field(gt=0, le=1, strict=True)]
_Count = Annotated[int, Field(ge=1, strict=True)]


def _checked_weights(weights: Any, what: str) -> dict[str, float]:
    """Check weights by environment: finite, not negative, not all zero."""
    if not isinstance(weights, Mapping):
        raise ValueError(f'{what} are of type {type(weights).__name__}; accepted: a mapping such as {{"seta": 2.0}}')  # noqa: TRY004 - pydantic collects it
    for name, weight in weights.items():
        if not _is_finite(weight) or weight < 0:
            raise ValueError(f"{what}: that of {name!r} is {weight!r:.80}; accepted: a finite number from 0")
    if weights and not any(weights.values()):
        raise ValueError(f"{what} are all 0; at least one environment must be trained on")
    return {str(name): float(weight) for name, weight in weights.items()}


def _is_finite(value: Any) -> bool:
    """Tell whether a value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond any float
        return False


def _step(step: Any) -> int:
    """Check a training step; JSON makes a text of it where it is a key."""
    if isinstance(step, str) and step.isascii() and step.isdecimal() and str(int(step)) == step:
        return int(step)
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"points has the step {step!r}; accepted: whole numbers from 0")
    return step


def curriculum_in_file(value: Any, names: Iterable[str] | None) -> CurriculumSpec | None:
    """Return the curriculum that a file says: the name of a preset, or the options of a `CurriculumSpec`.

    Args:
        value: What it says.
        names: The environments; None where something is wrong with them, which is said already.

    Raises:
        SpecError: There is no such curriculum, or it names other environments.
    """
    if isinstance(value, Mapping):
        value = CurriculumSpec(**value)
    if names is None and isinstance(value, CurriculumSpec):
        return value
    return declare_curriculum(value, names or ())


def check_sampling_weight(value: Any) -> Any:
    """Check one environment's sampling weight; None for none.

    Raises:
        ValueError: It is no finite number above 0.
    """
    if value is None:
        return None
    if not _is_finite(value) or value <= 0:
        raise ValueError(
            f"sampling_weight={value!r:.80}; accepted: a finite number above 0, or None. An environment that is not "
            "to be trained on is evaluation_only=True, or has weight 0 in a Stage or a Schedule"
        )
    return float(value)


class Schedule(Declaration):
    """The mixture as a function of the training step.

    Attributes:
        points: From a training step to the weights from there on, by environment. One that is not named has weight 0.
            Before the first point, its weights hold.
        interpolation: `"piecewise"` keeps the weights until the next point; `"linear"` goes there in a straight line.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> Schedule(points={0: {"echo": 1.0}, 100: {"echo": 1.0, "vault": 1.0}}, interpolation="linear")
        Schedule(points={0: {'echo': 1.0}, 100: {'echo': 1.0, 'vault': 1.0}}, interpolation='linear')
    """

    points: Mapping[int, Weights]
    interpolation: Literal["piecewise", "linear"] = "piecewise"

    @field_validator("points", mode="before")
    @classmethod
    def _sound(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not value:
            raise ValueError(
                f'points={value!r}; accepted: a mapping such as {{0: {{"seta": 1.0}}, 100: {{"swe": 1.0}}}}, with at '
                "least one step"
            )
        value = {_step(step): weights for step, weights in value.items()}
        points = {step: _checked_weights(value[step], f"the weights at step {step}") for step in sorted(value)}
        if (empty := next((step for step, weights in points.items() if not weights), None)) is not None:
            raise ValueError(f"the weights at step {empty} are empty; name at least one environment")
        return points


class Stage(Declaration):
    """A part of the training that ends when its environments succeed often enough.

    Attributes:
        weights: Sampling weights by environment; one that is not named has weight 0. Empty for those of the mixture.
        until: From an environment to the success rate that ends the stage; all of them must be reached. The last stage
            has none and goes on to the end.
        min_groups: Groups of each of these environments to be seen in the stage before its success rate is believed.
        max_tool_calls: Horizons by environment, instead of `limits.max_tool_calls`; they may grow with the stages.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> Stage(weights={"echo": 1.0}, until={"echo": 0.8}, max_tool_calls={"echo": 2})
        Stage(weights={'echo': 1.0}, until={'echo': 0.8}, max_tool_calls={'echo': 2})
    """

    weights: Weights = Field(default_factory=dict)
    until: Mapping[str, _Share] = Field(default_factory=dict)
    min_groups: _Count = 8
    max_tool_calls: Mapping[str, _Count] = Field(default_factory=dict)

    @field_validator("weights", mode="before")
    @classmethod
    def _sound(cls, value: Any) -> Any:
        return _checked_weights(value, "weights")

    @model_validator(mode="after")
    def _can_end(self) -> Self:
        if self.weights and (idle := [name for name in self.until if not self.weights.get(name)]):
            raise ValueError(
                f"until waits for {', '.join(map(repr, idle))}, which the stage does not train on and so never ends; "
                "give it a weight"
            )
        return self


class Adaptive(Declaration):
    """How the mixture follows what can be learnt: more of the environments whose advantages are large.

    The weights of the mixture are the priors. An environment's share is its prior times
    `floor + (1 - floor) * tilt`, where the tilts favour those with a large mean |advantage|.

    Attributes:
        smoothing: Weight of the newest batch in an environment's mean |advantage|.
        temperature: The difference in mean |advantage| that makes a tilt e times as large. Smaller is bolder.
        floor: The part of its prior share that an environment always keeps.
        max_change: Most that an environment's share moves from one batch to the next.
        max_compensation: Groups without signal do not reach the gradient; an environment that has many is dispatched
            more often, at most so many times. 1 leaves that out.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    smoothing: _Share = 0.2
    temperature: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = 0.25
    floor: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.25
    max_change: _Share = 0.05
    max_compensation: Annotated[float, Field(ge=1, le=5, strict=True)] = 5.0


class CurriculumSpec(Declaration):
    """Which environment is trained on how often, batch after batch. `docs/curriculum.md` says when to use which.

    Attributes:
        mixture: Where the weights come from: `"weights"`, each environment's `sampling_weight`; `"uniform"`, all the
            same; `"proportional"`, the numbers of tasks; `"temperature"`, those to the power of `alpha`; `"dataset"`
            leaves the order of the rows to TRL's own sampler.
        alpha: The power of `"temperature"`: 0 is uniform, 1 proportional.
        schedule: Weights that change with the training step, instead of `mixture`.
        stages: Parts of the training that end when success rates are reached.
        adaptive: Follow the advantages, with the weights as priors. True for `Adaptive()`.
        seed: Seed of the order of tasks; None for the trainer's.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> CurriculumSpec(mixture="temperature", alpha=0.5).mixture
        'temperature'
    """

    mixture: MixtureName = "weights"
    alpha: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.5
    schedule: Schedule | None = None
    stages: tuple[Stage, ...] = ()
    adaptive: Adaptive | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] | None = None

    @field_validator("mixture", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        known = get_args(MixtureName)
        if value not in known:
            hint = nearest(value, known) if isinstance(value, str) else ""
            if value == "adaptive":
                hint = " (did you mean adaptive=True?)"
            raise ValueError(f"mixture={value!r}{hint}; accepted: {', '.join(map(repr, known))}")
        return value

    @field_validator("stages", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError(  # noqa: TRY004 - pydantic collects it
                f"stages is of type {type(value).__name__}; accepted: a list such as [Stage(until=...), Stage()]"
            )
        return value

    @field_validator("adaptive", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {True: Adaptive(), False: None}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.is_left_to_trl and (self.schedule or self.stages or self.adaptive):
            raise ValueError("mixture='dataset' leaves the rows to TRL; schedule, stages and adaptive need another one")
        if self.schedule and self.stages:
            raise ValueError("schedule and stages exclude each other: one follows the step, the other success")
        for place, stage in enumerate(self.stages):
            if bool(stage.until) is (place == len(self.stages) - 1):
                raise ValueError(
                    f"stage {place} of {len(self.stages)} has {'an' if stage.until else 'no'} until; every stage but "
                    "the last needs one"
                )
        return self

    @property
    def is_left_to_trl(self) -> bool:
        """True where TRL's own sampler orders the rows."""
        return self.mixture == "dataset"

    @property
    def named(self) -> frozenset[str]:
        """The environments that schedule and stages name."""
        points = [] if self.schedule is None else list(self.schedule.points.values())
        stages = [mapping for stage in self.stages for mapping in (stage.weights, stage.until, stage.max_tool_calls)]
        return frozenset(name for mapping in (*points, *stages) for name in mapping)

    def check_names(self, environments: Iterable[str]) -> None:
        """Check that schedule and stages name environments of the mixture.

        Raises:
            SpecError: One is unknown.
        """
        known = list(environments)
        if unknown := sorted(self.named - set(known)):
            raise SpecError(
                f"the curriculum names {unknown[0]!r}{nearest(unknown[0], known)}, which the mixture does not have; "
                f"its environments: {', '.join(known)}"
            )


def declare_curriculum(value: Any, environments: Iterable[str]) -> CurriculumSpec | None:
    """Turn what a user gave for `curriculum` into a declaration.

    Args:
        value: A `CurriculumSpec`, the name of a preset, or None.
        environments: The names of the mixture.

    Returns:
        The declaration; None where none was given.

    Raises:
        SpecError: It is something else, or names an environment that there is not.
    """
    if isinstance(value, str):
        if value not in PRESETS:
            raise SpecError(
                f"curriculum={value!r}{nearest(value, PRESETS)}; accepted: {', '.join(map(repr, PRESETS))}, or a "
                "CurriculumSpec"
            )
        value = CurriculumSpec(adaptive=True) if value == "adaptive" else CurriculumSpec(mixture=value)
    if value is None:
        return None
    if not isinstance(value, CurriculumSpec):
        raise SpecError(
            f"curriculum is of type {type(value).__name__}; accepted: a CurriculumSpec, or one of "
            f"{', '.join(map(repr, PRESETS))}"
        )
    value.check_names(environments)
    return value
