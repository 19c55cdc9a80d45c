"""What a batch costs: TRL's `GRPOTrainer` beside `MultiEnvGRPOTrainer`, same environments, same policy.

32 rollouts over two servers; each opens a session, which takes as long as `setup()`, and makes three tool calls.
The policy is scripted, so that what is measured is the environments' side. The critical path is the time that even the
best trainer needs: the slowest start, and the slowest call of each turn.

Run as `python benchmarks/rollouts.py`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import torch
from report import Report, Row
from servers import serving
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.tiny.model import build_model, build_tokenizer

NUM_TURNS = 3
CALL = "<tool_call>\n" + json.dumps({"name": "work", "arguments": {}}) + "\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Phase:
    """One rollout phase.

    Attributes:
        duration_s: From the first reset to the last reward, in seconds.
        rewards: The rewards of the batch by environment, to see that both trainers did the same.
    """

    duration_s: float
    rewards: dict[str, float]


class Scripted(GRPOTrainer):
    """Calls the tool in each of three turns."""

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        texts = [self._tokenizer.decode(ids) for ids in prompt_ids]
        answers = [CALL if text.count("<tool_response>") < NUM_TURNS else "done" for text in texts]
        encode = self._tokenizer
        return [
            [*encode(answer, add_special_tokens=False)["input_ids"], encode.eos_token_id] for answer in answers
        ], None


class Timed:
    """Times the rollout phase; mixed in first."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]  # mixed in before a trainer
        self.phase_s = time.perf_counter() - started
        return output


def play(trainer_class: type, spec: MultiEnvSpec, num_rollouts: int, tokenizer: Any) -> Phase:
    """Train one step and return its rollout phase."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            max_steps=1,
            per_device_train_batch_size=num_rollouts,
            num_generations=2,
            max_completion_length=600,
            max_tool_calling_iterations=NUM_TURNS + 1,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            chat_template_kwargs={"enable_thinking": False},
        )
        model = build_model(tokenizer, seed=0, hidden_size=16)
        model.config.max_position_embeddings = 8192
        is_ours = issubclass(trainer_class, MultiEnvGRPOTrainer)
        slots = {"spec": spec} if is_ours else spec.trainer_kwargs()
        trainer = trainer_class(model=model, processing_class=tokenizer, args=args, **slots)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    log = trainer.state.log_history[0]
    return Phase(trainer.phase_s, {name: log[f"rewards/{name}/mean"] for name in spec.environments})


def measure(num_rollouts: int, setup_s: float, tool_s: float) -> tuple[Phase, Phase]:
    """Play one batch with TRL's trainer and one with ours, on the same two servers."""
    theirs = type("Theirs", (Timed, Scripted), {})
    ours = type("Ours", (Timed, MultiEnvGRPOTrainer, Scripted), {})
    instruction = json.dumps({"name": "work", "description": "Work for a while.", "parameters": {}})
    tokenizer = build_tokenizer([instruction, CALL, "Exercise 1. " + "Do it. " * 50] * 3, vocab_size=2_000)
    tokenizer.model_max_length = 8192
    phases = []
    with serving(2, num_rollouts, [(setup_s, tool_s)] * 2) as servers:
        for trainer_class in (ours, theirs):
            environments = {
                f"server{number}": EnvSpec(server.url, num_tasks=num_rollouts // 4, discover_task_tools=False)
                for number, server in enumerate(servers)
            }
            with MultiEnvSpec(environments) as spec:
                phases.append(play(trainer_class, spec, num_rollouts, tokenizer))
    if phases[0].rewards != phases[1].rewards:
        raise RuntimeError(f"the two trainers did not do the same: {phases[0].rewards} and {phases[1].rewards}")
    return phases[1], phases[0]


def run(cases: Sequence[tuple[float, float]] = ((1.0, 0.5), (0.5, 0.2)), num_rollouts: int = 32) -> Report:
    """Measure all cases.

    Args:
        cases: Seconds of a session's start and of a tool call.
        num_rollouts: Rollouts in the batch; a multiple of 4.
    """
    rows = []
    results = []
    for setup_s, tool_s in cases:
        theirs, ours = measure(num_rollouts, setup_s, tool_s)
        critical_s = setup_s + NUM_TURNS * tool_s
        case = f"start {setup_s:g} s, tool {tool_s:g} s"
        rows.append(Row(f"TRL's GRPOTrainer, {case}", theirs.duration_s, theirs.duration_s))
        path = f"{ours.duration_s / critical_s:.2f} times the critical path of {critical_s:g} s"
        rows.append(Row(f"MultiEnvGRPOTrainer, {case}", ours.duration_s, theirs.duration_s, path))
        results.append(f"{theirs.duration_s / ours.duration_s:.1f} times faster ({case}), {path}")
    return Report(f"Rollout phase of {num_rollouts} rollouts, {NUM_TURNS} turns", rows, "; ".join(results))


if __name__ == "__main__":
    run().show()
