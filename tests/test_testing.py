"""The scripted-fault server does what it says, and `check_environment` tells whole environments from broken ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx
import pytest
from openreward.environments import ToolOutput, tool

from multienv import EnvSpec, Limits, MultiEnvSpec, errors, testing
from multienv.testing import Check, Dialect, Fault, FaultKind, FaultServer, Phase, ToolRun, check_environment
from multienv.testing.wire import PHASES
from tests.support.environments import (
    Base,
    BrokenSetupEnvironment,
    ClimbEnvironment,
    EchoEnvironment,
    EmptyEnvironment,
    LargeEnvironment,
    OneEnvironment,
    TaskToolsEnvironment,
    TwoEnvironment,
    output,
)
from tests.support.servers import ORSServer

LIMITS = Limits(
    connect_timeout_s=1, open_timeout_s=2, prompt_timeout_s=2, tool_timeout_s=2, close_timeout_s=1, max_retries=0
)
SID = {"X-Session-ID": "sid"}
CREATE = {"split": "train", "index": 0}
WIN = {"name": "win", "input": {}}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as made:
        yield made


@pytest.fixture
def client(server: FaultServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=SID, trust_env=False, timeout=5) as made:
        yield made


def request(client: httpx.Client, phase: Phase) -> httpx.Response:
    """Make the request that a phase is about."""
    match phase:
        case Phase.LISTING:
            return client.get("/list_environments")
        case Phase.OPENING:
            return client.post("/create", json=CREATE)
        case Phase.PROMPT:
            return client.get("/fault/prompt")
        case Phase.CALL:
            return client.post("/fault/call", json=WIN)
        case Phase.CLOSE:
            return client.post("/delete", json={})


def events(text: str) -> tuple[str, Any]:
    """Read the id and the result of a call's stream."""
    pairs = [event.split("\r\n") for event in text.strip().split("\r\n\r\n")]
    (_, first), *rest = [(name.removeprefix("event: "), data.removeprefix("data: ")) for name, data in pairs]
    return first, json.loads("".join(data for _, data in rest))


# The server


def test_importing_the_room_loads_nothing_heavy() -> None:
    program = (
        "import sys, multienv.testing; multienv.testing.Fault\n"
        "heavy = {'torch', 'trl', 'datasets', 'transformers', 'openreward', 'aiohttp', 'uvicorn', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_public_name_is_there_and_an_unknown_one_is_answered() -> None:
    assert testing.__all__ == sorted(testing.__all__, key=lambda name: (name.islower(), name))
    for name in testing.__all__:
        assert getattr(testing, name) is not None
        assert name in dir(testing)
    with pytest.raises(AttributeError, match="public names: Check, Dialect, "):
        _ = testing.FaultyServer


def test_without_faults_it_is_a_whole_environment(server: FaultServer) -> None:
    report = check_environment(server.url, finishing_call=("win", {}))
    assert [finding.ok for finding in report.findings] == [True] * len(Check), str(report)
    assert server.open_sessions == {}
    assert server.runs == [ToolRun(server.runs[0].session_id, 0, "win")]


def test_it_is_trained_on_like_any_other(server: FaultServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(server.url, api_key="key")}) as spec:
        assert spec.train_dataset["n"] == [0, 1, 2]
        adapter: Any = spec.environment_factory["env"]()
        assert adapter.reset(task_index=2) == "Task 2. Win."
        assert set(server.open_sessions.values()) == {2}
        assert (adapter.work(hours=2), adapter.reward, adapter.finished) == ("worked", 0.25, False)
        assert (adapter.win(), adapter.reward, adapter.finished) == ("won", 1.0, True)
    assert server.open_sessions == {}
    assert [(run.task_index, run.tool) for run in server.runs] == [(2, "work"), (2, "win")]
    assert server.keys == {"key"}
    assert server.num_requests["/call"] == 2
    server.forget_requests()
    assert server.requests == []


@pytest.mark.parametrize(
    ("kind", "status", "takes_effect"),
    [
        (FaultKind.UNAUTHORIZED, 401, False),
        (FaultKind.TOO_MANY, 429, False),
        (FaultKind.ERROR, 500, False),
        (FaultKind.STARTING, 503, False),
        (FaultKind.BAD_GATEWAY, 502, True),
    ],
)
@pytest.mark.parametrize("phase", Phase)
def test_a_status_is_answered_in_any_phase_once_before_or_after_the_effect(
    server: FaultServer, client: httpx.Client, phase: Phase, kind: FaultKind, status: int, takes_effect: bool
) -> None:
    if phase not in (Phase.LISTING, Phase.OPENING):
        assert request(client, Phase.OPENING).status_code == 200
    server.faults = [Fault(kind, phase, retry_after_s=7)]
    answer = request(client, phase)
    assert answer.status_code == status
    assert (answer.headers.get("Retry-After") == "7") == (status in (429, 503))
    assert (answer.headers.get("X-Backend-State") == "starting") == (status == 503)
    assert len(server.open_sessions) == int(
        takes_effect
        if phase is Phase.OPENING
        else phase is not Phase.LISTING and not (phase is Phase.CLOSE and takes_effect)
    )
    assert len(server.runs) == int(takes_effect and phase is Phase.CALL)
    assert server.num_played == {server.faults[0]: 1}
    if phase is not Phase.OPENING:
        assert request(client, phase).status_code == 200, "it happens once"


@pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.LOST, FaultKind.RESTART, FaultKind.DROP])
@pytest.mark.parametrize("phase", Phase)
def test_a_connection_breaks_before_or_in_the_answer(
    server: FaultServer, client: httpx.Client, phase: Phase, kind: FaultKind
) -> None:
    if phase not in (Phase.LISTING, Phase.OPENING):
        assert request(client, Phase.OPENING).status_code == 200
    server.faults = [Fault(kind, phase)]
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete" if kind is FaultKind.DROP else "without"):
        request(client, phase)
    assert len(server.runs) == (phase is Phase.CALL and kind in (FaultKind.LOST, FaultKind.DROP))
    if kind is FaultKind.RESTART:
        assert server.open_sessions == {}


def test_a_result_that_was_cut_off_can_be_had_again_and_has_run_once(server: FaultServer, client: httpx.Client) -> None:
    request(client, Phase.OPENING)
    server.faults = [Fault(FaultKind.DROP, Phase.CALL)]
    with client.stream("POST", "/fault/call", json=WIN) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: task_id"
        run_id = next(lines).removeprefix("data: ")
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    again = events(client.post("/fault/call", json={**WIN, "task_id": run_id}).text)
    assert again[0] == run_id
    assert again[1]["output"]["reward"] == 1.0
    assert len(server.runs) == 1


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.SLOW])
@pytest.mark.parametrize("phase", Phase)
def test_an_answer_is_late_and_whole(server: FaultServer, client: httpx.Client, phase: Phase, kind: FaultKind) -> None:
    if phase not in (Phase.LISTING, Phase.OPENING):
        assert request(client, Phase.OPENING).status_code == 200
    server.faults = [Fault(kind, phase, seconds=0.2)]
    started = time.monotonic()
    answer = request(client, phase)
    assert time.monotonic() - started > 0.15
    assert answer.status_code == 200
    if phase is Phase.CALL:
        assert events(answer.text)[1]["ok"]
    else:
        assert answer.json()


def test_a_client_that_gives_up_leaves_nothing_behind(server: FaultServer, client: httpx.Client) -> None:
    server.faults = [Fault(FaultKind.HANG, Phase.OPENING)]
    with pytest.raises(httpx.ReadTimeout):
        client.post("/create", json=CREATE, timeout=0.1)
    assert server.open_sessions == {}


@pytest.mark.parametrize("kind", [FaultKind.REAPED, FaultKind.DELETED])
@pytest.mark.parametrize("phase", [Phase.PROMPT, Phase.CALL, Phase.CLOSE])
def test_a_session_is_forgotten(server: FaultServer, client: httpx.Client, phase: Phase, kind: FaultKind) -> None:
    request(client, Phase.OPENING)
    server.faults = [Fault(kind, phase)]
    assert request(client, phase).status_code == {FaultKind.REAPED: 404, FaultKind.DELETED: 410}[kind]
    assert server.open_sessions == {}
    assert request(client, Phase.PROMPT).status_code == 404


def test_an_answer_is_spoiled(server: FaultServer, client: httpx.Client) -> None:
    request(client, Phase.OPENING)
    server.faults = [
        Fault(FaultKind.WRONG_SCHEMA, Phase.PROMPT),
        Fault(FaultKind.MALFORMED, Phase.PROMPT),
        Fault(FaultKind.NAN, Phase.CALL),
    ]
    assert request(client, Phase.PROMPT).json() == {"unexpected": True}
    with pytest.raises(ValueError, match="Expecting"):
        request(client, Phase.PROMPT).json()
    reward = events(request(client, Phase.CALL).text)[1]["output"]["reward"]
    assert reward != reward  # noqa: PLR0124 - only NaN is not itself


def test_the_first_fault_that_fits_and_is_not_used_up_plays(server: FaultServer, client: httpx.Client) -> None:
    server.faults = [
        Fault(FaultKind.ERROR, Phase.OPENING, task_index=1, times=None),
        Fault(FaultKind.ERROR, Phase.OPENING, status=403, times=2, detail="bad key {key}"),
        Fault(FaultKind.TOO_MANY, Phase.CALL, tool="work", times=None),
    ]
    second = {**CREATE, "index": 1}
    seen = [client.post("/create", json=body, headers={"X-API-Key": "k"}) for body in (CREATE, second, CREATE, second)]
    assert [answer.status_code for answer in seen] == [403, 500, 403, 500]
    assert seen[0].json() == {"detail": "bad key k"}
    assert client.post("/create", json=CREATE).status_code == 200
    assert client.post("/fault/call", json={"name": "work", "input": {"hours": 1}}).status_code == 429
    assert events(request(client, Phase.CALL).text)[1]["ok"]
    assert list(server.num_played.values()) == [2, 2, 1]


def test_a_fault_that_makes_no_sense_is_refused_with_those_that_do() -> None:
    with pytest.raises(errors.SpecError, match="NaN reward cannot happen at close; accepted phases: call"):
        Fault(FaultKind.NAN, Phase.CLOSE)
    assert set(PHASES.values()) == set(Phase)


def test_it_can_be_killed_and_started_again_on_its_port() -> None:
    server = FaultServer().start()
    with httpx.Client(base_url=server.url, headers=SID, trust_env=False, timeout=5) as client:
        request(client, Phase.OPENING)
        with pytest.raises(errors.OrderError, match="serving already"):
            server.start()
        url = server.url
        server.stop()
        server.stop()
        with pytest.raises(httpx.TransportError):
            request(client, Phase.PROMPT)
        with server.start():
            assert server.url == url
            assert request(client, Phase.PROMPT).status_code == 404, "its sessions are gone"
            assert request(client, Phase.OPENING).status_code == 200


def test_it_may_speak_another_dialect() -> None:
    with FaultServer(dialect=Dialect(names=None, has_env_name=False, has_ranges=False)) as server:
        report = check_environment(server.url)
        assert report.ok, str(report)
        assert server.num_requests["/task"] > 0


# The contract


class UnfairEnvironment(Base):
    """Its ranges disagree with its tasks, it runs on after the end, and its schema is no object's."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "a"}, {"target": "b"}]

    @classmethod
    def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return [{"target": "another"}] * ((stop or 2) - (start or 0))

    def get_prompt(self) -> list[Any]:
        return []

    @tool
    def win(self) -> ToolOutput:
        """Win, but do not finish."""
        return output("won", 1.0)


REAL: list[tuple[type, tuple[str, Mapping[str, Any]] | None]] = [
    (EchoEnvironment, ("echo", {"text": "hello"})),
    (ClimbEnvironment, ("up", {"n": 4})),
    (LargeEnvironment, ("win", {})),
    (TaskToolsEnvironment, None),
]


@pytest.mark.parametrize(("environment", "finishing_call"), REAL)
@pytest.mark.parametrize("over_http", [True, False])
def test_real_environments_pass(
    environment: type, finishing_call: tuple[str, Mapping[str, Any]] | None, over_http: bool
) -> None:
    with ORSServer([environment]) as server:
        target = server.url if over_http else environment
        report = check_environment(target, finishing_call=finishing_call, limits=LIMITS)
        assert report.ok, str(report)
        assert server.open_sessions == []
    unchecked = {finding.check for finding in report.findings if finding.ok is None}
    assert (Check.FINISHES in unchecked) == (finishing_call is None)
    assert unchecked <= {Check.FINISHES, Check.BAD_ARGUMENTS}


def test_one_of_several_environments_on_a_server_is_checked(pair_server: ORSServer) -> None:
    for environment, call in ((OneEnvironment, "one"), (TwoEnvironment, "two")):
        report = check_environment(pair_server.url, env_name=environment.__name__, finishing_call=(call, {}))
        assert report.ok, str(report)
        assert environment.__name__.lower() in str(report)


def broken(*args: Any, **options: Any) -> dict[Check, str]:
    report = check_environment(*args, limits=LIMITS, **options)
    assert not report.ok
    assert [finding.check for finding in report.findings] == list(Check)
    return {finding.check: finding.detail for finding in report.broken}


@pytest.mark.parametrize("over_http", [True, False])
def test_what_an_environment_breaks_is_reported(over_http: bool) -> None:
    def found(environment: type, **options: Any) -> dict[Check, str]:
        with ORSServer([environment]) as server:
            return broken(server.url if over_http else environment, **options)

    unfair = found(UnfairEnvironment, finishing_call=("win", {}))
    assert set(unfair) == {Check.TASKS, Check.PROMPT, Check.FINISHES}
    assert unfair[Check.TASKS] == "task 0 is {'target': 'a'} on its own, and {'target': 'another'} in a range"
    assert "does not finish" in unfair[Check.FINISHES]
    assert "0 tasks" in found(EmptyEnvironment)[Check.NUM_TASKS]
    assert "no sandbox left" in found(BrokenSetupEnvironment)[Check.PROMPT]
    assert "is refused: not_found" in found(EchoEnvironment, finishing_call=("nope", {}))[Check.FINISHES]
    assert "'validation' was asked for" in found(EchoEnvironment, split="validation")[Check.SPLITS]


def test_a_split_of_another_name_is_found() -> None:
    class TestOnly(Base):
        @classmethod
        def list_splits(cls) -> list[Any]:
            return ["test"]

        @tool
        def win(self) -> ToolOutput:
            """Win."""
            return output("won", 1.0, finished=True)

    report = check_environment(TestOnly, finishing_call=("win", {}))
    assert report.ok, str(report)
    assert "1 in split 'test'" in str(report)


def test_a_server_that_is_not_there_breaks_one_check_and_leaves_the_others_unchecked(server: FaultServer) -> None:
    server.stop()
    report = check_environment(server.url, limits=LIMITS)
    assert [finding.check for finding in report.broken] == [Check.CONNECTS]
    assert {finding.ok for finding in report.findings[1:]} == {None}
    assert str(report).startswith(f"{server.url}: 1 broken\n  BROKEN can be reached: environment 'checked': nobody")


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([Fault(FaultKind.ERROR, Phase.OPENING, times=None)], {Check.OPENS}),
        ([Fault(FaultKind.WRONG_SCHEMA, Phase.PROMPT)], {Check.PROMPT}),
        ([Fault(FaultKind.ERROR, Phase.CALL, tool="no_such_tool")], {Check.UNKNOWN_TOOL}),
        ([Fault(FaultKind.HANG, Phase.CALL, tool="work")], {Check.BAD_ARGUMENTS}),
        ([Fault(FaultKind.REFUSE, Phase.CLOSE, times=None)], {Check.CLOSES}),
        ([Fault(FaultKind.NAN, Phase.CALL, tool="win")], {Check.FINISHES}),
        ([Fault(FaultKind.RESTART, Phase.CLOSE)], {Check.INDEPENDENT}),
    ],
)
def test_a_fault_breaks_the_check_it_hits_and_is_never_raised(
    server: FaultServer, faults: list[Fault], expected: set[Check]
) -> None:
    server.faults = faults
    assert set(broken(server.url, finishing_call=("win", {}))) == expected


def test_arguments_that_cannot_be_right_are_raised() -> None:
    with pytest.raises(errors.SpecError, match="unknown option 'api_keys'"):
        check_environment("http://127.0.0.1:1", api_keys="x")


def test_a_fault_may_be_written_in_plain_words_and_a_wrong_one_is_refused() -> None:
    assert Fault("500", "call") == Fault(FaultKind.ERROR, Phase.CALL)  # type: ignore[arg-type]  # what is accepted too
    with pytest.raises(errors.SpecError, match="is no fault; accepted kinds: "):
        Fault("501", "opening")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(errors.SpecError, match="accepted: a tool's name and its arguments"):
        check_environment("http://127.0.0.1:1", finishing_call="echo")  # type: ignore[arg-type]  # what is refused
