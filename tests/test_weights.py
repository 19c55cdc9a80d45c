"""Reward weights, balance and scale: what TRL's own loss makes of them in real steps, and how they are declared."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec, RewardSpec
from multienv.errors import SpecError
from multienv.rewards import acts_under
from multienv.training import seams
from tests.support.environments import ClimbEnvironment, EchoEnvironment
from tests.support.training import Policy, config, scripted_trainer

ROOT = Path(__file__).parent.parent


def wordy_policy(text: str, _: int) -> str:
    """Be brief in one environment and long-winded in the other."""
    length = 2 if "hello" in text else 4
    return "up and up again " * (3 * length) if '"up"' in text else "no " * length


def every_other(completions: list[Any], **_: Any) -> list[float]:
    return [float(row % 2) for row in range(len(completions))]


OPTIONS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "scale_rewards": "none",
    "learning_rate": 0.0,
    "max_completion_length": 1_000,
}
"""Four groups of two, in four micro-batches; every advantage is 0.5 or -0.5."""


@pytest.fixture
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "reward_weight", UserWarning)
        yield


pytestmark = pytest.mark.usefixtures("silent")


EARNED = RewardSpec(unscored=None)


def fickle_policy() -> Policy:
    """Say something else every other time: where a group's completions are the same, its gradient is only rounding."""
    words = itertools.cycle((" yes", " so"))
    return lambda text, turn: wordy_policy(text, turn) + next(words)


def train(
    directory: Path,
    weight: float = 1.0,
    reward_funcs: Any = every_other,
    options: dict[str, Any] | None = None,
    policy: Policy = wordy_policy,
    **switches: Any,
) -> Any:
    """Train on one group of a brief environment, whose weight is given, beside three of a long-winded one."""
    environments = {
        "brief": EnvSpec(EchoEnvironment, indices=[0], reward_weight=weight, discover_task_tools=False, reward=EARNED),
        "wordy": EnvSpec(ClimbEnvironment, discover_task_tools=False, reward=EARNED),
    }
    with MultiEnvSpec(environments, reward_funcs=reward_funcs, curriculum="proportional") as spec:
        trainer = scripted_trainer(
            policy, directory, OPTIONS | (options or {}), MultiEnvGRPOTrainer, spec=spec, **switches
        )
        trainer.train()
    return trainer


def is_brief(micro_batch: Any) -> torch.Tensor:
    return torch.as_tensor(micro_batch["completion_mask"].sum(dim=1) < 30)


def trained_on(trainer: Any, *, brief: bool) -> list[float]:
    """The advantages of one environment's rows, smallest first."""
    found = [batch["advantages"][is_brief(batch) == brief] for batch in trainer._buffered_inputs]
    return sorted(torch.cat(found).tolist())


def loss_shares(trainer: Any) -> dict[str, float]:
    """Each environment's part of the gradient, as TRL's own loss says when asked what an advantage counts in it."""
    parts = {"brief": 0.0, "wordy": 0.0}
    for micro_batch in trainer._buffered_inputs:
        asked = micro_batch["advantages"].clone().requires_grad_()
        trainer.compute_loss(trainer.model, micro_batch | {"advantages": asked}).backward()
        part = (asked.grad * micro_batch["advantages"]).abs()
        parts["brief"] += part[is_brief(micro_batch)].sum().item()
        parts["wordy"] += part[~is_brief(micro_batch)].sum().item()
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def gradient(trainer: Any, *, brief: bool) -> torch.Tensor:
    """The gradient of all parameters that one environment's rows make."""
    trainer.model.zero_grad()
    for micro_batch in trainer._buffered_inputs:
        own = torch.where(is_brief(micro_batch) == brief, micro_batch["advantages"], 0.0)
        trainer.compute_loss(trainer.model, micro_batch | {"advantages": own}).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("scaling", ["group", "none"])
def test_twice_the_weight_is_twice_the_advantage_and_the_gradient_in_a_real_step(tmp_path: Path, scaling: str) -> None:
    options = {"scale_rewards": scaling}
    once, twice = (train(tmp_path / str(w), w, options=options, policy=fickle_policy()) for w in (1.5, 3.0))
    assert trained_on(twice, brief=True) == pytest.approx([2 * a for a in trained_on(once, brief=True)], rel=0.01)
    assert trained_on(twice, brief=False) == pytest.approx(trained_on(once, brief=False), rel=1e-6)
    assert trained_on(once, brief=False)[-1] == pytest.approx({"group": 0.707, "none": 0.5}[scaling], abs=1e-3)
    own, other = gradient(once, brief=True), gradient(once, brief=False)
    assert own.norm() > 0
    assert other.norm() > 0
    torch.testing.assert_close(gradient(twice, brief=True), 2 * own, rtol=0.01, atol=1e-7)
    torch.testing.assert_close(gradient(twice, brief=False), other, rtol=1e-5, atol=1e-7)


def test_a_weight_acts_once_however_often_a_batch_is_used_and_is_in_trls_table(tmp_path: Path) -> None:
    trainer = train(tmp_path, 3.0, options={"num_iterations": 2, "max_steps": 2})
    assert trained_on(trainer, brief=True) == pytest.approx([-1.5, 1.5])
    assert sorted(trainer._logs["advantages"]) == pytest.approx([-1.5, *[-0.5] * 3, *[0.5] * 3, 1.5])
    assert trainer.advantage_factors == {"brief": 3.0, "wordy": 1.0}
    assert not any(key.startswith("multienv") for batch in trainer._buffered_inputs for key in batch)


def test_a_weight_of_zero_trains_nothing_and_a_negative_one_the_opposite(tmp_path: Path) -> None:
    nothing = train(tmp_path / "0", 0.0)
    assert trained_on(nothing, brief=True) == [0.0, 0.0]
    assert gradient(nothing, brief=True).norm() == 0
    as_declared, opposite = train(tmp_path / "1"), train(tmp_path / "-1", -1.0)
    torch.testing.assert_close(gradient(opposite, brief=True), -gradient(as_declared, brief=True))


def test_evaluation_is_left_alone(tmp_path: Path) -> None:
    environments = {"brief": EnvSpec(EchoEnvironment, indices=[0], reward_weight=3.0, discover_task_tools=False)}
    options = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "scale_rewards": "none"}
    with MultiEnvSpec(environments, reward_funcs=every_other) as spec:
        slots: dict[str, Any] = {"spec": spec, "eval_dataset": spec.train_dataset}
        trainer = scripted_trainer(wordy_policy, tmp_path, options, MultiEnvGRPOTrainer, **slots)
        trainer.evaluate()
    assert sorted(trainer._logs["advantages"]) == [-0.5, 0.5]


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "dr_grpo", "grpo"])
def test_balance_gives_each_environment_its_share_of_trls_own_loss(tmp_path: Path, loss_type: str) -> None:
    trained = {
        balance: train(tmp_path, options={"loss_type": loss_type}, balance=balance)
        for balance in ("none", "rollouts", "tokens")
    }
    found = {balance: loss_shares(trainer)["brief"] for balance, trainer in trained.items()}
    num_tokens = torch.zeros(2)
    for batch in trained["tokens"]._buffered_inputs:
        num_tokens.index_add_(0, is_brief(batch).int(), (batch["completion_mask"] * batch["tool_mask"]).sum(1).float())
    by_token = (num_tokens[1] / num_tokens.sum()).item()
    assert by_token < 0.05
    assert found["rollouts"] == pytest.approx(0.25, rel=0.02)
    assert found["tokens"] == pytest.approx(by_token, rel=0.02)
    expected = {"dapo": by_token, "dr_grpo": by_token, "grpo": 0.25}
    if loss_type in expected:
        assert found["none"] == pytest.approx(expected[loss_type], rel=1e-4)


def test_unscored_rollouts_have_no_share_in_the_balance(tmp_path: Path) -> None:
    def some(completions: list[Any], environment: list[str], **_: Any) -> list[float | None]:
        earned = every_other(completions)
        return [None if name == "brief" and row % 4 > 1 else earned[row] for row, name in enumerate(environment)]

    options = {"num_generations": 4, "per_device_train_batch_size": 4}
    found = loss_shares(train(tmp_path, reward_funcs=some, options=options, balance="rollouts"))
    assert found["brief"] == pytest.approx(2 / 14, rel=0.02)


def test_a_weight_acts_on_top_of_the_balance(tmp_path: Path) -> None:
    found = loss_shares(train(tmp_path, 3.0, balance="rollouts"))
    assert found["brief"] == pytest.approx(0.75 / 1.5, rel=0.02)


def growing(completions: list[Any], environment: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """Pay one environment a hundred times what the other one is paid, and both more from step to step."""
    size = {"brief": 1.0, "wordy": 100.0}
    return [row % 2 * size[name] * (1 + trainer_state.global_step) for row, name in enumerate(environment)]


def test_normalised_advantages_are_those_of_the_reference_in_real_steps(tmp_path: Path) -> None:
    trainer = train(tmp_path, reward_funcs=growing, options={"max_steps": 3}, normalize_advantages=True)
    mean_square = (0.81 * 0.5**2 + 0.9 * 1.0**2 + 1.5**2) / (0.81 + 0.9 + 1)
    for brief in (True, False):
        num = 1 if brief else 3
        size = 1.5 / math.sqrt(mean_square)
        assert trained_on(trainer, brief=brief) == pytest.approx([-size] * num + [size] * num, rel=1e-4)


def test_a_resumed_run_goes_on_with_its_scale(tmp_path: Path) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    switches: dict[str, Any] = {"reward_funcs": growing, "normalize_advantages": True}
    straight = train(tmp_path, options=options, **switches)
    resumed_from = str(tmp_path / "checkpoint-1")
    environments = straight.spec.environments
    with MultiEnvSpec(environments, reward_funcs=growing, curriculum="proportional") as spec:
        slots: dict[str, Any] = {"spec": spec, "normalize_advantages": True}
        again = scripted_trainer(wordy_policy, tmp_path / "again", OPTIONS | options, MultiEnvGRPOTrainer, **slots)
        again.train(resume_from_checkpoint=resumed_from)
    assert again._weighing.scale.state_dict() == straight._weighing.scale.state_dict()
    assert again.advantage_factors == straight.advantage_factors


def test_two_ranks_use_the_factors_that_one_process_would(tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "tests.support.weights_child", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=ROOT,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    one = train(tmp_path, 2.0, growing, balance="rollouts", normalize_advantages=True)
    assert ranks[0]["factors"] == ranks[1]["factors"]
    assert ranks[0]["factors"] == pytest.approx(dict(one.advantage_factors), rel=1e-6)
    assert ranks[0]["logged"] == ranks[1]["logged"]
    assert ranks[0]["logged"] == pytest.approx(sorted(one._logs["advantages"]), rel=1e-6)


# What is declared


def test_weights_given_twice_are_an_error(tmp_path: Path) -> None:
    for given_weights in ([2.0, 1.0, 1.0], [2.0, 1.0, 1.0, 0.5]):
        with pytest.raises(SpecError, match=r"so it would count twice; accepted: None"):
            train(tmp_path, 2.0, options={"reward_weights": given_weights})
    trainer = train(tmp_path, 2.0, options={"reward_weights": [1.0, 1.0, 3.0]})
    assert trained_on(trainer, brief=True) == pytest.approx([-3.0, 3.0])
    assert trained_on(trainer, brief=False)[-1] == pytest.approx(1.5)


def test_a_balance_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"balance='rollout' \(did you mean 'rollouts'\?\); accepted: none, rollouts"):
        train(tmp_path, balance="rollout")
    with pytest.raises(SpecError, match=r"balance=None; accepted"):
        train(tmp_path, balance=None)


def test_nothing_is_touched_where_nothing_is_asked_for(tmp_path: Path) -> None:
    trainer = train(tmp_path)
    assert trainer._weighing is None
    assert trainer.advantage_factors == {}


def test_a_trl_with_other_seams_does_not_weigh_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "SEAMS", {**seams.SEAMS, "_prepare_inputs": ("self", "other")})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = train(tmp_path, 3.0)
    said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    assert any("reward_weight, balance and normalize_advantages do nothing" in message for message in said)
    assert trained_on(trainer, brief=True) == pytest.approx([-0.5, 0.5])


@pytest.mark.parametrize(
    ("settings", "does_act"),
    [
        ({}, False),
        ({"scale_rewards": "batch"}, True),
        ({"scale_rewards": False}, True),
        ({"multi_objective_aggregation": "normalize_then_sum"}, True),
    ],
)
def test_whether_trls_trainer_lets_a_weight_act_is_known(
    tmp_path: Path, settings: dict[str, Any], *, does_act: bool
) -> None:
    assert acts_under(config(tmp_path, **settings)) == acts_under(SimpleNamespace(**settings)) == does_act
    own: dict[str, Any] = {"use_environment_reward": False, "reward_funcs": [every_other], "discover_task_tools": False}
    sizes = []
    for weight in (1.0, 8.0):
        brief = EnvSpec(EchoEnvironment, indices=[0], reward_weight=weight, **own)
        with MultiEnvSpec({"brief": brief, "wordy": EnvSpec(ClimbEnvironment, indices=[0], **own)}) as spec:
            options = OPTIONS | {"gradient_accumulation_steps": 2, "reward_weights": spec.reward_weights}
            options |= {"scale_rewards": "group"} | settings
            trainer = scripted_trainer(wordy_policy, tmp_path, options, None, **spec.trainer_kwargs())
            trainer.train()
        sizes.append(trained_on(trainer, brief=True)[-1] / trained_on(trainer, brief=False)[-1])
    assert sizes[1] / sizes[0] == pytest.approx(8.0 if does_act else 1.0, rel=0.02)
