"""Decides what a run is declared by: `MultiEnvSpec`'s options, TRL's arguments, the trainer's switches, the evaluation.

Flow: a file's values, references resolved → `RunSpec` → `RunFile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, field_validator

from multienv.errors import SpecError
from multienv.evaluation import EvalSpec
from multienv.rewards import Balance
from multienv.specs import (
    Adaptive,
    CurriculumSpec,
    EnvSpec,
    Limits,
    RewardSpec,
    Schedule,
    Stage,
    TaskRules,
    curriculum_in_file,
    preset,
)
from multienv.specs.declaration import Declaration
from multienv.specs.mixture import check_names

_Count = Annotated[int, Field(ge=1, strict=True)]


class TrainerSpec(Declaration):
    """The switches of `MultiEnvGRPOTrainer`, by its own names; see there.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    is_concurrent: StrictBool = True
    stop_when_finished: StrictBool = True
    shows_schemas: StrictBool = True
    read_ahead: StrictBool = False
    balance: Balance = "none"
    normalize_advantages: StrictBool = False
    renamed: Mapping[str, str] = Field(default_factory=dict)


def _environment(value: Any) -> Any:
    """Turn what a file says of an environment into a declaration."""
    if not isinstance(value, Mapping):
        if value is None:
            raise SpecError("it is empty; accepted: a target, or the options of EnvSpec, as in {preset: seta}")
        return EnvSpec(value) if isinstance(value, str) else value
    options = dict(value)
    name = options.pop("preset", None)
    if name is not None:
        return preset(name, **options)
    if "target" not in options:
        raise SpecError("target is missing; give target: a catalogue name, a URL or module:Class, or preset: a name")
    target = options.pop("target")
    if options or isinstance(target, str):
        return EnvSpec(target, **options)
    return target


class RunSpec(Declaration):
    """A whole run. `docs/run-file.md` shows every key.

    Attributes:
        environments: By name, a target, or the options of `EnvSpec`; `preset` fills in those of a known environment.
        curriculum: As for `MultiEnvSpec`.
        reward_funcs: As for `MultiEnvSpec`: reward functions for all environments.
        system_prompt: As for `MultiEnvSpec`.
        max_sessions: As for `MultiEnvSpec`.
        max_concurrent_starts: As for `MultiEnvSpec`.
        manifest: As for `MultiEnvSpec`; a relative path starts at the file.
        model: The fields of TRL's `ModelConfig`.
        grpo: The fields of TRL's `GRPOConfig`.
        trainer: The switches of `MultiEnvGRPOTrainer`.
        evaluation: What `multienv eval` plays, and against which endpoint.
        offline: What `--offline` lays over the rest.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    environments: Mapping[str, Annotated[Any, BeforeValidator(_environment)]]
    curriculum: CurriculumSpec | None = None
    reward_funcs: tuple[Any, ...] = ()
    system_prompt: str | None = None
    max_sessions: _Count | None = None
    max_concurrent_starts: _Count | None = None
    manifest: str | None = None
    model: Mapping[str, Any] = Field(default_factory=dict)
    grpo: Mapping[str, Any] = Field(default_factory=dict)
    trainer: TrainerSpec = Field(default_factory=TrainerSpec)
    evaluation: EvalSpec = Field(default_factory=EvalSpec)
    offline: Mapping[str, Any] = Field(default_factory=dict)

    @field_validator("environments")
    @classmethod
    def _named(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if not value:
            raise ValueError("environments is empty; name at least one, as in environments: {seta: {preset: seta}}")
        check_names(value)
        return value

    @field_validator("curriculum", mode="before")
    @classmethod
    def _declared(cls, value: Any, info: Any) -> Any:
        return curriculum_in_file(value, info.data.get("environments"))


DECLARATIONS: Final[Mapping[str, type[BaseModel]]] = {
    one.__name__: one
    for one in (
        RunSpec,
        EnvSpec,
        Limits,
        RewardSpec,
        TaskRules,
        CurriculumSpec,
        Schedule,
        Stage,
        Adaptive,
        TrainerSpec,
        EvalSpec,
    )
}
"""The declarations that a file may hold, by name."""
