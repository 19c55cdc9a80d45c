"""The command line as a whole: what each command leaves behind, and how it fails."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from multienv import cli
from multienv.commands.live_view import LiveView
from multienv.reporting import read_episodes
from tests.support import training
from tests.support.servers import ORSServer

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "three_catalogues.yaml"

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """Calls the command line, and returns its exit status and what it wrote."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["multienv", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        written = capsys.readouterr()
        status = left.value.code
        return (status if isinstance(status, int) else int(status is not None)), written.out, written.err

    return call


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model."""
    folder = tmp_path_factory.mktemp("tiny")
    training.model().save_pretrained(folder)
    training.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def run_file(tmp_path: Path, tiny: Path, echo_server: ORSServer, climb_server: ORSServer) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"""\
environments:
  echo: {{target: {echo_server.url}, sampling_weight: 2.0}}
  climb: {{target: {climb_server.url}, reward: {{reduction: total}}}}
model: {{model_name_or_path: {tiny}}}
grpo:
  output_dir: {tmp_path / "out"}
  max_steps: 2
  per_device_train_batch_size: 4
  num_generations: 2
  max_completion_length: 16
  logging_steps: 1
  save_steps: 1
  report_to: none
  use_cpu: true
  bf16: false
  activation_checkpointing: false
  chat_template_kwargs: {{enable_thinking: false}}
evaluation: {{num_tasks: 1, max_tokens: 8}}
""",
        encoding="utf-8",
    )
    return path


def test_a_training_leaves_its_record_its_log_what_was_run_and_the_model(
    run_file: Path, called: Called, echo_server: ORSServer
) -> None:
    status, out, _ = called("train", run_file, "--json")
    directory = run_file.parent / "out"
    assert status == 0
    document = json.loads(out)
    assert document["environments"]["echo"]["num_rollouts"] + document["environments"]["climb"]["num_rollouts"] == 8
    assert document["account"]["echo"]["rollouts"] == document["environments"]["echo"]["num_rollouts"]
    logged = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in logged if "loss" in entry] == [1, 2]
    run = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    assert run["grpo"]["max_steps"] == 2
    assert run["packages"]["trl"]
    assert (directory / "model.safetensors").exists()
    assert not echo_server.open_sessions
    status, out, _ = called("report", directory)
    assert status == 0
    assert (directory / "report.html").exists()


def test_a_training_goes_on_from_its_newest_checkpoint(run_file: Path, called: Called) -> None:
    directory = run_file.parent / "out"
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("max_steps: 2", "max_steps: 1"), encoding="utf-8")
    assert called("train", run_file)[0] == 0
    first = read_episodes(directory)
    run_file.write_text(text, encoding="utf-8")
    assert called("train", run_file, "--resume")[0] == 0
    both = read_episodes(directory)
    assert both[: len(first)] == first
    assert [episode.training_step for episode in both] == [0] * 4 + [1] * 4
    logged = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in logged if "loss" in entry] == [1, 2]


def test_what_was_left_of_a_checkpoint_by_a_kill_is_passed_over(run_file: Path, called: Called) -> None:
    directory = run_file.parent / "out"
    assert called("train", run_file)[0] == 0
    (directory / "checkpoint-2" / "trainer_state.json").write_text('{"epo', encoding="utf-8")
    (directory / "checkpoint-3").mkdir()
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("max_steps: 2", "max_steps: 3"), encoding="utf-8")
    status, _, err = called("train", run_file, "--resume")
    assert status == 0
    assert "checkpoint-3 was not written to its end" in err
    assert "checkpoint-2 was not written to its end" in err
    logged = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in logged if "loss" in entry] == [1, 2, 3]
    assert [episode.training_step for episode in read_episodes(directory)] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_checkpoint_that_is_not_there_is_said(run_file: Path, called: Called) -> None:
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("grpo:\n", "grpo:\n  resume_from_checkpoint: nowhere\n"), encoding="utf-8")
    status, _, err = called("train", run_file)
    assert status == 2
    assert "resume_from_checkpoint='nowhere' holds no checkpoint" in err


def test_a_model_without_chat_template_is_refused_with_its_line(
    run_file: Path, called: Called, tiny: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare)
    (bare / "chat_template.jinja").unlink()
    run_file.write_text(run_file.read_text(encoding="utf-8").replace(str(tiny), str(bare)), encoding="utf-8")
    for command in ("check", "preview"):
        status, _, err = called(command, run_file, *(("-e", "echo") if command == "preview" else ()))
        assert status == 2
        assert "has no chat template" in err
        assert "line 4" in err


def test_the_hubs_token_is_in_no_file_of_a_training(
    run_file: Path, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")  # which the training sets
    monkeypatch.setenv("OWN_HUB_TOKEN", "hf_very-secret")
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("grpo:\n", "grpo:\n  hub_token: $OWN_HUB_TOKEN\n"), encoding="utf-8")
    assert called("train", run_file)[0] == 0
    written = [path for path in (run_file.parent / "out").rglob("*") if path.is_file()]
    assert any(path.name == "training_args.bin" for path in written)
    assert not [path for path in written if b"hf_very-secret" in path.read_bytes()]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval_strategy: steps", "eval_dataset"),
        ("report_to: no_such_service", "no_such_service"),
        ("log_level: loud", "loud"),
    ],
)
def test_what_the_trainer_refuses_is_said_with_its_line(run_file: Path, called: Called, line: str, said: str) -> None:
    text = run_file.read_text(encoding="utf-8").replace("  report_to: none\n", "")
    run_file.write_text(text.replace("grpo:\n", f"grpo:\n  {line}\n"), encoding="utf-8")
    status, _, err = called("train", run_file)
    assert status == 2
    assert "the trainer refuses it" in err
    assert said in err


def test_the_other_commands_take_the_same_file(run_file: Path, called: Called) -> None:
    status, out, err = called("check", run_file, "--json")
    assert (status, err) == (0, "")
    checked = json.loads(out)
    assert checked["environments"]["echo"]["prompt_tokens"]
    assert checked["max_model_tokens"] == 8192
    status, out, err = called("plan", run_file, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["groups_per_batch"] == 2
    status, out, err = called("preview", run_file, "-e", "echo", "-t", "1", "--json")
    assert (status, err) == (0, "")
    assert "Echo 'world' to win." in json.loads(out)["text"]
    status, out, err = called("eval", run_file, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["environments"]["echo"]["num_attempts"] == 1
    assert called("eval", run_file, "--output", run_file.parent / "again", "--num-attempts", "2")[0] == 0
    status, out, _ = called("compare", found["directory"], run_file.parent / "again", "--json")
    assert status == 0
    assert json.loads(out)["success"]["echo"]["difference"]["num_tasks"] == 1


def test_what_is_done_already_is_said(run_file: Path, called: Called) -> None:
    assert called("eval", run_file)[0] == 0
    assert "2 of 2 attempts were in" in called("eval", run_file)[2]
    _, out, _ = called("train", run_file)
    assert "no group of echo, climb had two different rewards, so nothing was learnt there" in " ".join(out.split())
    status, _, err = called("train", run_file, "--resume")
    assert status == 0
    assert "is at max_steps=2 already: nothing is left to train" in " ".join(err.split())


def test_an_environment_that_is_not_named_is_asked_for_before_anything_is_loaded(
    run_file: Path, called: Called
) -> None:
    text = re.sub(r"model_name_or_path: \S+}", "model_name_or_path: /no/such/model}", run_file.read_text())
    run_file.write_text(text, encoding="utf-8")
    for command in ("preview", "play"):
        status, _, err = called(command, run_file)
        assert (status, "choose one with --environment: echo, climb" in err) == (2, True)


def test_an_episode_is_played_from_a_pipe(run_file: Path, called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("echo text=hello\n"))
    status, out, _ = called("play", run_file, "-e", "echo")
    assert status == 0
    assert "reward 1.0, success True, 1 steps" in out


COMMANDS = ("check", "plan", "preview", "play", "train", "eval")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_typo_is_one_readable_message_and_no_traceback(run_file: Path, called: Called, command: str) -> None:
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("sampling_weight", "samplng_weight"), encoding="utf-8")
    status, out, err = called(command, run_file)
    assert (status, out) == (2, "")
    assert err.startswith(
        f"error: {run_file}, line 2: environments.echo: unknown option 'samplng_weight' (did you mean"
    )
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["preview", "play", "train", "eval"])
def test_a_server_that_is_down_is_one_readable_message(run_file: Path, called: Called, command: str) -> None:
    text = re.sub(
        r"target: http\S+,", "target: 'http://127.0.0.1:1', limits: {connect_timeout_s: 0.2},", run_file.read_text()
    )
    run_file.write_text(text, encoding="utf-8")
    options = ["-e", "echo"] if command in ("preview", "play") else []
    status, out, err = called(command, run_file, *options)
    assert (status, out) == (2, "")
    [message] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "127.0.0.1:1" in message
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["check", "plan"])
def test_what_looks_at_every_server_says_which_is_down_and_fails(run_file: Path, called: Called, command: str) -> None:
    text = run_file.read_text().replace("target: http", "limits: {connect_timeout_s: 0.2}, target: http", 1)
    run_file.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", text, count=1), encoding="utf-8")
    status, out, err = called(command, run_file, "--json")
    assert (status, err) == (1, "")
    assert "127.0.0.1:1" in json.dumps(json.loads(out))


def test_a_wrong_key_is_one_readable_message(
    tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch, tiny: Path
) -> None:
    from tests.support.environments import EchoEnvironment
    from tests.support.openai_server import OpenAIServer, say

    with ORSServer([EchoEnvironment]) as ors:
        endpoint = OpenAIServer(lambda _messages, _tools: say("no")).start()
        try:
            path = tmp_path / "run.yaml"
            path.write_text(
                f"environments: {{echo: '{ors.url}'}}\n"
                f"evaluation: {{model: tiny, base_url: '{endpoint.base_url}', api_key: $SOME_KEY}}\n"
            )
            monkeypatch.setenv("SOME_KEY", "sk-wrong")
            status, out, err = called("eval", path, "--output", tmp_path / "out")
        finally:
            endpoint.stop()
    assert (status, out) == (2, "")
    assert "refuses the key" in err
    assert "sk-wrong" not in err
    assert "Traceback" not in err


def test_a_model_that_is_not_there_is_one_readable_message(run_file: Path, called: Called) -> None:
    text = re.sub(r"model_name_or_path: \S+}", "model_name_or_path: /no/such/model}", run_file.read_text())
    run_file.write_text(text, encoding="utf-8")
    for command in ("check", "preview", "train", "eval"):
        status, _, err = called(command, run_file, *(["-e", "echo"] if command == "preview" else []))
        assert status == 2
        assert "line 4: model: model_name_or_path='/no/such/model' cannot be used: there is no such folder" in err
        assert "Traceback" not in err


def test_help_and_version_are_there_at_once() -> None:
    environment = os.environ | {"COLUMNS": "200"}
    program = [sys.executable, "-X", "importtime", "-m", "multienv", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT, env=environment, timeout=60)
    for command in (*COMMANDS, "compare", "report", "simulate", "demo"):
        assert re.search(rf"^. {command} ", done.stdout, re.MULTILINE), command
    heavy = r"\| +(torch|trl|transformers|openreward|datasets|pydantic|openai|scipy|numpy)$"
    assert re.findall(heavy, done.stderr, re.MULTILINE) == []
    from importlib.metadata import version

    done = subprocess.run([sys.executable, "-m", "multienv", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == version("multienv")


def test_a_terminal_sees_each_environment_while_it_trains() -> None:
    class State:
        max_steps, global_step = 10, 0

    out = io.StringIO()
    view = LiveView(["echo", "climb"], Console(file=out, force_terminal=True, width=120, height=40))
    view.on_train_begin(None, State(), None)
    view.on_log(None, State(), None, {"env/echo/rollouts": 8.0, "env/echo/reward": 0.25, "loss": 0.5})
    view.on_log(None, State(), None, {"env/echo/rollouts": 8.0, "env/echo/reward": 0.75, "env/climb/rollouts": 0.0})
    State.global_step = 3
    view.on_step_end(None, State(), None)
    view.stop()
    shown = out.getvalue()
    for part in ("echo", "climb", "0.750", "+0.500", "3/10", "loss 0.5000"):
        assert part in shown
    view.stop()


def test_the_example_runs_offline_from_check_to_report(tmp_path: Path) -> None:
    """What the README promises, with fewer steps, as a newcomer runs it: without a key and in another folder."""
    text = EXAMPLE.read_text(encoding="utf-8").replace("    max_steps: 25\n", "    max_steps: 1\n")
    (tmp_path / "three.yaml").write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if "KEY" not in name}

    def run(*arguments: str) -> tuple[int, str, str]:
        program = [sys.executable, "-m", "multienv", *arguments]
        done = subprocess.run(
            program, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=280
        )
        return done.returncode, done.stdout, done.stderr

    status, out, err = run("train", "three.yaml", "--offline", "--json")
    assert status == 0, err
    figures = json.loads(out)["environments"]
    assert figures["seta"]["num_rollouts"] == 24  # its sampling_weight is that of the two others together
    assert sum(each["num_rollouts"] for each in figures.values()) == 48
    assert sum(each["tool_calls"] * each["num_rollouts"] for each in figures.values()) > 48
    assert all(each["failed"] == each["refused"] == 0 for each in figures.values())
    status, out, err = run("report", "three-catalogues", "--json")
    assert status == 0, err
    assert Path(tmp_path, json.loads(out)["path"]).stat().st_size > 10_000
