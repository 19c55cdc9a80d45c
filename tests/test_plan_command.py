"""`multienv plan`: what it says a run will do is what the trainer does, and what it cannot know it says so."""

from __future__ import annotations

import io
import json
import math
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.commands import planning
from multienv.commands.plan import run_plan
from multienv.commands.planning import (
    batch_opening_s,
    deal,
    earlier_run,
    largest_need,
    length_of,
    opening_s,
    rollouts_by_rank,
)
from multienv.curriculum import Curriculum, Entry
from multienv.errors import RecordError, SpecError
from multienv.reporting import read_episodes
from multienv.specs import CurriculumSpec, Schedule, TaskRules
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from multienv.training.sampling import Pace
from multienv.training.stream import BatchSize, rows_of
from multienv.types import Episode, EpisodeStatus, Step
from tests.support import training
from tests.support.environments import ClimbEnvironment, EchoEnvironment, OneEnvironment, shelf
from tests.support.foreign import GuessEnvironment
from tests.support.servers import ORSServer

DEAD = "http://127.0.0.1:1"
QUICK = Limits(connect_timeout_s=0.2, max_retries=0)


def planned(
    spec: MultiEnvSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], grpo: dict[str, Any], **options: Any
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = run_plan(spec, args=training.config(tmp_path, **grpo), console=Console(), is_json=True, **options)
    return status, json.loads(capsys.readouterr().out)


def shown(spec: MultiEnvSpec, tmp_path: Path, grpo: dict[str, Any], **options: Any) -> str:
    out = io.StringIO()
    run_plan(spec, args=training.config(tmp_path, **grpo), console=Console(file=out, width=100), **options)
    assert max(map(len, out.getvalue().splitlines())) <= 100
    return out.getvalue()


def trained(spec: MultiEnvSpec, output: Path, grpo: dict[str, Any]) -> Any:
    def policy(_text: str, turn: int) -> str:
        return training.call("echo", text="hello") if turn == 0 else "done"

    trainer = training.scripted_trainer(policy, output, grpo, MultiEnvGRPOTrainer, spec=spec)
    trainer.train()
    return trainer


# The same as the trainer

RATED = [{"target": f"{number}", "rate": number / 7} for number in range(8)]


def mixture(server: ORSServer, **options: Any) -> MultiEnvSpec:
    rules = TaskRules(expected_success="rate", hopeless_at=0.01)
    environments = {
        "echo": EnvSpec(server.url, sampling_weight=3.0, limits=Limits(max_sessions=6)),
        "rated": EnvSpec(RATED_SHELF, task_rules=rules, exclude=[5]),
        "one": OneEnvironment,
    }
    return MultiEnvSpec(environments, **options)


RATED_SHELF = shelf(train=RATED)


@pytest.mark.parametrize(
    ("curriculum", "grpo"),
    [
        (None, {"num_train_epochs": 1.5, "max_steps": -1}),
        (
            CurriculumSpec(
                schedule=Schedule(
                    points={0: {"echo": 1.0, "rated": 1.0}, 2: {"one": 1.0, "rated": 1.0}}, interpolation="linear"
                )
            ),
            {"max_steps": 3, "steps_per_generation": 2, "gradient_accumulation_steps": 1, "seed": 7},
        ),
        ("dataset", {"max_steps": 3, "num_iterations": 2, "seed": 3}),
    ],
)
def test_the_batches_that_are_planned_are_those_that_are_trained_on(
    echo_server: ORSServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    curriculum: Any,
    grpo: dict[str, Any],
) -> None:
    with mixture(echo_server, curriculum=curriculum) as spec:
        status, plan = planned(spec, tmp_path, capsys, grpo, num_batches=99)
        trainer = trained(spec, tmp_path, grpo)
    assert (status, plan["problems"]) == (0, [])
    played: dict[int, list[str]] = {}
    for episode in read_episodes(tmp_path):
        assert episode.training_step is not None
        played.setdefault(episode.training_step, []).append(episode.task_id)
    assert plan["num_steps"] == trainer.state.global_step == trainer.state.max_steps
    assert plan["num_batches"] == len(plan["batches"]) == len(played)
    for batch, ids in zip(plan["batches"], played.values(), strict=True):
        groups = ids[:: plan["num_generations"]]
        assert batch["groups"] == dict(Counter(task.split("/")[0] for task in groups))
        for name, tasks in batch["first_tasks"].items():
            own = list(dict.fromkeys(task for task in groups if task.startswith(f"{name}/")))
            assert tasks == own[:3]
    assert plan["is_curriculum"] == (curriculum != "dataset")
    every = Counter(task.split("/")[0] for ids in played.values() for task in ids)
    assert {name: each["rollouts"] for name, each in plan["environments"].items()} == {
        name: every[name] for name in plan["environments"]
    }
    assert plan["environments"]["rated"]["num_tasks"] == 7, "what is excluded is not trained on"
    most = max(Counter(task.split("/")[0] for task in ids)["echo"] for ids in played.values())
    assert plan["environments"]["echo"]["planned_sessions"] == most <= 6


@pytest.mark.parametrize(
    ("options", "limits"), [({"max_sessions": 4}, Limits()), ({}, Limits(max_sessions=6)), ({}, Limits(max_sessions=1))]
)
def test_a_run_that_cannot_work_is_refused_in_the_trainers_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], limits: Limits
) -> None:
    grpo: dict[str, Any] = {"max_steps": 1}
    with MultiEnvSpec({"echo": EnvSpec(EchoEnvironment, limits=limits)}, **options) as spec:
        status, plan = planned(spec, tmp_path, capsys, grpo)
        text = shown(spec, tmp_path, grpo)
        with pytest.raises(SpecError) as refused:
            trained(spec, tmp_path, grpo)
    assert (status, plan["problems"]) == (1, [str(refused.value)])
    assert "it cannot work: " in text
    assert str(refused.value) in " ".join(text.split())


def test_switches_that_contradict_each_other_are_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grpo = {"reward_weights": [2.0], "loss_type": "grpo"}
    with MultiEnvSpec({"echo": EnvSpec(EchoEnvironment, reward_weight=2.0)}) as spec:
        status, plan = planned(spec, tmp_path, capsys, grpo, balance="token")
    assert status == 1
    assert any("balance='token' (did you mean 'tokens'?)" in problem for problem in plan["problems"])
    assert any("would count twice" in problem for problem in plan["problems"])


def test_rows_that_do_not_fill_a_batch_of_trls_own_are_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"one": OneEnvironment}, curriculum="dataset") as spec:
        status, plan = planned(spec, tmp_path, capsys, {"max_steps": 3})
    assert (status, plan["batches"]) == (1, [])
    assert "nothing would be trained" in plan["problems"][0]


# What is shown


def test_a_dead_server_and_a_wrong_key_are_problems_and_no_traceback(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultServer(faults=[Fault(FaultKind.UNAUTHORIZED, Phase.LISTING, times=None)]) as locked:
        environments = {
            "echo": echo_server.url,
            "dead": EnvSpec(DEAD, limits=QUICK),
            "locked": EnvSpec(locked.url, api_key="wrong", limits=QUICK),
        }
        with MultiEnvSpec(environments) as spec:
            status, plan = planned(spec, tmp_path, capsys, {})
            text = shown(spec, tmp_path, {})
    assert status == 1
    assert [problem.split(":")[0] for problem in plan["problems"]] == ["dead", "locked"]
    assert "it cannot work: dead: nobody accepts a connection" in text
    assert "how long a session of dead, locked takes to open" in text
    assert plan["rollouts_per_batch"] == 8


def test_processes_share_the_limits_and_the_batch(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = Limits(max_sessions=16, starts_per_s=8.0)
    environments = {"echo": EnvSpec(echo_server.url, limits=limits), "climb": ClimbEnvironment}
    with MultiEnvSpec(environments, max_sessions=40) as spec:
        status, alone = planned(spec, tmp_path, capsys, {"max_steps": 2})
        _, four = planned(spec, tmp_path, capsys, {"max_steps": 2}, world_size=4)
    assert status == 0
    assert [plan["rollouts_per_batch"] for plan in (alone, four)] == [8, 32]
    assert [plan["rollouts_per_process"] for plan in (alone, four)] == [8, 8]
    assert [plan["max_sessions"] for plan in (alone, four)] == [40, 10]
    assert [plan["environments"]["echo"]["max_sessions"] for plan in (alone, four)] == [16, 4]
    assert [plan["environments"]["echo"]["largest_sessions"] for plan in (alone, four)] == [8, 4]
    assert [plan["environments"]["climb"]["largest_sessions"] for plan in (alone, four)] == [8, 8]
    own = four["environments"]["echo"]
    assert own["batch_open_s"] == pytest.approx((own["planned_sessions"] - 1) * 4 / 8.0 + own["open_s"])


def test_a_batch_of_a_given_size_is_cut_into_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grpo = {"per_device_train_batch_size": 4, "generation_batch_size": 16, "max_steps": 2}
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        _, alone = planned(spec, tmp_path, capsys, grpo, is_batch_fixed=True)
        _, two = planned(spec, tmp_path, capsys, grpo, world_size=2, is_batch_fixed=True)
        with pytest.raises(SpecError, match="16 is no multiple of .*=4 on 3 processes, 12 together"):
            planned(spec, tmp_path, capsys, grpo, world_size=3, is_batch_fixed=True)
    assert [plan["rollouts_per_batch"] for plan in (alone, two)] == [16, 16]
    assert [plan["rollouts_per_process"] for plan in (alone, two)] == [16, 8]
    assert [plan["steps_per_batch"] for plan in (alone, two)] == [4, 2]


def test_shares_add_up_and_weights_act(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environments = {
        "echo": EnvSpec(EchoEnvironment, reward_weight=3.0),
        "one": OneEnvironment,
        "guess": GuessEnvironment,
    }
    with MultiEnvSpec(environments) as spec:
        _, plan = planned(spec, tmp_path, capsys, {"max_steps": 30})
        text = shown(spec, tmp_path, {"max_steps": 30}, num_batches=12)
    own = plan["environments"]
    assert sum(each["gradient_share"] for each in own.values()) == pytest.approx(1.0)
    assert own["echo"]["gradient_share"] == pytest.approx(3 / 5, abs=0.02)
    assert sum(each["rollouts"] for each in own.values()) == 30 * 8
    assert own["guess"]["sessions"] == own["guess"]["planned_sessions"] == 0
    assert all(sum(batch["asked"].values()) == pytest.approx(1.0) for batch in plan["batches"])
    assert len(plan["batches"]) == 5
    assert "environment  asked  8  9  10  11" in text, "batches that do not fit beside each other come below"
    assert "not known: how long guess takes to reset" in text
    assert "not known: how long the model takes" in text


def test_a_long_run_goes_on_as_it_began_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning.plan, "MOST_DEALT", 10)
    with MultiEnvSpec({"echo": EchoEnvironment, "one": OneEnvironment}, curriculum="adaptive") as spec:
        _, plan = planned(spec, tmp_path, capsys, {"max_steps": 1_000})
    assert {name: each["rollouts"] for name, each in plan["environments"].items()} == {"echo": 4_000, "one": 4_000}
    assert any("after the first 10 batches" in sentence for sentence in plan["assumed"])
    assert any(sentence.startswith("nothing is learnt") for sentence in plan["assumed"])


# An earlier record


def test_an_earlier_record_says_what_a_run_takes(
    echo_server: ORSServer, climb_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = Limits(starts_per_s=20.0)
    environments = {
        "echo": EnvSpec(echo_server.url, limits=limits),
        "climb": climb_server.url,
        "guess": GuessEnvironment,
    }
    with MultiEnvSpec(environments) as spec:
        trained(spec, tmp_path, {"max_steps": 2})
        status, plan = planned(spec, tmp_path, capsys, {"max_steps": 10}, record=tmp_path)
        text = shown(spec, tmp_path, {"max_steps": 10}, record=tmp_path)
        with pytest.raises(RecordError, match="no directory"):
            run_plan(spec, args=training.config(tmp_path), record=tmp_path / "none", console=Console())
    assert status == 0
    own = plan["environments"]
    assert own["echo"]["recorded"]["tool_calls"] == 1.0
    assert own["echo"]["recorded"]["tool_s"] == pytest.approx(own["echo"]["recorded"]["call_s"])
    assert sum(each["recorded_share"] for each in own.values()) == pytest.approx(1.0)
    assert plan["earlier"]["num_batches"] == 2
    assert plan["earlier"]["rollouts_per_batch"] == 8
    seconds = plan["seconds"]
    assert seconds["step"] == pytest.approx(seconds["opening"] + seconds["tools"] + seconds["rest"])
    assert seconds["run"] == pytest.approx(10 * seconds["step"])
    assert "the earlier record, a rollout on average" in text
    assert "not known: how long the model takes" not in text


def episode(step: int, started_at: float, open_s: float, *calls: float, **options: Any) -> Episode:
    steps = tuple(Step("look", {}, "", duration_s=seconds) for seconds in calls)
    status = options.pop("status", EpisodeStatus.FINISHED)
    return Episode(
        "env", "env/train/0", "s", steps, status, training_step=step, started_at=started_at, open_s=open_s, **options
    )


def test_a_batch_waits_for_the_slowest_call_of_each_turn_and_the_rest_is_what_is_left() -> None:
    episodes = [
        episode(0, 100.0, 1.0, 2.0, 0.5),
        episode(0, 100.0, 3.0, 1.0, 4.0, 1.0),
        episode(1, 120.0, 2.0, 1.0),
        episode(1, 121.0, 2.0, status=EpisodeStatus.FAILED),
        episode(2, 140.0, 2.0, 1.0),
    ]
    earlier = earlier_run(episodes)
    assert (earlier.num_batches, earlier.rollouts_per_batch) == (3, 2)
    assert earlier.tools_s == 1.0, "2 + 4 + 1, 1, and 1"
    assert earlier.opening_s == 2.0
    assert earlier.rest_s == pytest.approx(((20 - 3 - 7) + (20 - 2 - 1)) / 2)
    own = earlier.environments["env"]
    assert (own.num_rollouts, own.tool_calls) == (4, 7 / 4)
    assert own.call_s == pytest.approx(10.5 / 7)


def test_a_record_of_evaluations_says_what_tools_take_and_nothing_of_the_model() -> None:
    played = Episode("env", "env/test/0", "s", (), EpisodeStatus.FINISHED, is_evaluation=True, num_completion_tokens=9)
    earlier = earlier_run([played])
    assert earlier.environments["env"].completion_tokens == 9
    assert (earlier.num_batches, earlier.rest_s) == (0, None)


# Laws

sizes = st.builds(
    BatchSize,
    num_generations=st.integers(1, 4),
    num_groups=st.integers(1, 12),
    num_repeats=st.integers(1, 4),
    num_accumulated=st.integers(1, 4),
    num_ranks=st.integers(1, 4),
)


@given(sizes, st.data())
def test_the_sessions_of_all_processes_are_the_batch(size: BatchSize, data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.sampled_from("abc"), min_size=size.num_groups, max_size=size.num_groups))
    ranks = rollouts_by_rank(groups, size)
    assert len(ranks) == size.num_ranks
    left_out = size.num_rollouts % size.num_ranks
    assert sum(rank.total() for rank in ranks) == size.num_rollouts - left_out
    if not left_out:
        assert sum(ranks, Counter()) == Counter(name for name in groups for _ in range(size.num_generations))


@given(sizes, st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 99))
def test_no_process_is_dealt_more_than_the_largest_need(
    size: BatchSize, most: int, num_tasks: list[int], seed: int
) -> None:
    limited = size.num_groups if len(num_tasks) == 1 else most
    entries = [Entry(str(place), num, max_groups=None if place else limited) for place, num in enumerate(num_tasks)]
    curriculum = Curriculum(entries, CurriculumSpec(), size.num_groups, seed=seed, num_ranks=size.num_ranks)
    for _ in range(4):
        names = [pick.environment for pick in curriculum.plan().groups]
        for rank in rollouts_by_rank(names, size):
            for entry in entries:
                assert rank[entry.name] <= largest_need(size, entry.max_groups, is_dealt=True)


@given(
    st.builds(
        Pace,
        num_generations=st.just(2),
        num_repeats=st.integers(1, 5),
        num_batches=st.integers(1, 5),
        num_accumulated=st.integers(1, 5),
    ),
    st.integers(1, 40),
)
def test_a_run_plays_the_batches_that_its_steps_begin(pace: Pace, max_steps: int) -> None:
    length = length_of(pace, max_steps=max_steps, num_train_epochs=1)
    begun, steps = 0, 0
    while steps < max_steps:
        elements = 0
        while elements < pace.elements_per_epoch and steps < max_steps:
            for _ in range(min(pace.num_accumulated, pace.elements_per_epoch - elements)):
                begun += elements % pace.num_repeats == 0
                elements += 1
            steps += 1
    assert (length.num_steps, length.num_batches) == (max_steps, begun)
    assert length_of(pace, max_steps=-1, num_train_epochs=2).num_batches == 2 * pace.num_batches


@given(st.integers(0, 50), st.floats(0.01, 10), st.integers(1, 20), st.floats(0.1, 50) | st.none(), st.integers(1, 4))
def test_opening_more_sessions_never_takes_less(
    num: int, open_s: float, at_once: int, rate: float | None, processes: int
) -> None:
    limits = Limits(max_concurrent_starts=at_once, starts_per_s=rate)
    seconds = [opening_s(each, open_s, limits, processes) for each in (num, num + 1)]
    assert 0 <= seconds[0] <= seconds[1]
    assert seconds[1] >= open_s
    assert seconds[0] <= num * open_s + (0 if rate is None else num * processes / rate) + 1e-9


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 20), min_size=1),
    st.floats(0.01, 5),
    st.integers(1, 30) | st.none(),
)
def test_a_batch_is_open_when_its_slowest_environment_is_and_no_earlier_than_the_mixture_allows(
    needed: dict[str, int], open_s: float, at_once: int | None
) -> None:
    limits = {name: Limits(max_concurrent_starts=4) for name in needed}
    took = batch_opening_s(needed, dict.fromkeys(needed, open_s), limits, at_once)
    alone = [opening_s(num, open_s, limits[name]) for name, num in needed.items()]
    assert took is not None
    assert took >= max(alone)
    assert took == pytest.approx(max(*alone, 0 if at_once is None else sum(needed.values()) * open_s / at_once))
    if any(needed.values()):
        assert batch_opening_s(needed, {}, limits, at_once) is None


def test_sessions_open_as_fast_as_planned(echo_server: ORSServer) -> None:
    limits = Limits(starts_per_s=25.0)
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, limits=limits)}) as spec:
        adapters = [spec.environment_factory["echo"]() for _ in range(9)]
        adapters[0].reset(task_index=0)
        time.sleep(0.05)  # the first start has paid for its turn
        started = time.monotonic()
        for adapter in adapters[1:]:
            adapter._start_reset({"task_index": 0})
        for adapter in adapters[1:]:
            adapter.reset(task_index=0)
        took = time.monotonic() - started
        plan = opening_s(8, 0.01, limits)
    assert plan == pytest.approx(0.29)
    assert plan * 0.9 <= took <= plan + 1.0


def test_dealing_never_ends_and_crosses_epochs(echo_server: ORSServer, tmp_path: Path) -> None:
    args = training.config(tmp_path, max_steps=9)
    for curriculum in (None, "dataset"):
        with MultiEnvSpec({"echo": echo_server.url, "one": OneEnvironment}, curriculum=curriculum) as spec:
            size = BatchSize.of(args, 8, 1)
            batches = list(islice(deal(spec, rows_of(spec), size, args), 7))
        assert [len(batch.groups) for batch in batches] == [4] * 7
        assert math.isclose(sum(sum(batch.asked.values()) for batch in batches), 0 if curriculum else 7)
