"""One policy, several environments, one run of TRL's own `GRPOTrainer`.

Start two servers, `python examples/echo_server.py 8000` and `python examples/echo_server.py 8001`, then:

    python examples/quickstart.py

Name other servers by their URLs, and another model, on the command line:

    python examples/quickstart.py https://one.example.org https://two.example.org --model Qwen/Qwen3-4B
"""

from __future__ import annotations

import argparse

import torch
from trl import GRPOConfig, GRPOTrainer

from multienv import EnvSpec, MultiEnvSpec

DEFAULT_URLS = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one model on several environment servers.")
    parser.add_argument("urls", nargs="*", default=DEFAULT_URLS, help="one URL per environment")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="name on the Hub, or a folder")
    parser.add_argument("--max-steps", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    environments = {
        f"environment-{number}": EnvSpec(url, num_tasks=64) for number, url in enumerate(args.urls, start=1)
    }
    with MultiEnvSpec(environments) as spec:
        print(spec.train_dataset)
        trainer = GRPOTrainer(
            model=args.model,
            args=GRPOConfig(
                output_dir="quickstart",
                num_generations=2,
                max_steps=args.max_steps,
                max_tool_calling_iterations=20,
                log_completions=True,
                save_strategy="no",
                use_cpu=not torch.accelerator.is_available(),
            ),
            **spec.trainer_kwargs(),
        )
        trainer.train()


if __name__ == "__main__":
    main()
