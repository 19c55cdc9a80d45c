"""`multienv check`: every environment in a row, what was found of each, and nothing asked twice."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openreward.environments import ToolOutput, tool
from rich.console import Console

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.checks import Code, Look, Severity
from multienv.commands.check import run_check
from multienv.errors import OverlappingTasksError
from multienv.sessions import EnvironmentClient
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from tests.support import training
from tests.support.environments import (
    Base,
    BrokenSetupEnvironment,
    EchoEnvironment,
    OneEnvironment,
    TalkEnvironment,
    TwoEnvironment,
    output,
    shelf,
)
from tests.support.foreign import GuessEnvironment
from tests.support.servers import ORSServer

DEAD = "http://127.0.0.1:1"
QUICK = Limits(connect_timeout_s=0.2, max_retries=0)


@pytest.fixture
def locked() -> Iterator[FaultServer]:
    """A server that refuses the key."""
    with FaultServer(faults=[Fault(FaultKind.UNAUTHORIZED, Phase.LISTING, times=None)]) as server:
        yield server


@pytest.fixture
def healthy() -> Iterator[FaultServer]:
    """A server that counts what it is asked."""
    with FaultServer() as server:
        yield server


def checked(
    spec: MultiEnvSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], **options: Any
) -> tuple[int, dict[str, Any]]:
    defaults: dict[str, Any] = {
        "args": training.config(tmp_path),
        "processing_class": training.tokenizer(),
        "max_model_tokens": 8192,
    }
    status = run_check(spec, console=Console(), is_json=True, **(defaults | options))
    return status, json.loads(capsys.readouterr().out)


def shown(spec: MultiEnvSpec, tmp_path: Path, **options: Any) -> str:
    out = io.StringIO()
    defaults: dict[str, Any] = {
        "args": training.config(tmp_path),
        "processing_class": training.tokenizer(),
        "max_model_tokens": 8192,
    }
    run_check(spec, console=Console(file=out, width=100), **(defaults | options))
    assert max(map(len, out.getvalue().splitlines())) <= 100
    return out.getvalue()


def codes(document: dict[str, Any]) -> Counter[str]:
    return Counter(finding["code"] for finding in document["findings"])


def found(document: dict[str, Any], code: Code) -> dict[str, Any]:
    [finding] = [finding for finding in document["findings"] if finding["code"] == code]
    return dict(finding)


# The table


def test_every_environment_is_a_row_and_nothing_is_left_open(
    echo_server: ORSServer, pair_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environments = {
        "echo": EnvSpec(echo_server.url, num_tasks=2, eval_split="test"),
        "two": EnvSpec(pair_server.url, env_name="TwoEnvironment"),
        "guess": GuessEnvironment,
    }
    with MultiEnvSpec(environments, system_prompt="Be brief.") as spec:
        status, document = checked(spec, tmp_path, capsys, num_prompts=2)
        text = shown(spec, tmp_path, num_prompts=2)
    assert status == 0
    rows = document["environments"]
    assert list(rows) == ["echo", "two", "guess"]
    echo = rows["echo"]
    assert (echo["target"], echo["server"], echo["is_reached"]) == (echo_server.url, echo_server.url, True)
    assert echo["splits"] == {"train": 3, "test": 1}
    assert (echo["num_tasks"], echo["num_eval_tasks"], echo["eval_split"]) == (2, 1, "test")
    assert (echo["tools"], echo["terminal_tool"], echo["sessions_asked"]) == (["echo"], None, 2)
    assert len(echo["prompt_tokens"]) == len(echo["open_s"]) == 2
    assert all(0 < seconds < 5 for seconds in echo["open_s"])
    assert echo["longest_rollout_tokens"] == max(echo["prompt_tokens"]) + 400
    assert (rows["two"]["served_name"], rows["two"]["num_tasks"]) == ("twoenvironment", 1)
    assert (rows["guess"]["kind"], rows["guess"]["num_tasks"]) == ("foreign", 1)
    assert document["num_findings"]["error"] == 0
    assert not echo_server.open_sessions
    assert "train: 2 of 3" in text
    assert "test: 1 of 1 evaluated" in text
    assert "the model takes 8,192 tokens" in text


def test_a_dead_server_and_a_wrong_key_are_rows_and_keep_no_other_from_being_shown(
    echo_server: ORSServer, locked: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environments = {
        "echo": echo_server.url,
        "dead": EnvSpec(DEAD, limits=QUICK),
        "locked": EnvSpec(locked.url, api_key="wrong", limits=QUICK),
    }
    with MultiEnvSpec(environments) as spec:
        status, document = checked(spec, tmp_path, capsys)
        text = shown(spec, tmp_path)
    assert status == 1
    assert {name: row["is_reached"] for name, row in document["environments"].items()} == {
        "echo": True,
        "dead": False,
        "locked": False,
    }
    assert found(document, Code.SERVER_UNREACHABLE)["environment"] == "dead"
    assert found(document, Code.SERVER_REFUSES_KEY)["environment"] == "locked"
    assert "nobody accepts a connection" in document["environments"]["dead"]["reason"]
    assert "wrong" not in json.dumps(document), "a key is shown nowhere"
    assert "server-unreachable" in text
    assert "- dead: nobody accepts a connection at http://127.0.0.1:1" in text
    assert text.index("2 errors") < text.index("- locked:") < text.index("1 note")
    assert text.count("Start the server, or correct the target.") == 1


def test_what_is_known_without_a_model_or_a_configuration_is_shown_without(
    echo_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        status, document = checked(spec, tmp_path, capsys, args=None, processing_class=None, max_model_tokens=None)
        text = shown(spec, tmp_path, args=None, processing_class=None, max_model_tokens=None)
    assert (status, document["environments"]["echo"]["prompt_tokens"]) == (0, [])
    assert codes(document)[Code.POLICY_UNKNOWN] == 1
    assert "prompt" not in text.splitlines()[0]


def test_required_secrets_that_are_not_declared_are_missing() -> None:
    look = Look("env", EnvSpec("owner/name", secrets={"A": "a"}), required_secrets=("A", "B", "api_key"))
    assert look.missing_secrets == ("B",)


def test_names_that_several_environments_have_are_told_from_the_sessions_that_were_opened(
    echo_server: ORSServer, climb_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"echo": echo_server.url, "climb": climb_server.url}) as spec:
        _, document = checked(spec, tmp_path, capsys)
        text = shown(spec, tmp_path)
    [collision] = document["collisions"]
    assert (collision["tool"], collision["environments"], collision["is_same"]) == ("echo", ["echo", "climb"], True)
    assert "tool 'echo' is in echo, climb: the same schema" in text


# Sessions


def test_each_task_is_opened_once_and_nothing_else(
    healthy: FaultServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"env": EnvSpec(healthy.url, indices=[2, 0, 1]), "echo": EchoEnvironment}) as spec:
        checked(spec, tmp_path, capsys)
        assert healthy.num_requests["/create"] == 1
        _, document = checked(spec, tmp_path, capsys, num_prompts=9)
    assert healthy.num_requests["/create"] == 1 + 3
    assert document["environments"]["env"]["sessions_asked"] == 3
    assert healthy.open_sessions == {}


class Counting(Base):
    """Knows how many of it live at once."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": str(number)} for number in range(6)]
    living: ClassVar[list[int]] = [0]
    most: ClassVar[list[int]] = [0]

    def setup(self) -> None:
        self.living[0] += 1
        self.most[0] = max(self.most[0], self.living[0])

    def teardown(self) -> None:
        self.living[0] -= 1

    @tool
    def win(self) -> ToolOutput:
        """Win."""
        return output("won", 1.0, finished=True)


class CountingToo(Counting):
    """Shares the count."""


@pytest.mark.parametrize(("limits", "most"), [({"max_sessions": 2}, 2), ({}, 6)])
def test_sessions_are_opened_within_the_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: dict[str, Any], most: int
) -> None:
    Counting.most[0] = 0
    own = Limits(max_sessions=3) if limits else Limits()
    environments = {"one": EnvSpec(Counting, limits=own), "two": EnvSpec(CountingToo, indices=[0], limits=own)}
    with MultiEnvSpec(environments, **limits) as spec:
        _, document = checked(spec, tmp_path, capsys, num_prompts=6)
    assert not codes(document)[Code.SESSION_FAILED]
    assert [len(row["open_s"]) for row in document["environments"].values()] == [6, 1]
    assert 1 <= Counting.most[0] <= most + (not limits)


def test_a_task_whose_session_fails_is_a_warning_while_others_can_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiEnvSpec({"broken": EnvSpec(BrokenSetupEnvironment, limits=QUICK)}) as spec:
        status, document = checked(spec, tmp_path, capsys)
        assert (status, found(document, Code.SESSION_FAILED)["severity"]) == (1, Severity.ERROR)
        status, document = checked(spec, tmp_path, capsys, num_prompts=3)
        text = shown(spec, tmp_path, num_prompts=3)
    assert (status, found(document, Code.SESSION_FAILED)["severity"]) == (0, Severity.WARNING)
    assert "the session of task 0" in found(document, Code.SESSION_FAILED)["message"]
    assert len(document["environments"]["broken"]["open_s"]) == 2
    assert "1 failed" in text


# Prompts


class Watching(MultiEnvGRPOTrainer):
    """Notes how long the prompts are that it generates for."""

    lengths: ClassVar[dict[str, int]] = {}

    def _tokenize_prompts(self, prompts: Any) -> Any:
        ids, *rest = super()._tokenize_prompts(prompts)
        for environment, own in zip(self.environments, ids, strict=True):
            self.lengths[environment.episode.task_id] = len(own)
        return ids, *rest


def test_the_prompts_that_are_measured_are_those_of_the_trainer(
    pair_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def targets() -> dict[str, Any]:
        return {
            "talk": TalkEnvironment,
            "echo": EnvSpec(EchoEnvironment, system_prompt="Echo what you are told."),
            "one": pair_server.url,
        }

    with MultiEnvSpec(targets(), system_prompt="Be brief.") as spec:
        _, document = checked(spec, tmp_path, capsys, num_prompts=8)
    Watching.lengths.clear()
    with MultiEnvSpec(targets(), system_prompt="Be brief.") as spec:
        options = {"per_device_train_batch_size": 24, "num_generations": 2}
        training.scripted_trainer(lambda _text, _turn: "done", tmp_path, options, Watching, spec=spec).train()
    trained: dict[str, list[int]] = {}
    for task, length in sorted(Watching.lengths.items()):
        trained.setdefault(task.split("/")[0], []).append(length)
    assert {name: row["prompt_tokens"] for name, row in document["environments"].items()} == trained
    assert [len(lengths) for lengths in trained.values()] == [3, 1, 4]


@pytest.mark.parametrize(
    ("most", "code", "status"),
    [(10, Code.PROMPT_TOO_LONG, 1), (300, Code.COMPLETION_MAY_NOT_FIT, 0), (8192, None, 0)],
)
def test_prompts_and_completions_that_do_not_fit_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int, code: Code | None, status: int
) -> None:
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        left, document = checked(spec, tmp_path, capsys, max_model_tokens=most, num_prompts=3)
        text = shown(spec, tmp_path, max_model_tokens=most)
    assert left == status
    assert {Code.PROMPT_TOO_LONG, Code.COMPLETION_MAY_NOT_FIT} & set(codes(document)) == ({code} if code else set())
    assert f" of {most:,}" in text


def test_a_template_that_nobody_can_train_with_is_found_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import copy

    broken = copy.copy(training.tokenizer())
    broken.chat_template = (
        "{{ raise_exception('roles must alternate') if messages | length > 1 else messages[0].content }}"
    )
    with MultiEnvSpec({"echo": EchoEnvironment}, system_prompt="Be brief.") as spec:
        status, document = checked(spec, tmp_path, capsys, processing_class=broken)
    assert status == 1
    assert "roles must alternate" in json.dumps(document["findings"])
    assert document["environments"]["echo"]["prompt_tokens"] == []
    assert document["environments"]["echo"]["open_s"]


# What only reading the tasks can tell


def test_an_excluded_name_that_there_is_not_is_found_and_one_that_there_is_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [{"target": "a", "id": "first"}, {"target": "b", "id": "second"}, {"target": "c", "id": "third"}]
    environments = {
        "wrong": EnvSpec(shelf(train=tasks), exclude=["no-such-task"]),
        "right": EnvSpec(shelf(train=tasks), exclude=["first"]),
        "dead": EnvSpec(DEAD, limits=QUICK),
    }
    with MultiEnvSpec(environments) as spec:
        status, document = checked(spec, tmp_path, capsys, num_prompts=3)
    assert status == 1
    wrong = found(document, Code.DECLARATION_WRONG)
    assert (wrong["environment"], wrong["severity"]) == ("wrong", "error")
    assert "names none of the chosen tasks" in wrong["message"]
    assert document["environments"]["right"]["num_tasks"] == 2
    assert document["environments"]["right"]["sessions_asked"] == 2, "no session is opened for what is excluded"


@pytest.mark.parametrize(
    ("is_evaluated", "message"), [(False, "both hold task 0"), (True, "is evaluated on task 0 of split 'train'")]
)
def test_a_task_that_is_in_the_mixture_twice_is_found_where_only_the_server_knows_it(
    pair_server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_evaluated: bool, message: str
) -> None:
    again = EnvSpec(pair_server.url, env_name="OneEnvironment", evaluation_only=is_evaluated)
    with MultiEnvSpec({"first": pair_server.url, "again": again}) as spec:
        status, document = checked(spec, tmp_path, capsys)
        with pytest.raises(OverlappingTasksError, match=message):
            _ = spec.task_dataset
    assert status == 1
    assert message in found(document, Code.DECLARATION_WRONG)["message"]


def test_what_became_of_the_tasks_of_a_manifest_is_found_environment_by_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "manifest.json"
    old = {name: shelf(train=[{"target": f"{name}{n}"} for n in range(3)]) for name in ("kept", "moved", "lost", "all")}
    gone = {"gone": OneEnvironment}
    with MultiEnvSpec({**old, **gone, "dead": TwoEnvironment}) as spec:
        spec.write_manifest(path)
    new = {
        "kept": old["kept"],
        "moved": shelf(train=[{"target": f"moved{n}"} for n in (2, 1, 0)]),
        "lost": shelf(train=[{"target": "lost0"}, {"target": "other"}]),
        "all": shelf(train=[{"target": "other"}]),
        "dead": EnvSpec(DEAD, limits=QUICK),
        "new": OneEnvironment,
    }
    with MultiEnvSpec(new, manifest=path) as spec:
        status, document = checked(spec, tmp_path, capsys)
    assert status == 1
    told = {
        finding["environment"]: finding for finding in document["findings"] if finding["code"] == Code.MANIFEST_DIFFERS
    }
    assert {name: finding["severity"] for name, finding in told.items() if name} == {
        "moved": "note",
        "lost": "warning",
        "all": "error",
    }
    assert "1 removed (train/2); 1 changed (train/1)" in told["lost"]["message"]
    assert "It trains on the 1 pinned tasks that are there." in told["lost"]["message"]
    assert "nothing to train on" in told["all"]["message"]
    mixture = [finding["message"] for finding in document["findings"] if finding["environment"] is None]
    assert any("gone is in the manifest, and not in the mixture" in message for message in mixture)
    assert any("new is not in the manifest" in message for message in mixture)
    rows = document["environments"]
    assert [rows[name]["num_tasks"] for name in ("kept", "moved", "lost")] == [3, 3, 1]


def test_what_the_mixture_has_its_weights_from_decides_which_weights_are_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"echo": EnvSpec(EchoEnvironment, sampling_weight=2.0), "one": OneEnvironment}
    with MultiEnvSpec(targets, curriculum="proportional") as spec:
        _, document = checked(spec, tmp_path, capsys)
    with MultiEnvSpec(targets, curriculum="adaptive") as spec:
        _, acting = checked(spec, tmp_path, capsys)
    assert codes(document)[Code.SAMPLING_WEIGHT_IDLE] == 1
    assert codes(acting)[Code.SAMPLING_WEIGHT_IDLE] == 0


def test_a_surprise_while_looking_is_a_finding_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(_self: EnvironmentClient) -> Any:
        raise LookupError("a surprise")

    monkeypatch.setattr(EnvironmentClient, "fetch_shared_tools", breaks)
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        status, document = checked(spec, tmp_path, capsys)
    assert status == 1
    assert "a surprise" in found(document, Code.CHECK_FAILED)["message"]


def test_what_only_trls_own_trainer_trips_over_is_left_out_and_what_any_does_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environments = {"echo": EnvSpec(EchoEnvironment, limits=Limits(max_sessions=4)), "one": OneEnvironment}
    with MultiEnvSpec(environments) as spec:
        status, document = checked(spec, tmp_path, capsys)
        assert Code.ENVIRONMENT_SESSION_LIMIT in {finding.code for finding in spec.check(training.config(tmp_path))}
    assert status == 0
    assert not {Code.SESSION_LIMIT, Code.ENVIRONMENT_SESSION_LIMIT} & set(codes(document))
    with MultiEnvSpec(environments, max_sessions=7) as spec:
        status, document = checked(spec, tmp_path, capsys)
    assert (status, found(document, Code.SESSION_LIMIT)["severity"]) == (1, "error")
