"""One of two ranks that train a step together, generation being one operation of both.

Run by accelerate with URL and DIR; what each rank saw is written to DIR/<rank>.json. Then both follow a curriculum, see
`curriculum_child`, in DIR/curriculum.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from tests.support import curriculum_child
from tests.support.training import Scripted, call, config, model, tokenizer


class CollectiveTrainer(Scripted):
    """Generates as vLLM in server mode does: every rank brings its prompts and takes its slice of the answers."""

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **options: Any) -> Any:
        lengths = gather_object([len(prompt_ids)])
        assert len(set(lengths)) == 1, f"ranks bring unequal numbers of prompts: {lengths}"
        everyones = gather_object(prompt_ids)
        answers, logprobs = super()._generate_single_turn(everyones, *rest, **options)
        start = self.accelerator.process_index * len(prompt_ids)
        return answers[start : start + len(prompt_ids)], logprobs


class Trainer(MultiEnvGRPOTrainer, CollectiveTrainer):
    """Ours before the collective one, told that its turns are collective."""

    _turns_are_collective = True  # what vLLM in server mode would say

    @staticmethod
    def policy(text: str, turn: int) -> str:
        """Climb in one call or in four, as the task says."""
        is_long = "Echo 'world'" in text
        if is_long:
            return call("up", n=1) if turn < 4 else "done"
        return call("up", n=2) if turn < 1 else "done"


def main(url: str, directory: str) -> None:
    seen: list[Any] = []

    def watch(environments: list[Any], **_: Any) -> list[float]:
        seen.extend((e.episode.task_id, e.rewards) for e in environments)
        return [0.0] * len(environments)

    limits = Limits(max_sessions=4)  # two for each rank
    environments = {"climb": EnvSpec(url, indices=[0, 1], limits=limits, discover_task_tools=False)}
    with MultiEnvSpec(environments, reward_funcs=watch) as spec:
        args = config(Path(directory) / "out", per_device_train_batch_size=2, num_generations=2, ddp_backend="gloo")
        trainer = Trainer(model=model(), processing_class=tokenizer(), args=args, spec=spec)
        trainer.train()
        rank = trainer.accelerator.process_index
        rewards = [entry["rewards/climb/mean"] for entry in trainer.state.log_history if "rewards/climb/mean" in entry]
        logged = {
            key: value for entry in trainer.state.log_history for key, value in entry.items() if key.startswith("env/")
        }
    told = {"seen": seen, "rewards": rewards, "metrics": logged}
    Path(directory, f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    curriculum_child.main(Path(sys.argv[2], "curriculum"))
