"""What a session is opened with: toolset, variant, environment variables, secrets with their domains."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from openreward.environments import ToolOutput, tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from multienv import EnvSpec, Limits, MultiEnvSpec, errors
from multienv.sessions import session_loop
from multienv.sessions.client import make_source
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from tests.support.environments import Base, EchoEnvironment, output
from tests.support.fakes import said
from tests.support.servers import AppServer, ORSServer


class Box:
    """In place of a sandbox: says what it was told to run."""

    async def run(self, command: str, **_: Any) -> tuple[str, int]:
        return f"ran {command}", 0


class BoxedEnvironment(Base):
    """It can host the SDK's toolsets, and has a tool of the name that one of theirs has."""

    def __init__(self, task_spec: Any, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec)
        self.sandbox = Box()

    @tool
    def ls(self) -> ToolOutput:
        """The environment's own."""
        return output("own")

    @tool
    def win(self) -> ToolOutput:
        """Win."""
        return output("won", 1.0, finished=True)


@pytest.fixture(scope="module")
def boxed_server() -> Iterator[ORSServer]:
    with ORSServer([BoxedEnvironment]) as server:
        yield server


@pytest.fixture
def faulty() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def bodies(server: FaultServer, route: str) -> list[Any]:
    return [request.body for request in server.requests if request.route == route]


# Toolsets


@pytest.mark.parametrize("is_served", [True, False])
@pytest.mark.parametrize("discovers", [True, False])
def test_a_toolsets_tools_take_the_place_of_the_environments_own(
    boxed_server: ORSServer, is_served: bool, discovers: bool
) -> None:
    target = boxed_server.url if is_served else BoxedEnvironment
    declared = EnvSpec(target, toolset="cli", discover_task_tools=discovers)
    with MultiEnvSpec({"boxed": declared}) as spec:
        adapter: Any = spec.environment_factory["boxed"]()
        assert "own" not in str(type(adapter).ls.__doc__), "the method stands for the toolset's tool"
        adapter.reset(task_index=0)
        assert {"bash", "ls", "read", "todo_write", "win"} <= set(adapter._offered().shown)
        assert "path" in adapter._offered().tools["ls"].spec.input_schema["properties"]
        assert said(adapter.ls, path="/tmp") == "ran ls -la /tmp\n\n(exit 0)"
        assert said(adapter.win) == "won"
        assert adapter.finished


def test_a_toolset_that_the_environment_cannot_host_fails_its_own_episodes(echo_server: ORSServer) -> None:
    limits = Limits(max_retries=0)
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, toolset="cli", limits=limits)}) as spec:
        adapter: Any = spec.environment_factory["echo"]()
        with pytest.warns(RuntimeWarning, match=r"requires `env\.sandbox` to be set"):
            adapter.reset(task_index=0)
        assert adapter.episode.status == "failed"


@pytest.mark.parametrize("toolset", ["claude-code", "codex"])
def test_the_toolsets_name_is_posted_when_a_session_is_made(faulty: FaultServer, toolset: str) -> None:
    with MultiEnvSpec({"env": EnvSpec(faulty.url, toolset=toolset, discover_task_tools=False)}) as spec:
        spec.environment_factory["env"]().reset(task_index=1)
    assert [body["toolset_name"] for body in bodies(faulty, "/create")] == [toolset] * 2, "one to learn its tools"
    assert {body["index"] for body in bodies(faulty, "/create")} == {0, 1}


def test_without_a_toolset_none_is_posted(faulty: FaultServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(faulty.url, discover_task_tools=False)}) as spec:
        spec.environment_factory["env"]().reset(task_index=1)
    (body,) = bodies(faulty, "/create")
    assert body == {"split": "train", "index": 1, "env_name": "fault"}
    assert bodies(faulty, "/create_session") == [{}, {}], "the first one reads the tools"


@pytest.mark.parametrize("is_served", [True, False])
def test_a_toolset_that_the_sdk_does_not_have_is_told_with_the_near_ones(
    echo_server: ORSServer, is_served: bool
) -> None:
    declared = EnvSpec(echo_server.url if is_served else EchoEnvironment, toolset="claude_code")
    echo_server.requests.clear()
    words = (
        r"environment 'echo': the SDK has no toolset 'claude_code' .did you mean 'claude-code'.*accepted: .*cli, codex"
    )
    with MultiEnvSpec({"echo": declared}) as spec, pytest.raises(errors.SpecError, match=words):
        _ = spec.environment_factory
    assert echo_server.requests == [], "before anything is asked"


# Variants


@pytest.mark.parametrize("options", [{"variant": "TwoEnvironment"}, {"env_name": "twoenvironment"}])
def test_a_variant_chooses_the_routes_as_an_env_name_does(pair_server: ORSServer, options: dict[str, Any]) -> None:
    pair_server.requests.clear()
    with MultiEnvSpec({"two": EnvSpec(pair_server.url, **options)}) as spec:
        adapter: Any = spec.environment_factory["two"]()
        adapter.reset(task_index=0)
        assert said(adapter.two) == "two"
    routes = {path.split("/")[1] for path in pair_server.paths() if path.count("/") == 2}
    assert routes == {"twoenvironment"}


def test_beside_a_variant_the_env_name_is_that_of_the_deployment(pair_server: ORSServer) -> None:
    pair_server.requests.clear()
    declared = EnvSpec(pair_server.url, variant="twoenvironment", env_name="Deployed")
    with MultiEnvSpec({"two": declared}) as spec:
        adapter: Any = spec.environment_factory["two"]()
        adapter.reset(task_index=0)
        assert said(adapter.two) == "two"
    deployments = {headers["x-deployment"] for _, _, headers in pair_server.requests if "x-deployment" in headers}
    assert deployments == {"Deployed"}
    with MultiEnvSpec({"two": EnvSpec(pair_server.url, variant="three")}) as spec:
        with pytest.raises(errors.UnknownEnvironmentError, match="holds no environment 'three'"):
            _ = spec.environment_factory


# Environment variables and secrets

OVERRIDES = {"MODE": "sk-override-one", "TOKEN": "sk-override-two"}


def test_environment_variables_are_posted_with_the_session_and_shown_nowhere(
    faulty: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(max_retries=0)
    declared = EnvSpec(faulty.url, env_overrides=OVERRIDES, limits=limits, discover_task_tools=False)
    said_so = "the container did not start: MODE=sk-override-one"
    shown: list[str] = [repr(declared), str(declared), repr(declared.env_overrides), declared.model_dump_json()]
    with caplog.at_level(logging.DEBUG, "multienv"), MultiEnvSpec({"env": declared}) as spec:
        adapter: Any = spec.environment_factory["env"]()
        adapter.reset(task_index=1)
        faulty.faults = [Fault(FaultKind.ERROR, Phase.OPENING, detail=said_so)]
        with pytest.warns(RuntimeWarning, match="the container did not start") as caught:
            adapter.reset(task_index=2)
        shown += [repr(spec), repr(adapter), adapter.episode.reason, *(str(one.message) for one in caught)]
        assert "MODE=[secret]" in adapter.episode.reason
    assert bodies(faulty, "/create_session")[1:] == [{"env": OVERRIDES}] * 2
    assert all("env" not in body for body in bodies(faulty, "/create"))
    for text in [*shown, caplog.text]:
        assert "sk-override" not in text
    assert pickle.loads(pickle.dumps(declared)) == declared


def test_each_secret_goes_with_exactly_its_domains(faulty: FaultServer) -> None:
    secrets = {
        "HF_TOKEN": "sk-a",
        "OWN": "sk-b",
        "ONE": ("sk-c", ["example.org"]),
        "OPENAI_API_KEY": ("sk-d", ["one.example.org", "two.example.org"]),
        "NONE": ("sk-e", []),
    }
    with MultiEnvSpec({"env": EnvSpec(faulty.url, secrets=secrets, discover_task_tools=False)}) as spec:
        spec.environment_factory["env"]().reset(task_index=0)
    assert faulty.secrets == [
        {
            "HF_TOKEN": {"value": "sk-a", "allowed_domains": ["huggingface.co", "api-inference.huggingface.co"]},
            "OWN": {"value": "sk-b", "allowed_domains": ["127.0.0.1"]},
            "ONE": {"value": "sk-c", "allowed_domains": ["example.org"]},
            "OPENAI_API_KEY": {"value": "sk-d", "allowed_domains": ["one.example.org", "two.example.org"]},
            "NONE": {"value": "sk-e", "allowed_domains": []},
        }
    ]


@pytest.mark.parametrize("option", [{"variant": "x"}, {"env_overrides": {"A": "b"}}, {"env_name": "x"}])
def test_what_only_servers_know_is_refused_for_a_class(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(errors.SpecError, match=f"{name} is for servers; an Environment class runs in this process"):
        EnvSpec(EchoEnvironment, **option)


@pytest.mark.parametrize("wrong", [{"MODE": 3}, ["MODE"], "MODE=fast"])
def test_environment_variables_of_another_form_are_refused_unshown(wrong: Any) -> None:
    with pytest.raises(errors.SpecError, match="env_overrides has the wrong form; accepted: a mapping from the name"):
        EnvSpec("http://127.0.0.1:1", env_overrides=wrong)


# Required secrets


class Platform(AppServer):
    """The one route of the platform's API that is asked."""

    answers: ClassVar[dict[str, Any]] = {"needy": {"secrets": ["OPENAI_API_KEY", "OWN"]}, "odd": {"other": 1}}

    def __init__(self) -> None:
        path = "/v1/environments/{owner}/{name}/required-secrets"
        super().__init__(Starlette(routes=[Route(path, self._answer)]))

    async def _answer(self, request: Request) -> Response:
        if (key := request.headers.get("x-api-key")) != "sk-platform":
            return JSONResponse({"detail": f"no such key {key}"}, 401)
        return JSONResponse(self.answers[request.path_params["name"]])


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with Platform() as server:
        monkeypatch.setenv("OPENREWARD_API_URL", server.url)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", "http://127.0.0.1:9")
        yield server


def required_secrets(target: Any, **options: Any) -> tuple[str, ...]:
    source = make_source("env", EnvSpec(target, **options))

    async def ask() -> tuple[str, ...]:
        await source.connect()
        try:
            return tuple(await source.list_required_secrets())
        finally:
            await source.aclose()

    return session_loop().run(ask())


def test_the_platform_says_which_secrets_an_environment_needs(platform: Platform) -> None:
    assert required_secrets("owner/needy", api_key="sk-platform") == ("OPENAI_API_KEY", "OWN")
    assert platform.paths() == ["/v1/environments/owner/needy/required-secrets"]
    with pytest.raises(errors.AuthenticationError, match="asking which secrets it needs") as refused:
        required_secrets("owner/needy", api_key="sk-other")
    assert "sk-other" not in str(refused.value)
    with pytest.raises(errors.ProtocolError, match="asking which secrets it needs.*lacks a field"):
        required_secrets("owner/odd", api_key="sk-platform")


@pytest.mark.parametrize("elsewhere", ["https://sessions.example.org", "https://127.0.0.1:9"])
def test_a_key_is_not_sent_to_an_api_on_another_host_or_without_tls(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    monkeypatch.setenv("OPENREWARD_SESSION_URL", elsewhere)
    with pytest.raises(errors.AuthenticationError, match="is not sent to") as refused:
        required_secrets("owner/needy", api_key="sk-platform")
    assert platform.requests == []
    assert "sk-platform" not in str(refused.value)


def test_the_platforms_own_key_is_not_sent_to_a_redirected_api(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENREWARD_SESSION_URL")
    monkeypatch.setenv("OPENREWARD_API_KEY", "sk-platform")
    with pytest.raises(errors.AuthenticationError, match="is not sent to"):
        required_secrets("owner/needy")
    assert platform.requests == []


def test_a_server_and_a_class_do_not_say_which_secrets_they_need(echo_server: ORSServer) -> None:
    assert required_secrets(echo_server.url) == ()
    assert required_secrets(EchoEnvironment) == ()
