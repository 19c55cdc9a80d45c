"""What hostile servers, odd answers and bad luck must not do."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from openreward.environments import ToolOutput, tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec, errors
from multienv.sessions.keys import masked
from multienv.types import ToolSpec
from tests.support.environments import Base, ClimbEnvironment, output
from tests.support.fakes import said, scripted_factory
from tests.support.servers import AppServer, ORSServer

SHORT = Limits(connect_timeout_s=1, open_timeout_s=1.5, prompt_timeout_s=2, tool_timeout_s=2, close_timeout_s=1)
ROOT = Path(__file__).parent.parent


def server_of(**routes: Any) -> AppServer:
    """A server with `/list_environments` and the given endpoints, by route name."""

    async def listed(_: Request) -> Response:
        return JSONResponse(["env"])

    endpoints = {"list_environments": listed} | routes
    paths = {name: f"/{name}" for name in endpoints}
    return AppServer(
        Starlette(
            routes=[Route(paths[name], endpoint, methods=["GET", "POST"]) for name, endpoint in endpoints.items()]
        )
    )


@pytest.mark.parametrize("header", ["Location", "URI"])
def test_no_kind_of_redirect_takes_a_key_elsewhere(header: str) -> None:
    with server_of() as other:

        async def elsewhere(_: Request) -> Response:
            return Response(status_code=308, headers={header: f"{other.url}/create_session"})

        with server_of(create_session=elsewhere) as server:
            with MultiEnvSpec({"env": EnvSpec(server.url, api_key="sk-own")}) as spec:
                with pytest.raises(errors.ServerError, match="not sent to another host"):
                    _ = spec.train_dataset
        assert other.requests == []


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    async def silent(_: Request) -> Response:
        await asyncio.sleep(3600)
        return Response()

    with server_of(create_session=silent) as server:
        spec = MultiEnvSpec({"env": EnvSpec(server.url, limits=SHORT)})
        started = time.monotonic()
        with spec, pytest.raises(errors.SessionError, match="no answer within 1.5 s"):
            _ = spec.train_dataset
        assert time.monotonic() - started < 8


def test_the_first_error_is_raised_without_waiting_for_slower_environments() -> None:
    async def starting(_: Request) -> Response:
        return Response(status_code=503)

    with AppServer(Starlette(routes=[Route("/list_environments", starting)])) as server:
        environments = {
            "down": "http://127.0.0.1:1",
            "starting": EnvSpec(server.url, limits=Limits(connect_timeout_s=60)),
        }
        started = time.monotonic()
        with MultiEnvSpec(environments) as spec, pytest.raises(errors.ServerUnreachableError, match="'down'"):
            _ = spec.train_dataset
        assert time.monotonic() - started < 5


def test_one_specs_slow_server_does_not_hold_up_another_spec(climb_server: ORSServer) -> None:
    release = threading.Event()

    async def waiting(_: Request) -> Response:
        while not release.is_set():  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.01)
        return JSONResponse(["env"])

    with AppServer(Starlette(routes=[Route("/list_environments", waiting)])) as server:
        slow = MultiEnvSpec({"slow": server.url})

        def read() -> None:
            with pytest.raises(errors.MultiEnvError):
                _ = slow.train_dataset

        reading = threading.Thread(target=read)
        reading.start()
        with MultiEnvSpec({"climb": climb_server.url}) as spec:
            assert len(spec.train_dataset) == 3
        assert reading.is_alive()
        release.set()
        reading.join(20)
        slow.close()


def test_an_in_process_environment_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    class Leaky(Base):
        def __init__(self, task_spec: Any, secrets: dict[str, str] | None = None) -> None:
            super().__init__(task_spec)
            self.secrets = secrets or {}

        @tool
        def leak(self) -> ToolOutput:
            """Leak."""
            raise RuntimeError(f"401 for {self.secrets!r}")

    spec = EnvSpec(Leaky, secrets={"K": "sk-'very'-secret"}, discover_task_tools=False)
    with MultiEnvSpec({"leaky": spec}) as mixture, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter: Any = mixture.environment_factory["leaky"]()
        adapter.reset(task_index=0)
        with caplog.at_level(logging.DEBUG, logger="multienv"):
            said(adapter.leak)
    shown = [adapter.episode.reason, caplog.text, *(str(warning.message) for warning in caught)]
    assert not any("very" in text for text in shown)
    assert "[secret]" in adapter.episode.reason
    assert masked("key 'a\\nb-secret'", {"a\nb-secret"}) == "key '[secret]'"


def test_a_tool_that_tries_to_leave_the_process_ends_its_episode_only() -> None:
    class Leaver(Base):
        @tool
        def leave(self) -> ToolOutput:
            """Leave."""
            sys.exit(3)

        @tool
        async def stay(self) -> ToolOutput:
            """Stay."""
            return output("stayed", 1.0, finished=True)

    spec = EnvSpec(Leaver, limits=SHORT, discover_task_tools=False)
    with MultiEnvSpec({"leaver": spec}) as mixture, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        adapter: Any = mixture.environment_factory["leaver"]()
        adapter.reset(task_index=0)
        said(adapter.leave)
        assert "SystemExit(3)" in adapter.episode.reason
        adapter.reset(task_index=0)
        assert (adapter.stay(), adapter.reward) == ("stayed", 1.0)


@pytest.mark.parametrize("is_in_process", [False, True])
def test_closing_ends_a_call_in_flight(climb_server: ORSServer, is_in_process: bool) -> None:
    target: Any = ClimbEnvironment if is_in_process else climb_server.url
    spec = MultiEnvSpec({"climb": EnvSpec(target, discover_task_tools=False)})
    adapter: Any = spec.environment_factory["climb"]()
    adapter.reset(task_index=0)

    def call() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            said(adapter.hangs)

    calling = threading.Thread(target=call)
    calling.start()
    while not climb_server.ors._active_envs and not is_in_process:
        time.sleep(0.01)
    time.sleep(0.2)  # the call is on its way
    spec.close()
    calling.join(10)
    assert not calling.is_alive()
    assert adapter.episode.status is EpisodeStatus.FAILED


def test_a_tool_that_blocks_a_thread_for_ever_does_not_keep_the_process_alive() -> None:
    program = (
        "import time, warnings; warnings.simplefilter('ignore')\n"
        "from openreward.environments import ToolOutput, tool\n"
        "from tests.support.environments import Base\n"
        "from tests.support.fakes import said\n"
        "from multienv import EnvSpec, Limits, MultiEnvSpec\n"
        "class Stuck(Base):\n"
        "    @tool\n"
        "    def stick(self) -> ToolOutput:\n"
        "        '''Stick.'''\n"
        "        time.sleep(3600)\n"
        "limits = Limits(tool_timeout_s=0.5, close_timeout_s=1)\n"
        "with MultiEnvSpec({'stuck': EnvSpec(Stuck, limits=limits, discover_task_tools=False)}) as spec:\n"
        "    adapter = spec.environment_factory['stuck']()\n"
        "    adapter.reset(task_index=0)\n"
        "    said(adapter.stick)\n"
        "    print(adapter.episode.status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "failed\n"), done.stderr


@pytest.mark.parametrize("answer", [[], {"tools": 5}, {"tools": [{"name": "x", "input_schema": 5}]}, "x"])
def test_an_odd_answer_is_a_protocol_error(answer: Any) -> None:
    async def tools(_: Request) -> Response:
        return JSONResponse(answer)

    async def session(_: Request) -> Response:
        return Response(
            "event: task_id\r\ndata: sid\r\n\r\nevent: end\r\ndata: \r\n\r\n", media_type="text/event-stream"
        )

    app = Starlette(
        routes=[
            Route("/list_environments", lambda _: JSONResponse(["env"])),
            Route("/create_session", session, methods=["POST"]),
            Route("/delete_session", lambda _: JSONResponse({}), methods=["POST"]),
            Route("/env/tools", tools),
        ]
    )
    with AppServer(app) as server, MultiEnvSpec({"env": server.url}) as spec:
        with pytest.raises(errors.ProtocolError, match="'env' at .* listing the tools"):
            _ = spec.environment_factory


@pytest.mark.parametrize(
    "schema", [{"properties": {"x": {"anyOf": 5}}, "required": 5}, {"properties": 5}, {"properties": {"x": 5}}]
)
def test_a_malformed_schema_loses_no_tool(schema: dict[str, Any]) -> None:
    factory = scripted_factory("env", tools=[ToolSpec("say", "Say.", schema)])
    assert "say" in vars(factory)
