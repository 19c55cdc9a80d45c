"""Reward functions of your own: one for a single environment, and one over all of them.

Start two servers, `python examples/echo_server.py 8000` and `python examples/echo_server.py 8001`, then:

    python examples/custom_reward.py
"""

from __future__ import annotations

import argparse
from difflib import SequenceMatcher
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from multienv import EnvSpec, MultiEnvSpec
from multienv.types import Adapter, Episode


def closeness(environments: list[Adapter], target: list[str], **_: Any) -> list[float | None]:
    """Pay for coming close: how much of the last word said agrees with the task's.

    Sees the rows of its own environment only, and `target`, a key of that environment's task specs.
    """
    return [_agreement(adapter.episode, wanted) for adapter, wanted in zip(environments, target, strict=True)]


def _agreement(episode: Episode, wanted: str) -> float | None:
    """Count 0.0 for a rollout that said nothing, and None, for unscored, where infrastructure failed."""
    if not episode.is_scorable:
        return None
    said = str(episode.steps[-1].arguments.get("text")) if episode.steps else ""
    return SequenceMatcher(None, said, wanted).ratio()


def mixture(graded: str, strict: str) -> MultiEnvSpec:
    """Declare the environments: the first with a function of its own, none with its own reward as it is."""

    def doubled(environments: list[Adapter], **_: Any) -> list[float | None]:
        """Pay twice what each environment pays; None, for unscored, stays None."""
        rewards = spec.reward_func(environments=environments)
        return [2.0 * reward if reward is not None else None for reward in rewards]

    spec = MultiEnvSpec(
        {
            "graded": EnvSpec(graded, reward_funcs=[closeness], use_environment_reward=False),
            "strict": EnvSpec(strict, use_environment_reward=False),
        },
        reward_funcs=doubled,
    )
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on two echo servers with reward functions of your own.")
    parser.add_argument("--graded", default="http://127.0.0.1:8000", help="URL of the first echo server")
    parser.add_argument("--strict", default="http://127.0.0.1:8001", help="URL of the second echo server")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="name on the Hub, or a folder")
    parser.add_argument("--max-steps", type=int, default=5)
    args = parser.parse_args()
    with mixture(args.graded, args.strict) as spec:
        print("reward functions:", ", ".join(function.__name__ for function in spec.reward_funcs))
        config = GRPOConfig(
            output_dir="custom-reward",
            num_generations=2,
            max_steps=args.max_steps,
            max_tool_calling_iterations=20,
            save_strategy="no",
            use_cpu=not torch.accelerator.is_available(),
        )
        GRPOTrainer(model=args.model, args=config, **spec.trainer_kwargs()).train()


if __name__ == "__main__":
    main()
