"""`multienv preview` and `multienv play`: exactly what the model gets, and an episode stepped by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec, RewardSpec
from multienv.commands.play import run_play
from multienv.commands.preview import run_preview
from multienv.errors import SpecError
from tests.support import training
from tests.support.servers import ORSServer


def previewed(spec: MultiEnvSpec, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"environment": None, "task": "0", "processing_class": training.tokenizer()}
    status = run_preview(
        spec, **(defaults | options), chat_template_kwargs={"enable_thinking": False}, console=Console(), is_json=True
    )
    assert status == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


class Notes(MultiEnvGRPOTrainer):
    """Notes the prompts that TRL tokenizes."""

    noted: list[list[int]]

    def _tokenize_prompts(self, prompts: Any) -> Any:
        output = super()._tokenize_prompts(prompts)
        self.noted = [list(ids) for ids in output[0]]
        return output


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
def test_the_preview_is_what_the_trainer_tokenizes(
    pair_server: ORSServer,
    echo_server: ORSServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    system_prompt: str | None,
) -> None:
    targets = {"echo": echo_server.url, "one": EnvSpec(pair_server.url, num_tasks=1)}
    with MultiEnvSpec(targets, system_prompt=system_prompt) as spec:
        trainer = training.scripted_trainer(
            lambda _text, _turn: "done", tmp_path, {"per_device_train_batch_size": 8}, Notes, spec=spec
        )
        rows = [row for row in spec.task_dataset for _ in range(2)]
        trainer._generate_and_score_completions(rows)
        for number, row in enumerate(rows):
            shown = previewed(spec, capsys, environment=row["environment"], task=row["task_id"])
            assert shown["text"] == training.tokenizer().decode(trainer.noted[number])
            assert shown["num_tokens"] == len(trainer.noted[number])
            assert 0 < shown["num_tool_tokens"] < shown["num_tokens"]
    assert not echo_server.open_sessions


def test_the_preview_is_readable(echo_server: ORSServer) -> None:
    out = io.StringIO()
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        run_preview(
            spec,
            environment=None,
            task="1",
            processing_class=training.tokenizer(),
            console=Console(file=out, width=100),
        )
    text = out.getvalue()
    for part in ("echo/train/1", "<|im_start|>", "Echo 'world' to win.", "text*", "tokens:"):
        assert part in text


def test_without_a_model_the_messages_are_shown(echo_server: ORSServer, capsys: pytest.CaptureFixture[str]) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        shown = previewed(spec, capsys, processing_class=None)
    assert shown["messages"] == [{"role": "user", "content": "Echo 'hello' to win."}]
    assert "text" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": "ecko"}, r"unknown environment 'ecko' \(did you mean 'echo'\?\)"),
        ({"environment": None}, "several environments; choose one with --environment: echo, one"),
        (
            {"environment": "echo", "task": "9"},
            "no task '9' among the 3 that are chosen; accepted: an",
        ),
        ({"environment": None, "task": "echo/train/9"}, "no task 'echo/train/9'"),
    ],
)
def test_a_name_that_is_wrong_is_said_with_what_is_accepted(
    echo_server: ORSServer, pair_server: ORSServer, options: dict[str, Any], message: str
) -> None:
    with (
        MultiEnvSpec({"echo": echo_server.url, "one": pair_server.url}) as spec,
        pytest.raises(SpecError, match=message),
    ):
        run_preview(spec, **({"task": "0"} | options), processing_class=None, console=Console())


def played(spec: MultiEnvSpec, *lines: str, task: str = "0") -> tuple[int, str]:
    out = io.StringIO()
    status = run_play(spec, environment=None, task=task, console=Console(file=out, width=100), lines=lines)
    return status, out.getvalue()


def test_an_episode_is_stepped_by_hand(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        status, text = played(spec, 'echo {"text": "no"}', "", "echo text=hello", "echo text=never")
    assert status == 0
    assert "reward 0.0" in text
    assert "reward 1.0" in text
    assert "never" not in text
    assert "reward 1.0, success True, 2 steps" in text
    assert not echo_server.open_sessions


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("eco text=hello", "no tool 'eco' (did you mean 'echo'?)"),
        ("echo {text: 1}", "no JSON"),
        ("echo hello", "'hello' is no name=value"),
        ('echo "text', "cannot be read"),
        ("help eco", "no tool 'eco'"),
    ],
)
def test_a_line_that_is_not_understood_sends_nothing(echo_server: ORSServer, line: str, told: str) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        status, text = played(spec, line)
    assert status == 0
    assert told in text
    assert "0 steps" in text


def test_arguments_that_break_the_schema_are_refused_as_in_training(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        _, text = played(spec, "echo wrong=1", "help echo", "tools")
    assert "refused" in text
    assert '"properties"' in text
    assert "1 steps" in text


def test_the_limits_of_training_hold(echo_server: ORSServer) -> None:
    limited = EnvSpec(echo_server.url, limits=Limits(max_tool_calls=1), reward=RewardSpec(unfinished=-1.0))
    with MultiEnvSpec({"echo": limited}) as spec:
        _, text = played(spec, "echo text=no", "echo text=hello")
        _, left = played(spec, "quit")
    assert "its limit of 1 tool calls is reached" in text
    assert "reward -1.0" in left


def test_the_episode_is_json_at_the_end(echo_server: ORSServer, capsys: pytest.CaptureFixture[str]) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        status = run_play(
            spec, environment="echo", task="0", console=Console(), lines=["echo text=hello"], is_json=True
        )
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert (document["status"], document["reward"], document["is_success"]) == ("finished", 1.0, True)
    assert document["steps"][0]["arguments"] == {"text": "hello"}
