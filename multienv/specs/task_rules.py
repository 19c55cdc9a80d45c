"""Decides what a user declares about the choice of tasks within one environment: a frozen value, checked at once.

Flow: part of a declared curriculum; `curriculum.tasks` applies it to every decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from multienv.errors import SpecError
from multienv.specs.limits import sentence

_Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
_Success: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


class TaskRules(BaseModel):
    """Which tasks of one environment come less often, and which no more. Without options only broken tasks are left.

    A task's success is the mean share of successes among the scored rollouts of its groups, newer groups counting more.
    A group in which nothing was scored changes none of this: infrastructure is never difficulty.

    Attributes:
        expected_success: The key of the task spec that says how likely a success is before anything was observed: a
            number from 0 to 1, such as a published pass rate, or a label. None where the task specs say nothing.
        expected_by_label: What each label stands for, such as `{"easy": 0.9, "hard": 0.05}`. Tasks of another label
            are unknown until they were observed.
        solved_at: From this success on a task is solved, and comes in one of `rest_passes` passes only; None for no
            such pool.
        hopeless_at: Up to this success a task is hopeless, and comes as rarely; None for no such pool.
        rest_passes: In one of how many passes over the environment's tasks a solved or hopeless one comes.
        gate_after: After so many groups in a row in which every scored rollout was a success, a task is left out for a
            while; None for never. It is tried again in the pass after that, and left out again if solved again.
        gate_passes: For how many passes it is left out.
        set_aside_after: After so many groups in a row in which infrastructure broke every rollout, a task is left out
            for the rest of the run, with a warning; None for never. They count only while other tasks of the
            environment are scored in between, so an outage leaves no task out; hence at least 2.
        smoothing: Weight of the newest group in a task's success. The expected success is what it starts from.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> rules = TaskRules(expected_success="difficulty", expected_by_label={"easy": 0.9, "hard": 0.05})
        >>> rules.expected({"difficulty": "hard"}), rules.expected({"difficulty": 0.4}), rules.expected({})
        (0.05, 0.4, None)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    expected_success: str | None = None
    expected_by_label: Mapping[str, _Success] = Field(default_factory=dict)
    solved_at: Annotated[_Success, Field(gt=0)] | None = None
    hopeless_at: Annotated[_Success, Field(lt=1)] | None = None
    rest_passes: Annotated[int, Field(ge=2)] = 4
    gate_after: _Count | None = None
    gate_passes: _Count = 8
    set_aside_after: Annotated[int, Field(ge=2)] | None = 3
    smoothing: Annotated[_Success, Field(gt=0)] = 0.5

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            sentences = "; ".join(sentence(problem, sorted(type(self).model_fields)) for problem in error.errors())
            raise SpecError(f"TaskRules: {sentences}") from None

    @field_validator("expected_success")
    @classmethod
    def _is_named(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("expected_success is empty; accepted: a key of the task spec, or None")
        return value

    @model_validator(mode="after")
    def _agrees(self) -> TaskRules:
        if self.expected_by_label and self.expected_success is None:
            raise ValueError(
                "expected_by_label is never looked at without expected_success; say which key of the task spec holds "
                "the label, as in expected_success='difficulty'"
            )
        if self.solved_at is not None and self.hopeless_at is not None and self.hopeless_at >= self.solved_at:
            raise ValueError(
                f"hopeless_at={self.hopeless_at:g} is not below solved_at={self.solved_at:g}, so a task would be both; "
                "accepted: hopeless_at < solved_at"
            )
        return self

    @property
    def has_pools(self) -> bool:
        """True where solved or hopeless tasks come less often."""
        return self.solved_at is not None or self.hopeless_at is not None

    def expected(self, task_spec: Any) -> float | None:
        """Return how likely a success at a task is before anything was observed, or None where nobody says.

        A value is first looked up as a label.

        Args:
            task_spec: The task spec as the environment published it.

        Raises:
            SpecError: The task spec holds a number that is no likelihood and no known label either.
        """
        value = task_spec.get(self.expected_success) if isinstance(task_spec, Mapping) else None
        if value is None or self.expected_success is None:
            return None
        if (known := self.expected_by_label.get(str(value))) is not None:
            return known
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        if 0 <= value <= 1:
            return float(value)
        if self.expected_by_label:
            return None
        raise SpecError(
            f"expected_success={self.expected_success!r}: a task spec says {value!r}; accepted: a number from 0 to 1, "
            "or a label that expected_by_label knows. For levels or percentages, say what each stands for, as in "
            f"expected_by_label={{{str(value)!r}: 0.5}}"
        )
