"""One of two ranks that follow an adaptive curriculum, are killed, and go on.

Run by `ranks_child`, in whose processes there is time for both; what each rank planned and trained on is written to
DIR/<rank>.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multienv import EnvSpec, Limits, MultiEnvSpec
from tests.support.environments import ClimbEnvironment, EchoEnvironment
from tests.support.quiz import CURRICULA, RULES, Kill, KilledError, Noting, quiz, trainer_on

OPTIONS: dict[str, Any] = {"per_device_train_batch_size": 8, "max_steps": 6, "ddp_backend": "gloo"}
"""Eight groups of two, four for each rank."""


class Planning(Noting):
    """Notes what was planned for what it trains on."""

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, Any]]) -> Any:
        assert self.curriculum is not None
        assert self._sampler is not None
        batch = self.curriculum.batches[self._sampler.next_generated]
        self.planned.append([[pick.environment, pick.task] for pick in batch.groups])
        return super()._generate_and_score_completions(inputs)


def score(task_index: list[int], trainer_state: Any, **_: Any) -> list[float]:
    """Score by task, place in the group and step, as the quizzes do."""
    step = trainer_state.global_step
    return [float((task * 2 + place % 2) % 3 < 1 + step // 4) for place, task in enumerate(task_index)]


def mixture() -> MultiEnvSpec:
    own: dict[str, Any] = {"use_environment_reward": False, "reward_funcs": [score], "discover_task_tools": False}
    environments = {
        "echo": EnvSpec(EchoEnvironment, sampling_weight=6.0, limits=Limits(max_sessions=8), task_rules=RULES, **own),
        "climb": EnvSpec(ClimbEnvironment, sampling_weight=2.0, limits=Limits(max_sessions=12), **own),
        "quiz": quiz(5, sampling_weight=1.0),
    }
    return MultiEnvSpec(environments, curriculum=CURRICULA["adaptive"])


def train(directory: Path, at: int | None, options: Mapping[str, Any], *, resumes: bool = False) -> dict[str, Any]:
    """Train until a step, or to the end."""
    with mixture() as spec:
        trainer = trainer_on(spec, directory, {**OPTIONS, **options}, Planning, callbacks=[Kill(at)])
        trainer.planned = []
        try:
            trainer.train(resume_from_checkpoint=resumes)
        except KilledError:
            assert at is not None
        return {
            "batches": trainer.batches,
            "planned": trainer.planned,
            "state": trainer.curriculum.state_dict(),
            "logs": [entry for entry in trainer.state.log_history if "env/echo/groups_asked" in entry],
            "rank": trainer.accelerator.process_index,
        }


def main(directory: Path) -> None:
    runs = {
        "whole": train(directory / "whole", None, {"save_strategy": "no"}),
        "killed": train(directory / "parts", 4, {}),
        "resumed": train(directory / "parts", None, {}, resumes=True),
    }
    (directory / f"{runs['whole']['rank']}.json").write_text(json.dumps(runs), encoding="utf-8")
