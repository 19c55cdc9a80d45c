"""`multienv check` and `multienv plan`: every environment in a row, and what a run will do."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.commands.check import run_check
from multienv.commands.plan import opening_s, run_plan
from multienv.errors import RecordError
from tests.support import training
from tests.support.servers import ORSServer

DEAD = "http://127.0.0.1:1"
QUICK = Limits(connect_timeout_s=0.2, max_retries=0)


def args_of(tmp_path: Path, **options: Any) -> Any:
    return training.config(tmp_path, **options)


def checked(
    spec: MultiEnvSpec, args: Any, capsys: pytest.CaptureFixture[str], **options: Any
) -> tuple[int, dict[str, Any]]:
    defaults: dict[str, Any] = {"processing_class": training.tokenizer(), "max_model_tokens": 8192}
    status = run_check(spec, args=args, console=Console(), is_json=True, **(defaults | options))
    return status, json.loads(capsys.readouterr().out)


def codes(document: dict[str, Any]) -> Counter[str]:
    return Counter(finding["code"] for finding in document["findings"])


def test_every_environment_is_a_row_and_nothing_is_left_open(
    echo_server: ORSServer, pair_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"echo": EnvSpec(echo_server.url, num_tasks=2), "one": pair_server.url}
    with MultiEnvSpec(targets, system_prompt="Be brief.") as spec:
        status, document = checked(spec, args_of(tmp_path), capsys, num_prompts=2)
    assert status == 0
    echo = document["environments"]["echo"]
    assert echo["splits"] == {"train": 3, "test": 1}
    assert (echo["num_tasks"], echo["tools"], echo["is_reached"]) == (2, ["echo"], True)
    assert len(echo["prompt_tokens"]) == len(echo["open_s"]) == 2
    assert all(0 < seconds < 5 for seconds in echo["open_s"])
    assert not echo_server.open_sessions


def test_the_prompts_that_are_measured_are_those_of_the_trainer(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from multienv.commands.preview import run_preview

    with MultiEnvSpec({"echo": echo_server.url}, system_prompt="Be brief.") as spec:
        _, document = checked(spec, args_of(tmp_path), capsys)
        run_preview(
            spec,
            environment=None,
            task="0",
            processing_class=training.tokenizer(),
            chat_template_kwargs={"enable_thinking": False},
            console=Console(),
            is_json=True,
        )
    shown = json.loads(capsys.readouterr().out)
    assert document["environments"]["echo"]["prompt_tokens"] == [shown["num_tokens"]]


@pytest.mark.parametrize(
    ("most", "code", "status"), [(10, "prompt-too-long", 1), (300, "completion-may-not-fit", 0), (8192, None, 0)]
)
def test_prompts_and_completions_that_do_not_fit_are_found(
    echo_server: ORSServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    most: int,
    code: str | None,
    status: int,
) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        left, document = checked(spec, args_of(tmp_path), capsys, max_model_tokens=most)
    assert left == status
    found = {"prompt-too-long", "completion-may-not-fit"} & set(codes(document))
    assert found == ({code} if code else set())


def test_a_server_that_is_down_is_a_row_and_keeps_no_other_from_being_shown(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"echo": echo_server.url, "dead": EnvSpec(DEAD, limits=QUICK)}) as spec:
        status, document = checked(spec, args_of(tmp_path), capsys)
        out = io.StringIO()
        run_check(
            spec,
            args=args_of(tmp_path),
            processing_class=None,
            max_model_tokens=None,
            console=Console(file=out, width=100),
        )
    assert status == 1
    assert document["environments"]["echo"]["is_reached"]
    assert not document["environments"]["dead"]["is_reached"]
    assert codes(document)["server-unreachable"] == 1
    assert "not reached" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 100


def test_what_only_reading_the_tasks_can_tell_is_found_too(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, exclude=["no-such-task"])}) as spec:
        status, document = checked(spec, args_of(tmp_path), capsys)
    assert status == 1
    assert codes(document)["manifest-differs"] == 1
    path = tmp_path / "manifest.json"
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        spec.write_manifest(path)
    text = path.read_text(encoding="utf-8").replace("echo/train", "echo/test")
    path.write_text(text, encoding="utf-8")
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, split="test")}, manifest=path) as spec:
        [found] = [finding for finding in spec.check() if finding.code == "manifest-differs"]
    assert found.severity == "warning"
    assert "moved" in found.message


def planned(
    spec: MultiEnvSpec, args: Any, capsys: pytest.CaptureFixture[str], **options: Any
) -> tuple[int, dict[str, Any]]:
    status = run_plan(spec, args=args, console=Console(), is_json=True, **options)
    return status, json.loads(capsys.readouterr().out)


def test_the_plan_is_what_the_trainer_does(
    echo_server: ORSServer, climb_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"echo": EnvSpec(echo_server.url, sampling_weight=3.0), "climb": climb_server.url}
    options = {"max_steps": 3, "per_device_train_batch_size": 8, "num_generations": 2}
    with MultiEnvSpec(targets) as spec:
        status, plan = planned(spec, args_of(tmp_path, **options), capsys, num_batches=3)
        trainer = training.scripted_trainer(
            lambda _text, _turn: "done", tmp_path, options, MultiEnvGRPOTrainer, spec=spec
        )
        trainer.train()
    from multienv.reporting import read_episodes

    assert status == 0
    assert (plan["rollouts_per_batch"], plan["groups_per_batch"], plan["num_batches"]) == (8, 4, 3)
    played = [Counter[str]() for _ in range(3)]
    for episode in read_episodes(tmp_path):
        played[episode.training_step or 0][episode.environment] += 1
    assert [{name: num * 2 for name, num in batch.items()} for batch in plan["batches"]] == [dict(p) for p in played]
    assert sum(share["gradient_share"] for share in plan["environments"].values()) == pytest.approx(1.0)
    assert plan["environments"]["echo"]["epochs"] == pytest.approx(9 / 3)
    assert plan["environments"]["echo"]["rollouts"] == 18


def test_an_earlier_record_says_what_rollouts_take(
    echo_server: ORSServer, climb_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"echo": echo_server.url, "climb": climb_server.url}) as spec:
        options = {"per_device_train_batch_size": 8}
        trainer = training.scripted_trainer(
            lambda _text, turn: training.call("echo", text="hello") if turn == 0 else "done",
            tmp_path,
            options,
            MultiEnvGRPOTrainer,
            spec=spec,
        )
        trainer.train()
        capsys.readouterr()
        _, plan = planned(spec, args_of(tmp_path, **options), capsys, record=tmp_path)
        with pytest.raises(RecordError, match="no directory"):
            run_plan(spec, args=args_of(tmp_path), record=tmp_path / "none", console=Console())
        out = io.StringIO()
        run_plan(spec, args=args_of(tmp_path), record=tmp_path, console=Console(file=out, width=100))
    assert plan["environments"]["echo"]["measured"]["tool_calls"] > 0
    assert plan["environment_s"] > 0
    assert "batch 0: " in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 100


def test_a_plan_that_cannot_work_says_why(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = EnvSpec(echo_server.url, limits=Limits(max_sessions=2))
    with MultiEnvSpec({"echo": tight}) as spec:
        status, plan = planned(spec, args_of(tmp_path, per_device_train_batch_size=8), capsys)
    assert status == 1
    assert any("sessions" in problem for problem in plan["problems"])


@given(st.integers(0, 50), st.floats(0.01, 10), st.integers(1, 20), st.floats(0.1, 50) | st.none(), st.integers(1, 4))
def test_opening_more_sessions_never_takes_less(
    num: int, open_s: float, at_once: int, rate: float | None, processes: int
) -> None:
    limits = Limits(max_concurrent_starts=at_once, starts_per_s=rate)
    seconds = [opening_s(each, open_s, limits, processes) for each in (num, num + 1)]
    assert 0 <= seconds[0] <= seconds[1]
    assert seconds[1] >= open_s
    assert seconds[0] <= num * open_s + (0 if rate is None else num * processes / rate) + 1e-9


def test_a_sampling_weight_that_nothing_reads_is_found(
    echo_server: ORSServer, climb_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"echo": EnvSpec(echo_server.url, sampling_weight=2.0), "climb": climb_server.url}
    with MultiEnvSpec(targets, curriculum="proportional") as spec:
        _, document = checked(spec, args_of(tmp_path), capsys)
    with MultiEnvSpec(targets, curriculum="adaptive") as spec:
        _, acting = checked(spec, args_of(tmp_path), capsys)
    assert codes(document)["sampling-weight-idle"] == 1
    assert codes(acting)["sampling-weight-idle"] == 0
