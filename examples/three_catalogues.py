"""Three environments of the openreward.ai catalogue in one run: SETA, EndlessTerminals and SWE-rebench.

Needs a key in the variable `OPENREWARD_API_KEY`, and a GPU that holds the model:

    OPENREWARD_API_KEY=... python examples/three_catalogues.py
"""

from __future__ import annotations

from trl import GRPOConfig, GRPOTrainer

from multienv import EnvSpec, MultiEnvSpec


def mixture() -> MultiEnvSpec:
    """Declare the environments; nothing is fetched yet."""
    return MultiEnvSpec(
        {
            "seta": EnvSpec("Eigent/SETA", num_tasks=64),
            "terminals": EnvSpec("kanishk/EndlessTerminals", num_tasks=64),
            "swe": EnvSpec("nebius/SWE-rebench-V2", indices=range(64)),
        }
    )


def main() -> None:
    with mixture() as spec:
        trainer = GRPOTrainer(
            model="Qwen/Qwen3-4B",
            args=GRPOConfig(
                output_dir="three-catalogues",
                num_generations=8,
                max_steps=100,
                max_completion_length=8192,
                max_tool_calling_iterations=20,
                log_completions=True,
            ),
            **spec.trainer_kwargs(),
        )
        trainer.train()
        trainer.save_model()


if __name__ == "__main__":
    main()
