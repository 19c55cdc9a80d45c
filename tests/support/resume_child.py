"""A training that is killed without a word after a step. Run with DIR and STEP."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tests.support.quiz import quizzes, trainer_on

CURRICULUM = "adaptive"
OPTIONS: dict[str, Any] = {"max_steps": 7, "per_device_train_batch_size": 4, "steps_per_generation": 2}


class Slay(TrainerCallback):
    """Ends the process in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(directory: str, step: str) -> None:
    with quizzes(CURRICULUM) as spec:
        trainer_on(spec, Path(directory), OPTIONS, callbacks=[Slay(int(step))]).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
