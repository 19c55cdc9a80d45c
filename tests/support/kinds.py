"""The trainers that a mixture runs under, made alike: ours, TRL's own, and TRL's own with the one meta factory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from multienv import MultiEnvGRPOTrainer, MultiEnvSpec
from tests.support.servers import ORSServer
from tests.support.training import Policy, scripted_trainer

OURS, PLAIN, META = KINDS = ("ours", "plain", "meta")


def trained(
    kind: str, spec: MultiEnvSpec, policy: Policy, output_dir: Path, options: dict[str, Any] | None = None, **slots: Any
) -> Any:
    """Train one step over all tasks of a mixture, two rollouts each, and return the trainer."""
    given = dict(options or {})
    given.setdefault("per_device_train_batch_size", 2 * len(spec.train_dataset))
    if kind == OURS:
        trainer = scripted_trainer(policy, output_dir, given, MultiEnvGRPOTrainer, spec=spec, **slots)
    elif kind == PLAIN:
        trainer = scripted_trainer(policy, output_dir, given, **spec.trainer_kwargs(), **slots)
    else:
        own = {"train_dataset": spec.train_dataset, "reward_funcs": spec.reward_funcs}
        trainer = scripted_trainer(
            policy, output_dir, given, environment_factory=spec.meta_environment_factory, **own, **slots
        )
    trainer.train()
    return trainer


def log_of(trainer: Any) -> dict[str, Any]:
    """What the one step logged."""
    log: dict[str, Any] = trainer.state.log_history[0]
    return log


class Watch:
    """A shared reward function that scores nothing and keeps what it was shown, row by row."""

    __name__ = "watch"

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, environments: list[Any], completions: list[Any], prompts: list[Any], **_: Any) -> list[None]:
        for environment, completion, prompt in zip(environments, completions, prompts, strict=True):
            row = {"episode": environment.episode, "reward": environment.reward}
            self.rows.append({**row, "completion": completion, "prompt": prompt})
        return [None] * len(environments)

    def of(self, target: str) -> list[dict[str, Any]]:
        """The rows of one task of the test environments."""
        return [row for row in self.rows if f"'{target}'" in str(row["prompt"])]


def assert_closed(*servers: ORSServer, patience_s: float = 10.0) -> None:
    """Wait until no session is open."""
    deadline = time.monotonic() + patience_s
    while any(server.open_sessions for server in servers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [server.open_sessions for server in servers] == [[]] * len(servers)
