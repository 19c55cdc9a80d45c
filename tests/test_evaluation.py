"""Evaluating, with TRL's own trainer and with ours: each row in its own split, each figure in its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.reporting import read_episodes
from tests.support.environments import shelf
from tests.support.kinds import assert_closed
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer

OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_generations_eval": 1,
    "max_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
}


@pytest.fixture(scope="module")
def easy_server() -> Iterator[ORSServer]:
    train, test = ([{"target": f"{split} {index}"} for index in range(4)] for split in ("easy", "tested"))
    with ORSServer([shelf(train=train, test=test)]) as server:
        yield server


@pytest.fixture(scope="module")
def hard_server() -> Iterator[ORSServer]:
    with ORSServer([shelf(train=[{"target": f"hard {index}"} for index in range(4)])]) as server:
        yield server


def policy(text: str, turn: int) -> str:
    """Wins in the first and the third task of each split; never in the last hard one."""
    target = re.findall(r"Echo '(.*?)' to win", text)[-1]
    is_easy = target[-1] in "02"
    return call("echo", text=target if is_easy else "nothing") if turn < 1 else "done"


def declared(easy_server: ORSServer, hard_server: ORSServer) -> dict[str, EnvSpec]:
    return {
        "easy": EnvSpec(easy_server.url, eval_split="test", eval_num_tasks=3),
        "hard": EnvSpec(hard_server.url, num_tasks=2, eval_indices=[3, 2]),
        "test": EnvSpec(easy_server.url, split="test", indices=[3], evaluation_only=True),
    }


PLAYED = {
    "easy": {f"easy/test/{index}" for index in range(3)},
    "hard": {"hard/train/2", "hard/train/3"},
    "test": {"test/test/3"},
}
MEANS = {"easy": 2 / 3, "hard": 0.5, "test": 0.0}


class Witness:
    """A shared reward function that scores nothing and notes which task was played in which session's split."""

    __name__ = "witness"

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, environments: list[Any], task_id: list[str], prompts: list[Any], **_: Any) -> list[None]:
        for environment, identity, prompt in zip(environments, task_id, prompts, strict=True):
            assert environment.episode.task_id == identity
            self.seen.append((identity, re.findall(r"Echo '(.*?)' to win", str(prompt))[-1]))
        return [None] * len(environments)


def logs_of(trainer: Any) -> dict[str, dict[str, Any]]:
    """The first evaluation's log of each set, and what was trained first."""
    logs: dict[str, dict[str, Any]] = {}
    for entry in trainer.state.log_history:
        (name,) = [key.split("_")[1] for key in entry if re.fullmatch(r"eval_\w+_runtime", key)] or ["train"]
        logs.setdefault(name, entry)
    return logs


@pytest.mark.parametrize("is_ours", [True, False])
def test_both_trainers_evaluate_every_row_in_its_own_split(
    easy_server: ORSServer, hard_server: ORSServer, tmp_path: Path, is_ours: bool
) -> None:
    witness = Witness()
    with MultiEnvSpec(declared(easy_server, hard_server), reward_funcs=witness) as spec:
        if is_ours:
            trainer = scripted_trainer(policy, tmp_path, OPTIONS, MultiEnvGRPOTrainer, spec=spec)
        else:
            trainer = scripted_trainer(policy, tmp_path, OPTIONS, **spec.trainer_kwargs())
        trainer.train()
        assert_closed(easy_server, hard_server)
    logs = logs_of(trainer)
    assert logs.keys() == {"train", *PLAYED}
    for name, mean in MEANS.items():
        assert logs[name][f"eval_rewards/{name}/mean"] == pytest.approx(mean)
        assert logs[name]["eval_reward"] == pytest.approx(mean)
    words = {"easy/train": "easy", "easy/test": "tested", "test/test": "tested", "hard/train": "hard"}
    assert all(target == f"{words[task[:-2]]} {task[-1]}" for task, target in witness.seen)
    played = Counter(task for task, _ in witness.seen)
    trained = {f"easy/train/{index}" for index in range(4)} | {"hard/train/0", "hard/train/1"}
    assert set(played) <= trained.union(*PLAYED.values())
    assert all(played[task] == 2 for tasks in PLAYED.values() for task in tasks), "twice, once after each step"


def test_our_trainers_figures_and_record_tell_evaluation_from_training(
    easy_server: ORSServer, hard_server: ORSServer, tmp_path: Path
) -> None:
    with MultiEnvSpec(declared(easy_server, hard_server)) as spec:
        trainer = scripted_trainer(policy, tmp_path, OPTIONS, MultiEnvGRPOTrainer, spec=spec)
        trainer.train()
    for name, entry in logs_of(trainer).items():
        own = {key: value for key, value in entry.items() if key.startswith("eval_env/")}
        assert {key.split("/")[1] for key in own} == ({name} if name in PLAYED else set()), (
            "a set speaks for itself only"
        )
        if name in PLAYED:
            assert own[f"eval_env/{name}/reward"] == pytest.approx(MEANS[name])
            assert own[f"eval_env/{name}/rollouts"] == len(PLAYED[name])
            assert own[f"eval_env/{name}/status/finished"] == 1.0
    episodes = list(read_episodes(tmp_path))
    evaluated = [episode for episode in episodes if episode.is_evaluation]
    assert Counter(episode.task_id for episode in evaluated) == {task: 2 for tasks in PLAYED.values() for task in tasks}
    assert len(episodes) - len(evaluated) == 8
    assert {episode.training_step for episode in evaluated} == {1, 2}
    assert not {e.task_id for e in evaluated} & {e.task_id for e in episodes if not e.is_evaluation}


def test_evaluate_plays_the_specs_tasks_or_those_it_is_given(
    easy_server: ORSServer, hard_server: ORSServer, tmp_path: Path
) -> None:
    with MultiEnvSpec(declared(easy_server, hard_server)) as spec:
        options = OPTIONS | {"eval_strategy": "no"}
        trainer = scripted_trainer(policy, tmp_path / "own", options, MultiEnvGRPOTrainer, spec=spec)
        told = trainer.evaluate()
        assert {key for key in told if key.endswith("_loss")} == {f"eval_{name}_loss" for name in PLAYED}
        assert {episode.task_id for episode in read_episodes(tmp_path / "own")} == set().union(*PLAYED.values())
        given = spec.eval_dataset["hard"].select([0])
        slots: dict[str, Any] = {"spec": spec, "eval_dataset": given}
        trainer = scripted_trainer(policy, tmp_path / "given", options, MultiEnvGRPOTrainer, **slots)
        assert "eval_loss" in trainer.evaluate()
        assert [episode.task_id for episode in read_episodes(tmp_path / "given")] == ["hard/train/3"]


def test_a_mixture_without_evaluation_leaves_the_slot_empty(easy_server: ORSServer, tmp_path: Path) -> None:
    with MultiEnvSpec({"easy": EnvSpec(easy_server.url, num_tasks=2)}) as spec:
        trainer = scripted_trainer(policy, tmp_path, {"max_steps": 1}, MultiEnvGRPOTrainer, spec=spec)
        assert trainer.eval_dataset is None
