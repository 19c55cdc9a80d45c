"""Tools that differ from task to task, and arguments that are refused before they are sent."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openreward.environments import ToolOutput, tool
from openreward.environments.types import ListToolsOutput, TerminalToolSpec, ToolSpec

from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec, errors
from multienv.sessions.client import MAX_PROBES
from multienv.training.async_loop import ConcurrentRolloutLoop
from tests.support.environments import Base, ClimbEnvironment, VariedToolsEnvironment, output
from tests.support.fake_vllm import DrivenLoop, FakeVLLM, loop_options
from tests.support.fakes import said
from tests.support.kinds import KINDS, OURS, PLAIN, Watch, assert_closed, log_of, trained
from tests.support.servers import ORSServer
from tests.support.training import call, tokenizer

TARGETS = ("hello", "world", "moon")


@pytest.fixture(scope="module")
def varied_server() -> Iterator[ORSServer]:
    with ORSServer([VariedToolsEnvironment]) as server:
        yield server
        assert_closed(server)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    VariedToolsEnvironment.calls.clear()


def target_of(text: str) -> str:
    found = re.search(r"Echo '(\w+)'", text)
    assert found is not None, text
    return found[1]


def shown_tools(prompt: str) -> list[dict[str, Any]]:
    """The tools that a rendered prompt shows."""
    lines = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    return [json.loads(line)["function"] for line in lines]


def published(target: str) -> list[dict[str, Any]]:
    """The tools of a task, as its environment publishes them."""
    schema = VariedToolsEnvironment.schemas.get(target)
    nothing = {"type": "object", "properties": {}}
    own = (
        {"name": "special", "description": "Win.", "parameters": nothing}
        if schema is None
        else {"name": "press", "description": f"Press, in {target}.", "parameters": schema}
    )
    return [{"name": "look", "description": "Look around.", "parameters": nothing}, own]


class Play:
    """A policy that calls one tool per task, and keeps the prompts it was given."""

    def __init__(self, **calls: str) -> None:
        self.prompts: dict[str, str] = {}
        self._calls = calls

    def __call__(self, text: str, turn: int) -> str:
        target = target_of(text)
        if turn == 0:
            self.prompts[target] = text
        return self._calls.get(target, "done") if turn < 1 else "done"


OWN_TOOLS = {"hello": call("press", button="red"), "world": call("press", level=2), "moon": call("special")}


@pytest.mark.parametrize("options", [{}, {"is_concurrent": False}])
def test_each_prompt_shows_its_own_tasks_tools_and_they_are_called(
    varied_server: ORSServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    play = Play(**OWN_TOOLS)
    with MultiEnvSpec({"varied": varied_server.url}) as spec:
        assert not hasattr(spec.environment_factory["varied"], "special"), "only the first task was probed"
        trainer = trained(OURS, spec, play, tmp_path, **options)
    assert {target: shown_tools(play.prompts[target]) for target in TARGETS} == {
        target: published(target) for target in TARGETS
    }
    assert sorted(VariedToolsEnvironment.calls, key=str) == sorted(
        2 * [("hello", "press", {"button": "red"}), ("world", "press", {"level": 2}), ("moon", "special", {})], key=str
    )
    log = log_of(trainer)
    assert (log["rewards/varied/mean"], log["tools/failure_frequency"]) == (1.0, 0.0)
    assert list(trainer._env_tools) == ["varied"], "TRL's own table has its own keys again"


def test_async_grpo_shows_and_calls_each_tasks_own_tools(varied_server: ORSServer) -> None:
    play = Play(**OWN_TOOLS)
    with FakeVLLM(tokenizer(), play) as vllm, MultiEnvSpec({"varied": varied_server.url}) as spec:
        slots = spec.async_trainer_kwargs()
        slots["dataset"] = slots.pop("train_dataset")
        with DrivenLoop(ConcurrentRolloutLoop, **loop_options(tokenizer(), vllm.url, **slots)) as loop:
            samples = loop.take(6)
        assert_closed(varied_server)
    assert {target: shown_tools(play.prompts[target]) for target in TARGETS} == {
        target: published(target) for target in TARGETS
    }
    assert {sample.metrics["rewards/varied"] for sample in samples} == {1.0}


def test_a_call_to_a_tool_that_the_task_lacks_is_answered_with_those_it_has(
    varied_server: ORSServer, tmp_path: Path
) -> None:
    watch = Watch()
    play = Play(hello=call("special"), world=call("press", button="red"), moon=call("press", level=1))
    with MultiEnvSpec({"varied": varied_server.url}, reward_funcs=watch) as spec:
        log = log_of(trained(OURS, spec, play, tmp_path))
    said_to = {target: watch.of(target)[0]["completion"][1]["content"] for target in TARGETS}
    assert said_to["hello"] == str({"error": "'special' is not a tool of this task; its tools are: look, press"})
    assert said_to["moon"] == str({"error": "'press' is not a tool of this task; its tools are: look, special"})
    assert "level" in said_to["world"], "its own schema is asked"
    assert log["tools/failure_frequency"] == 1.0
    assert all(step.refused for row in watch.rows for step in row["episode"].steps)
    assert VariedToolsEnvironment.calls == []


@pytest.mark.parametrize("kind", [k for k in KINDS if k != OURS])
def test_trls_trainer_binds_what_the_probed_tasks_have(kind: str, varied_server: ORSServer, tmp_path: Path) -> None:
    watch = Watch()
    play = Play(hello=call("special"), world=call("special"), moon=call("special"))
    declared = {"varied": EnvSpec(varied_server.url, indices=[0, 2])}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        log = log_of(trained(kind, spec, play, tmp_path))
    assert [shown["name"] for shown in shown_tools(play.prompts["hello"])] == ["look", "press", "special"]
    told = str({"error": "'special' is not a tool of this task; its tools are: look, press"})
    assert {row["completion"][1]["content"] for row in watch.of("hello")} == {told}
    assert {row["completion"][1]["content"] for row in watch.of("moon")} == {"did special"}
    assert log["tools/failure_frequency"] == 0.5


def test_under_trls_trainer_arguments_are_checked_against_the_tasks_own_schema(
    varied_server: ORSServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    play = Play(hello=call("press", button="red"), world=call("press", button="red"))
    declared = {"varied": EnvSpec(varied_server.url, indices=[0, 1])}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec, caplog.at_level(logging.WARNING, "multienv"):
        trained(PLAIN, spec, play, tmp_path)
    assert "tool 'press' differs between tasks" in caplog.text
    assert [shown["description"] for shown in shown_tools(play.prompts["world"])][1] == "Press, in hello.", (
        "the first form"
    )
    assert [(target, name) for target, name, _ in VariedToolsEnvironment.calls] == [("hello", "press")] * 2
    (step,) = watch.of("world")[0]["episode"].steps
    assert step.refused
    assert "level" in step.text


def test_tools_are_named_as_the_methods_are_where_methods_are_what_the_policy_sees() -> None:
    class DashedEnvironment(Base):
        tasks: ClassVar[list[dict[str, Any]]] = [{"target": "one"}, {"target": "two"}]

        def list_task_tools(self) -> ListToolsOutput:
            name = "run-tests" if self.task_spec["target"] == "one" else "other-tool"
            return ListToolsOutput(tools=[ToolSpec(name=name, description="", input_schema=None)])

        @tool
        def look(self) -> ToolOutput:
            """Look."""
            return output("")

    with MultiEnvSpec({"dashed": EnvSpec(DashedEnvironment, indices=[0, 1])}) as spec:
        adapter: Any = spec.environment_factory["dashed"]()
        adapter.reset(task_index=0)
        assert said(adapter.other_tool) == "'other_tool' is not a tool of this task; its tools are: look, run_tests"


# Discovery


class ManyTasksEnvironment(Base):
    """A thousand tasks, each with a tool of its own."""

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return [{"target": str(index)} for index in range(1_000)]

    def list_task_tools(self) -> ListToolsOutput:
        name = f"tool_{self.task_spec['target']}"
        return ListToolsOutput(tools=[ToolSpec(name=name, description="", input_schema=None)])

    @tool
    def look(self) -> ToolOutput:
        """Look."""
        return output("")


@pytest.fixture(scope="module")
def many_server() -> Iterator[ORSServer]:
    with ORSServer([ManyTasksEnvironment]) as server:
        yield server
        assert_closed(server)


@pytest.mark.parametrize(
    ("options", "probed"),
    [
        ({"indices": range(64)}, [0, 9, 18, 27, 36, 45, 54, 63]),
        ({"indices": [7, 3, 3]}, [3, 7]),
        ({"num_tasks": 64}, [0]),
        ({}, [0]),
        ({"indices": range(64), "task_tools_discovery_index": 70}, [70]),
        ({"indices": range(64), "discover_task_tools": False}, []),
    ],
)
def test_discovery_opens_few_sessions_and_closes_them(
    many_server: ORSServer, options: dict[str, Any], probed: list[int]
) -> None:
    many_server.requests.clear()
    with MultiEnvSpec({"many": EnvSpec(many_server.url, **options)}) as spec:
        factory = spec.environment_factory["many"]
        assert many_server.paths().count("/create") == len(probed) <= MAX_PROBES
        assert_closed(many_server)
    names = {name for name in dir(factory) if name.startswith(("tool_", "look"))}
    assert names == {"look", *(f"tool_{index}" for index in probed)}


def test_a_task_that_cannot_be_probed_leaves_the_shared_tools(
    many_server: ORSServer, caplog: pytest.LogCaptureFixture
) -> None:
    declared = EnvSpec(many_server.url, indices=[1], task_tools_discovery_index=5_000)
    with MultiEnvSpec({"many": declared}) as spec, caplog.at_level(logging.WARNING, "multienv"):
        adapter: Any = spec.environment_factory["many"]()
        assert "a session to discover task tools failed, going on without" in caplog.text
        adapter.reset(task_index=1)
        assert list(adapter._offered().shown) == ["look", "tool_1"], "learnt when the session opened"


class OlderServer(ORSServer):
    """A server without the route `/task_tools`."""

    async def _record(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/task_tools"):
            self.requests.append((scope["method"], scope["path"], {}))
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await super()._record(scope, receive, send)


class OldEnvironment(Base):
    """Served by an older server."""

    @tool
    def look(self) -> ToolOutput:
        """Look."""
        return output("a wall", 1.0)


def test_a_server_without_task_tools_shows_its_shared_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play = Play(hello=call("look"), world=call("look"), moon=call("nothing"))
    with OlderServer([OldEnvironment]) as server, MultiEnvSpec({"old": server.url}) as spec:
        with caplog.at_level(logging.WARNING, "multienv"):
            log = log_of(trained(OURS, spec, play, tmp_path))
        assert server.paths().count("/oldenvironment/task_tools") == 1 + 6
    assert [shown["name"] for shown in shown_tools(play.prompts["hello"])] == ["look"]
    assert log["rewards/old/mean"] == pytest.approx(2 / 3), (
        "one of three tasks calls a tool it lacks, and earns nothing"
    )
    assert [record for record in caplog.records if record.name.startswith("multienv")] == [], "that is no failure"


class BrokenListServer(ORSServer):
    """A server whose `/task_tools` fails at once; the rest works."""

    answer = (500, b"{}")

    async def _record(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/task_tools"):
            status, body = self.answer
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": body})
        else:
            await super()._record(scope, receive, send)


class LateEnvironment(Base):
    """Its prompt comes long after the list of its tools."""

    async def setup(self) -> None:
        await asyncio.sleep(0.3)
        if self.task_spec["target"] == "moon":
            raise RuntimeError("no moon tonight")

    @tool
    def look(self) -> ToolOutput:
        """Look."""
        return output("a wall", 1.0, finished=True)


@pytest.mark.parametrize("answer", [(500, b"{}"), (200, b"[]"), (200, b"no json"), (401, b"{}")])
def test_a_session_outlives_the_list_of_its_tools(answer: tuple[int, bytes], caplog: pytest.LogCaptureFixture) -> None:
    with BrokenListServer([LateEnvironment]) as server, MultiEnvSpec({"late": server.url}) as spec:
        server.answer = answer
        adapter: Any = spec.environment_factory["late"]()
        with caplog.at_level(logging.WARNING, "multienv"):
            assert adapter.reset(task_index=0) == "Echo 'hello' to win."
        assert "a task's tools are not known, the shared ones are" in caplog.text
        assert adapter.look() == "a wall"
        assert adapter.episode.status is EpisodeStatus.FINISHED


@pytest.mark.filterwarnings("ignore:an episode failed")
def test_where_prompt_and_tools_fail_asyncio_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    with BrokenListServer([LateEnvironment]) as server, MultiEnvSpec({"late": server.url}) as spec:
        adapter: Any = spec.environment_factory["late"]()
        adapter.reset(task_index=2)
        assert adapter.episode.status is EpisodeStatus.FAILED
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


# Arguments


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("up", {"n": "two"}, ["'n'", '"two"', "an integer"]),
        ("echo", {"words": "x"}, ["'text' is missing", "a string"]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_arguments_against_the_schema_are_refused_in_words_and_nothing_is_sent(
    kind: str, name: str, arguments: dict[str, Any], words: list[str], climb_server: ORSServer, tmp_path: Path
) -> None:
    watch = Watch()
    with MultiEnvSpec({"climb": EnvSpec(climb_server.url, indices=[0])}, reward_funcs=watch) as spec:
        climb_server.requests.clear()

        def policy(_: str, turn: int) -> str:
            return call(name, **arguments) if turn < 1 else call("up", n=1) if turn < 2 else "done"

        log = log_of(trained(kind, spec, policy, tmp_path))
    assert climb_server.paths().count("/climbenvironment/call") == 2, "the right call of each rollout, and no other"
    for row in watch.rows:
        refused, done = row["episode"].steps
        assert (refused.refused, refused.arguments, refused.reward) == (True, arguments, None)
        assert (done.refused, done.text) == (False, "1")
        assert row["completion"][1]["content"] == str({"error": refused.text})
        for word in words:
            assert word in refused.text
    assert log["tools/failure_frequency"] == 0.5
    assert log["rewards/climb/mean"] == 0.25


def test_what_is_no_json_is_refused_in_words() -> None:
    with MultiEnvSpec({"climb": ClimbEnvironment}) as spec:
        adapter: Any = spec.environment_factory["climb"]()
        adapter.reset(task_index=0)
        assert said(adapter.up, n=float("nan")).startswith("the arguments are not valid JSON: ")
        assert adapter.episode.steps[0].refused


class LateToolsEnvironment(Base):
    """No tool is shared, and the first task has none."""

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        terminal = TerminalToolSpec(name="submit", arg="text")
        return ListToolsOutput(tools=[], terminal_tool=terminal)

    def list_task_tools(self) -> ListToolsOutput:
        tools = [ToolSpec(name="late", description="Late.", input_schema=None)]
        return ListToolsOutput(tools=[] if self.task_spec["target"] == "hello" else tools)


def test_tools_that_nobody_knew_of_when_trl_was_set_up_without_any_are_an_error(tmp_path: Path) -> None:
    with MultiEnvSpec({"late": EnvSpec(LateToolsEnvironment)}) as spec:
        with pytest.raises(errors.SpecError, match="has tools that only some tasks have .late., none was known"):
            trained(OURS, spec, lambda *_: "x", tmp_path)
