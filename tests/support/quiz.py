"""Small foreign environments, and trainers on them that note what they train on, get killed, and go on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback

from multienv import ForeignSpec, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.specs import Adaptive, CurriculumSpec, Schedule, Stage, TaskRules
from tests.support.training import scripted_trainer


class Quiz:
    """A question with a tool that nobody calls."""

    def reset(self, **_: Any) -> None:
        """Keep nothing."""

    def answer(self, number: int) -> str:
        """Answer.

        Args:
            number: The answer.
        """
        return str(number)


def score(number: list[int], level: list[int], trainer_state: Any, **_: Any) -> list[float]:
    """Score by task, place in the group and training step, so that outcomes differ and come again after a restart."""
    step = trainer_state.global_step
    return [
        float((task * 3 + place % 2 * 2 + hard) % 5 < 2 + step // 3)
        for place, (task, hard) in enumerate(zip(number, level, strict=True))
    ]


def quiz(num_tasks: int, level: int = 0, **options: Any) -> ForeignSpec:
    rows = Dataset.from_list([{"number": number, "level": level} for number in range(num_tasks)])
    return ForeignSpec(Quiz, train_dataset=rows, reward_funcs=score, **options)


RULES = TaskRules(gate_after=2, gate_passes=2, solved_at=0.9, hopeless_at=0.1, rest_passes=2)

CURRICULA: Mapping[str, CurriculumSpec] = {
    "static": CurriculumSpec(),
    "schedule": CurriculumSpec(
        schedule=Schedule(
            points={0: {"a": 1.0}, 3: {"a": 1.0, "b": 3.0}, 6: {"b": 1.0, "c": 1.0}}, interpolation="linear"
        )
    ),
    "stages": CurriculumSpec(
        stages=(
            Stage(weights={"a": 3.0, "c": 1.0}, until={"a": 0.5}, min_groups=6),
            Stage(weights={"a": 1.0, "b": 1.0}, until={"b": 0.5}, min_groups=3),
            Stage(weights={"c": 1.0, "b": 1.0}),
        )
    ),
    "adaptive": CurriculumSpec(adaptive=Adaptive(max_change=0.3, temperature=0.1, smoothing=0.5)),
}


def quizzes(curriculum: str = "static", scale: int = 1, **options: Any) -> MultiEnvSpec:
    rules = RULES if curriculum == "adaptive" else TaskRules()
    environments = {
        "a": quiz(5 * scale, 0, sampling_weight=5.0, task_rules=rules),
        "b": quiz(3 * scale, 1, sampling_weight=2.0, task_rules=rules),
        "c": quiz(2 * scale, 4, sampling_weight=1.0, task_rules=rules),
    }
    return MultiEnvSpec(environments, curriculum=CURRICULA[curriculum], **options)


class KilledError(Exception):
    """What ends a training in the middle."""


class Kill(TrainerCallback):
    """Kills a training between its last optimisation and its checkpoint."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KilledError


Batches = list[tuple[int, list[str]]]
"""For each batch that was generated for, the training step and its tasks, one for each group."""


class Noting(MultiEnvGRPOTrainer):
    """Notes what it trains on."""

    batches: Batches

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, Any]]) -> Any:
        if self.model.training:
            groups = [str(row["task_id"]) for row in inputs[:: self.num_generations]]
            self.batches.append((self.state.global_step, groups))
        return super()._generate_and_score_completions(inputs)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Take no time for that."""


def trainer_on(
    spec: MultiEnvSpec,
    directory: Path,
    options: Mapping[str, Any],
    trainer_class: type[MultiEnvGRPOTrainer] = Noting,
    **slots: Any,
) -> Any:
    """Build a trainer whose groups hold two different completions."""
    turns = itertools.count()
    answers = ("yes", "no way")
    defaults = {"save_strategy": "steps", "save_steps": 1, "save_only_model": False, "learning_rate": 1e-3}
    trainer = scripted_trainer(
        lambda _text, _turn: answers[next(turns) % 2],
        directory,
        defaults | dict(options),
        trainer_class,
        spec=spec,
        record_episodes=False,
        **slots,
    )
    trainer.batches = []
    return trainer
