"""TRL's own trainer over several servers, with a scripted policy in place of sampling."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec, RewardSpec
from tests.support.environments import ClimbEnvironment, EchoEnvironment
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer


def policy(text: str, turn: int) -> str:
    """Win at echo's first task, lose at its others, climb until the top; know the environment by its tools."""
    if '"up"' in text:
        return call("up", n=2) if turn < 2 else "done"
    return call("echo", text="hello") if turn < 1 else "done"


def test_one_grpo_run_over_three_environments(
    tmp_path: Path, echo_server: ORSServer, climb_server: ORSServer, pair_server: ORSServer
) -> None:
    seen: dict[str, list[Any]] = {}

    def length(environments: list[Any], completions: list[Any], log_metric: Any, **_: Any) -> list[float]:
        seen.setdefault("environments", []).extend(environment.environment for environment in environments)
        log_metric("rows", len(environments))
        return [float(len(completion)) for completion in completions]

    async def constant(environments: list[Any], **_: Any) -> list[float]:
        return [0.25] * len(environments)

    environments = {
        "echo": echo_server.url,
        "climb": EnvSpec(climb_server.url, num_tasks=3, reward_funcs=[length, constant]),
        "one": EnvSpec(pair_server.url),
    }
    with MultiEnvSpec(environments) as spec:
        options = {"max_steps": 2, "per_device_train_batch_size": 14, "log_completions": False}
        trainer = scripted_trainer(policy, tmp_path, options, **spec.trainer_kwargs())
        trainer.train()
        log = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
        assert set(trainer._env_tools) == {"echo", "climb", "one"}
        assert [tool.__name__ for tool in trainer._env_tools["echo"]] == ["echo"]
    assert log["rewards/climb/mean"] == 1.0
    assert 0.0 <= log["rewards/echo/mean"] <= 1.0
    assert set(seen["environments"]) == {"climb"}
    assert log["rewards/climb/constant/mean"] == 0.25
    assert log["climb/rows"] > 0
    assert log["rewards/climb/length/mean"] == 5.0, "two calls, two results, one farewell"
    for server in (echo_server, climb_server, pair_server):
        assert server.open_sessions == []


def test_the_meta_factory_trains_a_trainer_that_takes_one_callable(tmp_path: Path, echo_server: ORSServer) -> None:
    def meta_policy(text: str, turn: int) -> str:
        tool = "proc__echo" if "Echo 'world'" in text else "echo__echo"
        return call(tool, text="hello") if turn < 1 else "done"

    spec = MultiEnvSpec({"echo": EnvSpec(echo_server.url, indices=[0]), "proc": EnvSpec(EchoEnvironment, indices=[1])})
    with spec:
        trainer = scripted_trainer(
            meta_policy,
            tmp_path,
            {"per_device_train_batch_size": 4, "shuffle_dataset": False},
            train_dataset=spec.train_dataset,
            environment_factory=spec.meta_environment_factory,
            reward_funcs=spec.reward_funcs,
        )
        trainer.train()
    log = trainer.state.log_history[0]
    assert (log["rewards/echo/mean"], log["rewards/proc/mean"]) == (1.0, 0.0)


def test_a_failing_environment_costs_its_own_rollouts_and_the_run_goes_on(
    tmp_path: Path, echo_server: ORSServer
) -> None:
    dying = ORSServer([ClimbEnvironment]).start()
    statuses: list[tuple[str, EpisodeStatus, float | None]] = []

    def note(environments: list[Any], **_: Any) -> list[None]:
        statuses.extend((e.environment, e.episode.status, e.reward) for e in environments)
        return [None] * len(environments)

    environments = {"echo": EnvSpec(echo_server.url, indices=[0]), "climb": EnvSpec(dying.url, indices=[0])}
    with MultiEnvSpec(environments, reward_funcs=note) as spec, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        trainer = scripted_trainer(policy, tmp_path, {"per_device_train_batch_size": 4}, **spec.trainer_kwargs())
        dying.stop()
        trainer.train()
    assert sorted(set(statuses), key=str) == [
        ("climb", EpisodeStatus.FAILED, None),
        ("echo", EpisodeStatus.FINISHED, 1.0),
    ]
    assert trainer.state.log_history[0]["rewards/echo/mean"] == 1.0


def test_a_row_that_nobody_scored_is_logged_short_and_without_secrets(
    tmp_path: Path, climb_server: ORSServer, caplog: pytest.LogCaptureFixture
) -> None:
    unscored = RewardSpec(unscored=None)
    environments = {
        "climb": EnvSpec(climb_server.url, secrets={"KEY": "sk-very-secret"}, api_key="sk-also-secret", reward=unscored)
    }
    options = {"per_device_train_batch_size": 6}
    with MultiEnvSpec(environments) as spec, caplog.at_level("WARNING"):
        trainer = scripted_trainer(lambda *_: "I give up.", tmp_path, options, **spec.trainer_kwargs())
        trainer.train()
    (message,) = {record.getMessage() for record in caplog.records if "returned None" in record.getMessage()}
    assert "unfinished steps=0 reward=None>" in message
    assert "secret" not in message
