"""A trainer follows what was declared: shares, schedule, horizons, outages; and leaves to TRL what was not."""

from __future__ import annotations

import gc
import itertools
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from datasets import concatenate_datasets
from transformers import TrainerCallback

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.errors import SpecError
from multienv.specs import CurriculumSpec, Schedule, Stage, TaskRules
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from multienv.training.stream import BatchSize
from tests.support.quiz import Noting, quiz, trainer_on
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Let each training's `gc.collect` pass over what this process has imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def counts(trainer: Any) -> list[Counter[str]]:
    """How many groups each environment had in each batch."""
    return [Counter(task.partition("/")[0] for task in tasks) for _, tasks in trainer.batches]


def trained(spec: MultiEnvSpec, directory: Path, options: dict[str, Any], **slots: Any) -> Any:
    with spec:
        trainer = trainer_on(spec, directory, {"save_strategy": "no"} | options, **slots)
        trainer.train()
    return trainer


# What was declared


def test_shares_are_exact_in_the_batches_that_were_trained_on_and_in_the_log(tmp_path: Path) -> None:
    weights = {"a": Fraction(5), "b": Fraction(2), "c": Fraction(1, 10)}
    total = sum(weights.values())
    spec = MultiEnvSpec({name: quiz(4, sampling_weight=float(weight)) for name, weight in weights.items()})
    trainer = trained(spec, tmp_path, {"max_steps": 20})
    so_far: Counter[str] = Counter()
    for num_batches, batch in enumerate(counts(trainer), start=1):
        so_far += batch
        for name, weight in weights.items():
            assert abs(so_far[name] - weight / total * 4 * num_batches) < 1, (name, num_batches)
    assert so_far["c"] == 1, "a small share is not starved"
    logs = trainer.state.log_history[:-1]
    for log, batch in zip(logs, counts(trainer), strict=True):
        for name, weight in weights.items():
            assert log[f"env/{name}/groups_asked"] == pytest.approx(float(weight / total) * 4)
            assert log[f"env/{name}/groups_dispatched"] == batch[name]
            assert (log[f"env/{name}/groups_owed"], log[f"env/{name}/is_down"]) == (0.0, 0.0)
            has_share = f"env/{name}/nonzero_advantages" in log and log[f"env/{name}/nonzero_advantages"] is not None
            assert has_share is (batch[name] > 0)
            assert log[f"env/{name}/set_aside"] == 0.0
    line = trainer.curriculum.account.lines["a"]
    assert (line.dispatched, line.rollouts, line.scored) == (so_far["a"], 2 * so_far["a"], 2 * so_far["a"])
    assert line.nonzero == sum(
        2 * batch["a"] * log["env/a/nonzero_advantages"] for batch, log in zip(counts(trainer), logs, strict=True)
    )


def test_a_schedule_follows_the_training_step_and_not_the_number_of_the_batch(tmp_path: Path) -> None:
    schedule = CurriculumSpec(schedule=Schedule(points={0: {"a": 1.0}, 4: {"b": 1.0}}))
    spec = MultiEnvSpec({"a": quiz(4), "b": quiz(4)}, curriculum=schedule)
    options = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 8}
    trainer = trained(spec, tmp_path, options)
    assert [(step, dict(batch)) for (step, _), batch in zip(trainer.batches, counts(trainer), strict=True)] == [
        (0, {"a": 4}),
        (2, {"a": 4}),
        (4, {"b": 4}),
        (6, {"b": 4}),
    ]


def test_the_horizons_of_a_stage_act_in_training_and_not_in_evaluation(climb_server: ORSServer, tmp_path: Path) -> None:
    seen: list[tuple[bool, int, int, EpisodeStatus]] = []

    def watch(environments: list[Any], trainer_state: Any, **_: Any) -> list[None]:
        for environment in environments:
            episode = environment.episode
            seen.append((trainer.model.training, trainer_state.global_step, len(episode.steps), episode.status))
        return [None] * len(environments)

    stages = (
        Stage(until={"climb": 0.9}, min_groups=2, max_tool_calls={"climb": 2}),
        Stage(max_tool_calls={"climb": 3}),
    )
    declared = {"climb": EnvSpec(climb_server.url, discover_task_tools=False)}
    with MultiEnvSpec(declared, reward_funcs=watch, curriculum=CurriculumSpec(stages=stages)) as spec:
        options = {
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "max_steps": 4,
            "eval_strategy": "steps",
            "eval_steps": 2,
        }
        trainer = scripted_trainer(
            lambda _, turn: call("up", n=1) if turn < 5 else "done",
            tmp_path,
            options,
            MultiEnvGRPOTrainer,
            spec=spec,
            eval_dataset=spec.train_dataset.select([0]),
        )
        trainer.train()
    training = [(step, num, status) for is_training, step, num, status in seen if is_training]
    assert [num for _, num, _ in training] == [2] * 6 + [3] * 2, "two groups, one read ahead, and the next stage"
    assert {status for _, _, status in training} == {EpisodeStatus.TRUNCATED}
    logged = [log["curriculum/stage"] for log in trainer.state.log_history if "curriculum/stage" in log]
    assert logged == [0.0, 0.0, 0.0, 1.0]
    evaluation = [(step, num, status) for is_training, step, num, status in seen if not is_training]
    assert evaluation == [(step, 4, EpisodeStatus.FINISHED) for step in (2, 2, 4, 4)]


@pytest.mark.parametrize(
    ("num_ranks", "num_groups", "most"), [(1, 4, 3), (2, 4, 6), (2, 8, 6), (2, 5, 3), (4, 6, 3), (1, 5, 3)]
)
def test_limits_of_sessions_hold_as_many_groups_as_fit_on_each_rank_however_groups_fall(
    num_ranks: int, num_groups: int, most: int
) -> None:
    assert BatchSize(2, num_groups, 1, 1, num_ranks=num_ranks).most_groups(7) == most
    assert BatchSize(2, num_groups, 1, 1, num_ranks=num_ranks).most_groups(None) is None


class Outage(TrainerCallback):
    """Breaks a server before one step, and mends it before another."""

    def __init__(self, server: FaultServer, begins: int, ends: int) -> None:
        self.server, self.begins, self.ends = server, begins, ends

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.begins:
            self.server.faults = [Fault(FaultKind.ERROR, Phase.OPENING, times=None)]
        if state.global_step == self.ends:
            self.server.faults = []


def test_an_environment_that_is_down_gets_trials_only_and_is_paid_back_when_it_is_there_again(tmp_path: Path) -> None:
    limits = Limits(cool_down_s=0.1, failure_window=5, failure_threshold=0.5, max_retries=0)
    turns = itertools.count()

    def policy(text: str, turn: int) -> str:
        if turn == 0 and '"win"' in text:
            return call("win")
        return ("yes", "no way")[next(turns) % 2]

    with FaultServer() as server, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an episode failed", RuntimeWarning)
        far = EnvSpec(server.url, sampling_weight=1.0, limits=limits, discover_task_tools=False)
        with MultiEnvSpec({"far": far, "near": quiz(4, sampling_weight=1.0)}) as spec:
            options = {"max_steps": 26, "save_strategy": "no"}
            trainer = trainer_on(spec, tmp_path, options, callbacks=[Outage(server, 1, 6)])
            type(trainer).policy = staticmethod(policy)
            trainer.train()
    groups = [batch["far"] for batch in counts(trainer)]
    assert groups[:9] == [2, 2, 2, 2, 0, 0, 0, 1, 0], "known two batches later; in the fourth one without it, a trial"
    num_missed = 2 * 7 - 1
    extras = [num - 2 for num in groups[9:]]
    back = extras.index(0)
    assert extras[:back] == [1] * back
    assert extras[back:] == [0] * (len(extras) - back), "then it is as it was"
    assert num_missed / 2 <= back <= num_missed
    logs = trainer.state.log_history[:-1]
    assert [log["env/far/is_down"] for log in logs] == [0.0] * 4 + [1.0] * 5 + [0.0] * 17
    owed = [log["env/far/groups_owed"] for log in logs]
    assert owed[8] == num_missed > owed[9] > owed[10]
    assert owed[-1] == 0.0
    assert all(log["env/far/groups_asked"] == 2.0 for log in logs), "what was asked for stays what it was"
    num_played = 2 * (sum(groups) - 6)
    assert trainer.curriculum.account.lines["far"].finished in (num_played - 1, num_played), (
        "the trial lets one through"
    )


# What is left to TRL


def order(trainer: Any) -> list[str]:
    """The tasks that the data loader draws in an epoch."""
    return [row["task_id"] for batch in trainer.get_train_dataloader() for row in batch]


def plain_order(spec: MultiEnvSpec, directory: Path, options: dict[str, Any]) -> list[str]:
    return order(scripted_trainer(lambda *_: "yes", directory, options, **spec.trainer_kwargs()))


def test_the_curriculum_dataset_is_trls_own_order_to_the_row(tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(5, sampling_weight=3.0), "b": quiz(4)}, curriculum="dataset") as spec:
        trainer = trained(spec, tmp_path, {"max_steps": 2})
        own = order(trainer)
        assert own == plain_order(spec, tmp_path, {})
        assert trainer.curriculum is None
        tasks = [task for _, tasks in trainer.batches for task in tasks]
        assert tasks == own[::2][: 2 * 4], "and that is what it trains on"


def test_an_undeclared_mixture_that_is_not_shuffled_keeps_the_order_of_its_rows(tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(5), "b": quiz(3)}) as spec:
        trainer = trainer_on(spec, tmp_path, {"shuffle_dataset": False})
        assert order(trainer) == plain_order(spec, tmp_path, {"shuffle_dataset": False})
        assert order(trainer)[::2] == spec.train_dataset["task_id"][:]
        shuffled = trainer_on(spec, tmp_path, {})
        played = Counter(task.partition("/")[0] for task in order(shuffled)[::2])
        assert played == {"a": 4, "b": 4}, "each environment as often, if shuffled"
    with MultiEnvSpec({"a": quiz(5), "b": quiz(3)}, curriculum="proportional") as spec:
        played_tasks = order(trainer_on(spec, tmp_path, {}))[::2]
        assert sorted(played_tasks) == sorted(spec.task_dataset["task_id"][:])


def test_a_declared_mixture_that_is_not_shuffled_goes_through_each_environment_in_order(tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(5, sampling_weight=1.0), "b": quiz(3, sampling_weight=1.0)}) as spec:
        drawn = order(trainer_on(spec, tmp_path, {"shuffle_dataset": False}))[::2]
    assert [task for task in drawn if task.startswith("a")] == [f"a/train/{task}" for task in range(4)]
    assert [task for task in drawn if task.startswith("b")] == [f"b/train/{task}" for task in (0, 1, 2, 0)]


@pytest.mark.parametrize("kind", ["iterable", "nameless"])
def test_a_declared_curriculum_on_rows_that_cannot_follow_it_is_a_spec_error(kind: str, tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(5, sampling_weight=3.0), "b": quiz(4)}) as spec:
        rows: Any = spec.train_dataset
        rows = rows.to_iterable_dataset() if kind == "iterable" else rows.remove_columns("environment")
        with pytest.raises(SpecError, match="map-style training dataset with the column 'environment'; leave train_"):
            trainer_on(spec, tmp_path, {"max_steps": 2}, train_dataset=rows)


def test_an_undeclared_mixture_on_a_stream_is_left_to_trl(tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(5), "b": quiz(4)}) as spec:
        stream = spec.train_dataset.to_iterable_dataset()
        trainer = trainer_on(spec, tmp_path, {"max_steps": 2, "save_strategy": "no"}, train_dataset=stream)
        trainer.train()
    assert trainer.curriculum is None
    assert len(trainer.batches) == 2


def test_rows_of_the_users_own_that_come_twice_are_drawn_and_learnt_from(tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(3), "b": quiz(2)}, curriculum="adaptive") as spec:
        rows = concatenate_datasets([spec.train_dataset] * 2)
        options = {"max_steps": 6, "save_steps": 3}
        whole = trainer_on(spec, tmp_path, options, train_dataset=rows)
        whole.train()
        trainer = trainer_on(spec, tmp_path, options, train_dataset=rows)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert whole.curriculum.entries["a"].num_tasks == 6
    assert whole.curriculum.entries["a"].ids == ()
    assert whole.curriculum.num_observed == 6
    assert trainer.batches == whole.batches[3:]


@pytest.mark.parametrize("mixture", ["temperature", "weights", "dataset"])
def test_the_specs_own_repeated_rows_stand_for_its_tasks(mixture: str, tmp_path: Path) -> None:
    def played(**slots: Any) -> Any:
        return trained(spec, tmp_path, {"max_steps": 6}, **slots)

    declared = {"a": quiz(9), "b": quiz(2, sampling_weight=3.0)}
    spec = MultiEnvSpec(declared, curriculum=mixture)
    whole = played()
    spec = MultiEnvSpec(declared, curriculum=mixture)
    given = played(train_dataset=spec.train_dataset)
    assert given.batches == whole.batches
    if mixture != "dataset":
        assert given.curriculum.priors == whole.curriculum.priors
        assert given.curriculum.entries["b"].ids == ("b/train/0", "b/train/1"), "tasks are known by their ids"


class Looks(TrainerCallback):
    """Looks at what the trainer would draw, in the middle of a training."""

    trainer: Any

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            next(iter(self.trainer.get_train_dataloader()))


def test_a_data_loader_that_the_user_asks_for_leaves_the_training_its_own(tmp_path: Path) -> None:
    options = {"max_steps": 5, "save_strategy": "no"}
    with MultiEnvSpec({"a": quiz(4, sampling_weight=3.0), "b": quiz(4)}, curriculum="adaptive") as spec:
        whole = trainer_on(spec, tmp_path, options)
        whole.train()
        looks = Looks()
        trainer = looks.trainer = trainer_on(spec, tmp_path, options, callbacks=[looks])
        next(iter(trainer.get_train_dataloader()))
        assert getattr(trainer, "curriculum", 0) is None, "nothing is trained on yet"
        trainer.train()
        assert trainer.batches == whole.batches
        next(iter(trainer.get_train_dataloader()))
        assert trainer.curriculum.state_dict() == whole.curriculum.state_dict(), "the account is still there"


def test_a_likelihood_that_is_none_is_refused_by_the_name_of_its_environment(tmp_path: Path) -> None:
    rules = TaskRules(expected_success="number", solved_at=0.9)
    with MultiEnvSpec({"a": quiz(2), "b": quiz(3, task_rules=rules)}) as spec:
        trainer = trainer_on(spec, tmp_path, {"save_strategy": "no"})
        with pytest.raises(SpecError, match="environment 'b': expected_success='number': a task spec says 2") as raised:
            trainer.train()
    assert raised.value.environment == "b"


class Elsewhere(Noting):
    """Draws rows with a sampler of its own."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        super()._get_train_sampler()
        return [0, 0, 1, 1, 2, 2, 3, 3] * 2


def test_rows_that_were_not_planned_end_the_learning_with_one_warning_and_not_the_training(tmp_path: Path) -> None:
    with MultiEnvSpec({"a": quiz(4, sampling_weight=1.0), "b": quiz(4, sampling_weight=1.0)}) as spec:
        trainer = trainer_on(spec, tmp_path, {"max_steps": 3, "save_strategy": "no"}, Elsewhere)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer.train()
    (words,) = (str(one.message) for one in told if one.category is RuntimeWarning)
    assert words.startswith("a batch is not the one that was planned")
    assert len(trainer.batches) == 3
    assert trainer.curriculum.num_observed == 0


def test_the_account_is_logged_when_a_training_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "multienv"), MultiEnvSpec({"a": quiz(2), "b": quiz(2)}) as spec:
        trainer_on(spec, tmp_path, {}).train()
    (logged,) = (message for message in caplog.messages if message.startswith("the mixture of this training:"))
    assert [line.split()[0] for line in logged.splitlines()[-2:]] == ["a", "b"]
