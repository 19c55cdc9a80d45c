"""Decides what a simulation is declared by: the curriculum, the batch, and the environments with their learners.

Flow: a YAML file → `reading` → `SimulationSpec` → `SimulationSpec.run` → `curriculum.simulation.simulate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from multienv.curriculum import Entry
from multienv.curriculum.learners import Learner, SimulatedEnvironment
from multienv.curriculum.simulation import Simulation, check_learners, simulate
from multienv.errors import SpecError, nearest
from multienv.files import in_words
from multienv.specs import Adaptive, CurriculumSpec, Schedule, Stage, TaskRules, curriculum_in_file, declare_curriculum
from multienv.specs.curriculum import PRESETS
from multienv.specs.declaration import Declaration
from multienv.specs.mixture import check_names

_Count = Annotated[int, Field(ge=1, strict=True)]
_Weight = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]


class _Declaration(Declaration):
    """One of a file, whose nested options are told apart."""

    @classmethod
    def _sentence(cls, problem: Any, known: list[str]) -> str:  # noqa: ARG003 - a nested option's are others
        return in_words(problem, cls)


class BatchSpec(_Declaration):
    """What is played.

    Attributes:
        num_groups: Groups of a batch.
        num_generations: Rollouts of a group.
        num_batches: How many batches.
        seed: Seed of the tasks' order, their difficulties, and the rollouts.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    num_groups: _Count = 16
    num_generations: Annotated[int, Field(ge=2, strict=True)] = 8
    num_batches: _Count = 200
    seed: Annotated[int, Field(ge=0, strict=True)] = 0


class SimulatedEnvSpec(_Declaration):
    """One environment of a simulation.

    Attributes:
        num_tasks: How many tasks it has.
        sampling_weight: Its weight in the mixture `"weights"`.
        task_rules: How its tasks follow one another. With `expected_success` the curriculum is told how likely the
            policy is to succeed at each task before training.
        max_groups: Most groups of it in a batch; None for no limit.
        learner: How the policy fares in it.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    num_tasks: _Count
    sampling_weight: _Weight = 1.0
    task_rules: TaskRules = Field(default_factory=TaskRules)
    max_groups: _Count | None = None
    learner: Learner = Field(default_factory=Learner)

    @field_validator("learner", mode="before")
    @classmethod
    def _declared(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        known = [field.name for field in dataclasses.fields(Learner)]
        if unknown := [option for option in value if option not in known]:
            raise SpecError(f"unknown option {unknown[0]!r}{nearest(unknown[0], known)}; accepted: {', '.join(known)}")
        return Learner(**value)


class SimulationSpec(_Declaration):
    """A curriculum and the simulated learners that it is played against.

    Attributes:
        batch: What is played.
        environments: The environments by name.
        curriculum: The name of a preset, or a `CurriculumSpec`.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> spec = SimulationSpec(environments={"a": SimulatedEnvSpec(num_tasks=9)}, curriculum="uniform")
        >>> spec.run(num_batches=3).account.lines["a"].dispatched
        48
    """

    batch: BatchSpec = Field(default_factory=BatchSpec)
    environments: Mapping[str, SimulatedEnvSpec]
    curriculum: CurriculumSpec = Field(default_factory=CurriculumSpec)

    @field_validator("environments")
    @classmethod
    def _named(cls, value: Mapping[str, SimulatedEnvSpec]) -> Mapping[str, SimulatedEnvSpec]:
        if not value:
            raise ValueError("environments is empty; name at least one, as in environments: {seta: {num_tasks: 400}}")
        check_names(value)
        return value

    @field_validator("curriculum", mode="before")
    @classmethod
    def _declared(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            raise ValueError(
                f"curriculum is empty; accepted: one of {', '.join(PRESETS)}, or a CurriculumSpec's options"
            )
        return curriculum_in_file(value, info.data.get("environments"))

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check_learners(self.environments, {name: each.learner for name, each in self.environments.items()})
        return self

    def run(
        self, curriculum: CurriculumSpec | str | None = None, *, seed: int | None = None, num_batches: int | None = None
    ) -> Simulation:
        """Play the curriculum against the learners.

        Args:
            curriculum: Another one than the declared one.
            seed: Another seed than the declared one.
            num_batches: Another number of batches than the declared one.

        Raises:
            SpecError: There is no such curriculum, or it cannot be simulated.
            SessionLimitError: The environments may hold fewer groups than a batch has.
        """
        chosen = self.curriculum if curriculum is None else declare_curriculum(curriculum, self.environments)
        seed = self.batch.seed if seed is None else seed
        return simulate(
            [self._entry(name, seed) for name in self.environments],
            {name: each.learner for name, each in self.environments.items()},
            chosen or self.curriculum,
            num_groups=self.batch.num_groups,
            num_generations=self.batch.num_generations,
            num_batches=self.batch.num_batches if num_batches is None else num_batches,
            seed=seed,
        )

    def _entry(self, name: str, seed: int) -> Entry:
        """Return what the curriculum is told of an environment."""
        each = self.environments[name]
        expected: list[float | None] = []
        if each.task_rules.expected_success is not None:
            start = SimulatedEnvironment(name, each.num_tasks, each.learner, seed)
            key = each.task_rules.expected_success
            expected = [each.task_rules.expected({key: start.success_at(task)}) for task in range(each.num_tasks)]
        return Entry(
            name,
            each.num_tasks,
            each.sampling_weight,
            rules=each.task_rules,
            expected=expected,
            max_groups=each.max_groups,
        )


DECLARATIONS: Final[Mapping[str, type[BaseModel]]] = {
    one.__name__: one
    for one in (SimulationSpec, BatchSpec, SimulatedEnvSpec, CurriculumSpec, Schedule, Stage, Adaptive, TaskRules)
}
"""The declarations that a file may hold, by name."""
