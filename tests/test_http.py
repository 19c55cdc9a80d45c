"""What holds for servers only: which one is reached, what it is asked, what it is told, and what its faults cost."""

from __future__ import annotations

import json
import logging
import socket
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec, errors
from multienv.testing import Dialect, Fault, FaultKind, FaultServer, Phase
from tests.support.environments import ClimbEnvironment, OneEnvironment, TwoEnvironment
from tests.support.fakes import said
from tests.support.servers import ORSServer

KEY = "sk-platform-key"


@pytest.fixture
def faulty() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server
        assert not server.open_sessions, "a session was left on the server"


def one(target: str, **options: Any) -> MultiEnvSpec:
    return MultiEnvSpec({"env": EnvSpec(target, discover_task_tools=False, **options)})


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# Which server, which environment


def test_a_given_url_wins_over_the_process_wide_variables_and_no_key_leaves_its_host(
    monkeypatch: pytest.MonkeyPatch, faulty: FaultServer, climb_server: ORSServer, echo_server: ORSServer
) -> None:
    for variable in ("OPENREWARD_URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(variable, faulty.url)
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    faulty.forget_requests()
    climb_server.requests.clear()
    environments = {"climb": EnvSpec(climb_server.url, api_key="for-climb"), "echo": echo_server.url}
    with MultiEnvSpec(environments) as spec:
        assert spec.train_dataset["environment"] == ["climb"] * 3 + ["echo"] * 3
        for name, factory in spec.environment_factory.items():
            adapter: Any = factory()
            adapter.reset(task_index=0)
            assert adapter.echo(text="hello") == {"climb": "hello", "echo": "match"}[name]
    assert faulty.requests == [], "the wrong server was asked"
    sent = [headers for _, _, headers in climb_server.requests + echo_server.requests]
    assert KEY not in str(sent)
    assert not any("x-api-key" in headers or "x-secrets" in headers for _, _, headers in echo_server.requests)
    keys = {headers.get("x-api-key") for _, path, headers in climb_server.requests if path != "/list_environments"}
    assert keys == {"for-climb"}
    assert not any("x-secrets" in headers for _, _, headers in climb_server.requests)


def test_env_name_selects_the_environment_without_regard_to_case(pair_server: ORSServer) -> None:
    environments = {
        "default": pair_server.url,
        "two": EnvSpec(pair_server.url, env_name="TwoEnvironment"),
    }
    with MultiEnvSpec(environments) as spec:
        assert spec.train_dataset["target"] == ["one", "two"]
        adapter: Any = spec.environment_factory["two"]()
        adapter.reset(task_index=0)
        assert (adapter.two(), adapter.reward) == ("two", 0.5)
    assert pair_server.open_sessions == []


def test_a_server_that_holds_several_says_which_one_is_used(
    pair_server: ORSServer, caplog: pytest.LogCaptureFixture
) -> None:
    with one(pair_server.url) as spec, caplog.at_level(logging.WARNING, logger="multienv"):
        assert spec.train_dataset["target"] == ["one"]
    assert "holds oneenvironment, twoenvironment; its first one is used, set env_name=" in caplog.text


def test_an_unknown_env_name_is_answered_with_the_known_ones(pair_server: ORSServer) -> None:
    with one(pair_server.url, env_name="twoenviroment") as spec:
        with pytest.raises(errors.UnknownEnvironmentError, match=r"did you mean 'twoenvironment'\?\); known: oneenv"):
            _ = spec.train_dataset


def test_the_same_tasks_under_two_names_are_refused_once_the_server_has_been_asked(pair_server: ORSServer) -> None:
    environments = {"one": pair_server.url, "also_one": EnvSpec(pair_server.url, env_name="ONEENVIRONMENT")}
    with MultiEnvSpec(environments) as spec:
        with pytest.raises(errors.OverlappingTasksError, match="'one' and 'also_one' both hold task 0"):
            _ = spec.train_dataset


def test_the_dataset_needs_few_requests_and_each_thing_is_fetched_once(echo_server: ORSServer) -> None:
    echo_server.requests.clear()
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, num_tasks=2)}) as spec:
        assert echo_server.requests == [], "nothing happens before first use"
        assert len(spec.train_dataset) == 2
        assert len(echo_server.requests) <= 10
        _ = spec.environment_factory
        num_requests = len(echo_server.requests)
        _ = spec.train_dataset, spec.environment_factory, spec.meta_environment_factory, spec.trainer_kwargs()
        assert len(echo_server.requests) == num_requests


def test_a_server_without_a_list_of_environments_works(faulty: FaultServer) -> None:
    faulty.dialect = Dialect(names=None)
    with one(faulty.url) as spec:
        assert spec.train_dataset["n"] == [0, 1, 2]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_server_that_leaves_env_name_out_of_its_answers_works(faulty: FaultServer, has_ranges: bool) -> None:
    faulty.dialect = Dialect(has_env_name=False, has_ranges=has_ranges)
    with one(faulty.url, indices=[2, 0]) as spec:
        assert spec.train_dataset["n"] == [2, 0]
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(**spec.train_dataset[0])
        assert (adapter.win(), adapter.reward) == ("won", 1.0)


# Reaching it


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_refused_connection_fails_within_two_seconds(host: str) -> None:
    url = f"http://{host}:{closed_port()}"
    started = time.monotonic()
    with one(url) as spec, pytest.raises(errors.ServerUnreachableError, match=f"environment 'env': nobody .* {url}"):
        _ = spec.train_dataset
    assert time.monotonic() - started < 2.5


def test_https_at_a_server_that_speaks_http_is_answered_with_the_right_target(echo_server: ORSServer) -> None:
    url = echo_server.url.replace("http://", "https://")
    advice = f"the server speaks http; write {echo_server.url}$"
    with one(url) as spec, pytest.raises(errors.ServerUnreachableError, match=advice):
        _ = spec.train_dataset


def test_an_unknown_host_fails_within_two_seconds() -> None:
    started = time.monotonic()
    with one("http://no-such-host.invalid:8000") as spec, pytest.raises(errors.ServerUnreachableError, match="env"):
        _ = spec.train_dataset
    assert time.monotonic() - started < 2.5


def test_a_server_that_is_still_starting_is_waited_for_with_one_log_line(
    faulty: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.faults = [
        Fault(FaultKind.STARTING, Phase.LISTING),
        Fault(FaultKind.BAD_GATEWAY, Phase.LISTING),
        Fault(FaultKind.HANG, Phase.LISTING, seconds=0.5),
    ]
    with one(faulty.url) as spec, caplog.at_level(logging.WARNING, logger="multienv"):
        assert len(spec.train_dataset) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"environment 'env': waiting for {faulty.url} (status 503)"
    ]


def test_a_server_that_does_not_become_ready_is_given_up(faulty: FaultServer) -> None:
    faulty.faults = [Fault(FaultKind.STARTING, Phase.LISTING, times=None)]
    with one(faulty.url, limits=Limits(connect_timeout_s=0.5)) as spec:
        with pytest.raises(errors.ServerUnreachableError, match=r"not ready within 0.5 s \(status 503\)"):
            _ = spec.train_dataset


@pytest.mark.parametrize("names", ["hello", {"detail": "x"}, [], [1]])
def test_something_that_is_no_ors_server_is_named(faulty: FaultServer, names: Any) -> None:
    faulty.dialect = Dialect(names=names)
    with one(faulty.url) as spec, pytest.raises(errors.ProtocolError, match="is this an ORS server"):
        _ = spec.train_dataset


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_named_and_not_shown(faulty: FaultServer, status: int) -> None:
    faulty.faults = [Fault(FaultKind.UNAUTHORIZED, Phase.LISTING, status=status)]
    with one(faulty.url, api_key=KEY) as spec:
        with pytest.raises(
            errors.AuthenticationError, match="environment 'env'.*give the key of this server"
        ) as caught:
            _ = spec.train_dataset
    assert KEY not in str(caught.value)


# Keys


def test_a_catalogue_target_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    with one("owner/name") as spec, pytest.raises(errors.AuthenticationError, match="set OPENREWARD_API_KEY, or pass"):
        _ = spec.train_dataset


def test_a_redirected_platform_gets_the_declared_key_and_not_the_variables(
    monkeypatch: pytest.MonkeyPatch, faulty: FaultServer
) -> None:
    monkeypatch.setenv("OPENREWARD_SESSION_URL", faulty.url)
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    with one("owner/name") as spec:
        with pytest.raises(
            errors.AuthenticationError, match="OPENREWARD_API_KEY is not sent to 127.0.0.1; pass api_key"
        ):
            _ = spec.train_dataset
    assert faulty.requests == []
    with one("owner/name", api_key="declared") as spec:
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(task_index=0)
    assert all(request.headers["x-api-key"] == "declared" for request in faulty.requests)
    assert KEY not in str(faulty.requests)
    assert faulty.secrets[-1]["api_key"]["value"] == "declared", "the key is forwarded as a session secret, as in TRL"
    assert {request.headers["x-deployment"] for request in faulty.requests if "task" in request.path} <= {"owner/name"}


def test_secrets_go_with_the_domains_they_are_for(faulty: FaultServer) -> None:
    secrets = {"OPENAI_API_KEY": "a", "OWN": "b", "BOUND": ("c", ["example.org"])}
    with one(faulty.url, secrets=secrets, api_key="key") as spec:
        spec.environment_factory["env"]().reset(task_index=0)
    assert faulty.secrets[-1] == {
        "OPENAI_API_KEY": {"value": "a", "allowed_domains": ["api.openai.com"]},
        "OWN": {"value": "b", "allowed_domains": ["127.0.0.1"]},
        "BOUND": {"value": "c", "allowed_domains": ["example.org"]},
    }


def test_a_key_does_not_follow_a_redirect_to_another_host(faulty: FaultServer) -> None:
    with FaultServer() as other:
        faulty.dialect = Dialect(redirects_to=other.url)
        with one(faulty.url, api_key=KEY) as spec, pytest.raises(errors.ServerError, match="not sent to another host"):
            _ = spec.train_dataset
        assert other.requests == []


def test_nothing_secret_is_shown_where_the_list_of_environments_repeats_it(faulty: FaultServer) -> None:
    secret, variable = 'se"cret', "variable-value"
    faulty.faults = [Fault(FaultKind.ERROR, Phase.LISTING, detail=f"{{key}} {secret} {variable}")]
    options = {"secrets": {"OWN": secret}, "env_overrides": {"MODE": variable}}
    with one(faulty.url, api_key='sk-"quoted"', **options) as spec, pytest.raises(errors.ProtocolError) as refused:
        _ = spec.train_dataset
    assert "[secret] [secret] [secret]" in str(refused.value)


def test_a_key_is_not_shown_even_if_the_server_repeats_it(
    faulty: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.faults = [Fault(FaultKind.ERROR, Phase.CALL, detail="bad key {key}")]
    with one(faulty.url, api_key=KEY) as spec, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(task_index=0)
        said(adapter.win)
    assert "bad key [secret]" in adapter.episode.reason
    for text in (str(adapter.episode), repr(adapter), caplog.text, *(str(warning.message) for warning in caught)):
        assert KEY not in text


# A tool call


@pytest.mark.parametrize(
    ("kinds", "posts"),
    [
        ([FaultKind.STARTING, FaultKind.STARTING], 3),
        ([FaultKind.TOO_MANY], 2),
        ([FaultKind.DROP], 2),
        ([FaultKind.DROP, FaultKind.BAD_GATEWAY, FaultKind.DROP], 4),
    ],
)
def test_a_call_that_did_not_run_or_can_be_resumed_is_posted_again_and_runs_once(
    faulty: FaultServer, kinds: list[FaultKind], posts: int
) -> None:
    faulty.faults = [Fault(kind, Phase.CALL) for kind in kinds]
    with one(faulty.url) as spec:
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(task_index=0)
        assert (adapter.win(), adapter.reward) == ("won", 1.0)
    assert len(faulty.runs) == 1
    assert faulty.num_requests["/call"] == posts


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.BAD_GATEWAY, Phase.CALL),
        Fault(FaultKind.LOST, Phase.CALL),
        Fault(FaultKind.REFUSE, Phase.CALL),
        Fault(FaultKind.ERROR, Phase.CALL),
        Fault(FaultKind.ERROR, Phase.CALL, status=502),
        Fault(FaultKind.ERROR, Phase.CALL, status=503),
        Fault(FaultKind.UNAUTHORIZED, Phase.CALL),
        Fault(FaultKind.REAPED, Phase.CALL),
        Fault(FaultKind.MALFORMED, Phase.CALL),
        Fault(FaultKind.NAN, Phase.CALL),
    ],
    ids=str,
)
def test_a_call_that_may_have_run_is_not_posted_again_and_fails_the_episode(faulty: FaultServer, fault: Fault) -> None:
    faulty.faults = [fault]
    with one(faulty.url) as spec, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(task_index=0)
        said(adapter.win)
        assert (adapter.episode.status, adapter.reward) == (EpisodeStatus.FAILED, None)
        assert len(faulty.runs) <= 1
        assert faulty.num_requests["/call"] == 1


def test_a_server_that_dies_fails_the_episode_and_is_used_again_when_it_is_back() -> None:
    server = ORSServer([ClimbEnvironment]).start()
    with one(server.url, limits=Limits(close_timeout_s=1)) as spec, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(task_index=0)
        server.stop()
        said(adapter.up)
        assert (adapter.episode.status, adapter.reward) == (EpisodeStatus.FAILED, None)
        adapter.reset(task_index=0)
        assert "nobody accepts a connection" in adapter.episode.reason
        with ORSServer([ClimbEnvironment], port=server.port) as again:
            adapter.reset(task_index=0)
            assert adapter.up() == "1"
            spec.close()
            assert again.open_sessions == []


def test_metadata_of_two_environments_never_mixes(pair_server: ORSServer) -> None:
    environments = {"one": pair_server.url, "two": EnvSpec(pair_server.url, env_name=TwoEnvironment.__name__)}
    with MultiEnvSpec(environments) as spec:
        dataset = spec.train_dataset
        assert "level" not in dataset.column_names, "int in one, str in the other"
        assert dataset["extra"] == [None, [1]]
        assert [json.loads(task) for task in dataset["task"]] == [OneEnvironment.tasks[0], TwoEnvironment.tasks[0]]
