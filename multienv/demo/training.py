"""Decides how the demo trains: one run of `MultiEnvGRPOTrainer` over all environments.

Flow: `learning` → `MultiEnvGRPOTrainer`, which fills TRL's slots from the `MultiEnvSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from multienv.curriculum import Line
from multienv.training import LogFile, MultiEnvGRPOTrainer

if TYPE_CHECKING:
    from multienv.meta import MultiEnvSpec
    from multienv.tiny.warmup import Policy

_NUM_GENERATIONS: Final = 8
_MAX_TOOL_CALLS: Final = 4
_MAX_COMPLETION_LENGTH: Final = 128
_LEARNING_RATE: Final = 4e-4


class _OnStep(TrainerCallback):
    """Calls back after every optimizer step."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        self._on_step = on_step

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Call back."""
        self._on_step()


def train(
    spec: MultiEnvSpec, policy: Policy, *, max_steps: int, seed: int, output_dir: Path, on_step: Callable[[], None]
) -> Mapping[str, Line]:
    """Train the policy in place on the mixture; every step plays as many groups as there are tasks.

    Args:
        spec: The mixture.
        policy: The warmed-up policy.
        max_steps: Optimizer steps.
        seed: Seed of task order and sampling.
        output_dir: Where `episodes.jsonl`, one line a rollout, and `log.jsonl`, TRL's log, go.
        on_step: Called after every step.

    Returns:
        The account of the mixture, by environment; empty where the rows were left to TRL.
    """
    config = GRPOConfig(
        output_dir=str(output_dir),
        max_steps=max_steps,
        per_device_train_batch_size=len(spec.task_dataset) * _NUM_GENERATIONS,
        num_generations=_NUM_GENERATIONS,
        max_completion_length=_MAX_COMPLETION_LENGTH,
        max_tool_calling_iterations=_MAX_TOOL_CALLS,
        learning_rate=_LEARNING_RATE,
        lr_scheduler_type="constant",
        chat_template_kwargs={"enable_thinking": False},
        seed=seed,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = MultiEnvGRPOTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        args=config,
        spec=spec,
        callbacks=[LogFile(), _OnStep(on_step)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return {} if trainer.curriculum is None else trainer.curriculum.account.lines
