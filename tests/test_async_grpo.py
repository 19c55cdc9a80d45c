"""`spec.async_trainer_kwargs()` and `make_concurrent`, in TRL's real rollout loop against a fake of vLLM."""

from __future__ import annotations

import asyncio
import inspect
import math
import pickle
import re
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from accelerate.state import PartialState
from openreward.environments import ToolOutput, tool
from trl.experimental.async_grpo import AsyncGRPOTrainer, async_grpo_trainer, async_rollout_worker
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

from multienv import EnvSpec, Limits, MultiEnvSpec
from multienv.training import async_grpo
from multienv.training.async_grpo import make_concurrent, unexpected_seams
from multienv.training.async_loop import ConcurrentRolloutLoop
from tests.support.environments import Base, EchoParams, output
from tests.support.fake_vllm import DrivenLoop, FakeVLLM, loop_options
from tests.support.servers import ORSServer
from tests.support.training import call, tokenizer

LOOPS = (_AsyncRolloutLoop, ConcurrentRolloutLoop)


def policy(text: str, turn: int) -> str:
    """Climb in steps of two, echo what is asked for, and give up where there is no task."""
    task = re.search(r"Echo '(\w+)'", text)
    if task is None or turn >= 2:
        return "done"
    if '"up"' in text:
        return call("up", n=2)
    return call("echo", text=task[1]) if turn < 1 else "done"


@pytest.fixture(scope="module")
def vllm() -> Iterator[FakeVLLM]:
    with FakeVLLM(tokenizer(), policy) as server:
        yield server


def options(vllm: FakeVLLM, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What TRL's trainer makes of its slots for its worker."""
    slots = {("dataset" if name == "train_dataset" else name): value for name, value in kwargs.items()}
    return loop_options(tokenizer(), vllm.url, **slots)


def driven(loop_class: type, vllm: FakeVLLM, kwargs: dict[str, Any]) -> DrivenLoop:
    return DrivenLoop(loop_class, **options(vllm, kwargs))


def first_groups(driven_loop: DrivenLoop, num_groups: int) -> list[Any]:
    """One row of each of the first groups, which may come in any order."""
    seen: dict[int, Any] = {}
    while not seen.keys() >= set(range(num_groups)):
        (sample,) = driven_loop.take(1)
        seen.setdefault(sample.group_id, sample)
    return [seen[group] for group in range(num_groups)]


def assert_no_session_is_left(*servers: ORSServer) -> None:
    deadline = time.monotonic() + 10
    while any(server.open_sessions for server in servers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [server.open_sessions for server in servers] == [[]] * len(servers)


def rewards(sample: Any) -> dict[str, float]:
    """The columns that have a reward."""
    columns = {
        key.removeprefix("rewards/"): value for key, value in sample.metrics.items() if key.startswith("rewards")
    }
    return {name: value for name, value in columns.items() if not math.isnan(value)}


# Rollouts


@pytest.mark.parametrize("loop_class", LOOPS)
def test_rows_of_all_environments_carry_their_own_rewards_and_prompts(
    loop_class: type, vllm: FakeVLLM, echo_server: ORSServer, climb_server: ORSServer
) -> None:
    with MultiEnvSpec({"echo": echo_server.url, "climb": climb_server.url}, system_prompt="Be brief.") as spec:
        kwargs = spec.async_trainer_kwargs()
        with driven(loop_class, vllm, kwargs) as driven_loop:
            groups = first_groups(driven_loop, 6)
        assert_no_session_is_left(echo_server, climb_server)
    assert [rewards(sample) for sample in groups] == [{"echo": 1.0}, {"climb": 1.0}] * 3, "groups take turns"
    for sample, target in zip(groups, ["hello", "hello", "world", "world", "moon", "moon"], strict=True):
        assert sample.prompt == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Echo '{target}' to win."},
        ]
    assert {message["content"] for row in kwargs["train_dataset"]["prompt"] for message in row} == {"Be brief.", ""}
    roles = [message["role"] for message in groups[1].completion]
    assert roles == ["assistant", "tool", "assistant", "tool", "assistant"]


class MeetingEnvironment(Base):
    """Its `setup` ends when eight sessions are being set up at once."""

    num_met: ClassVar[int] = 0
    all_met: ClassVar[asyncio.Event] = asyncio.Event()

    async def setup(self) -> None:
        type(self).num_met += 1
        if self.num_met == 8:
            self.all_met.set()
        await self.all_met.wait()

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Say something."""
        return output(params.text, 0.5)


def test_the_sessions_of_all_rollouts_in_flight_open_at_once(vllm: FakeVLLM) -> None:
    with ORSServer([MeetingEnvironment]) as server:
        with MultiEnvSpec({"meeting": EnvSpec(server.url, discover_task_tools=False)}) as spec:
            with driven(ConcurrentRolloutLoop, vllm, spec.async_trainer_kwargs()) as driven_loop:
                samples = driven_loop.take(8)
        assert_no_session_is_left(server)
    assert [rewards(sample) for sample in samples] == [{"meeting": 0.5}] * 8


class CountingEnvironment(Base):
    """Counts how many of it there are."""

    live: ClassVar[int] = 0
    most: ClassVar[int] = 0

    async def setup(self) -> None:
        cls = type(self)
        cls.live += 1
        cls.most = max(cls.most, cls.live)

    async def teardown(self) -> None:
        type(self).live -= 1

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Say something."""
        return output(params.text, 0.25)


@pytest.mark.parametrize("is_the_mixtures", [True, False])
def test_rollouts_wait_for_a_session_where_a_limit_allows_fewer_than_are_in_flight(
    vllm: FakeVLLM, is_the_mixtures: bool
) -> None:
    CountingEnvironment.most = 0
    with ORSServer([CountingEnvironment]) as server:
        limits = Limits() if is_the_mixtures else Limits(max_sessions=3)
        declared = EnvSpec(server.url, limits=limits, discover_task_tools=False)
        with MultiEnvSpec({"counting": declared}, max_sessions=3 if is_the_mixtures else None) as spec:
            with driven(ConcurrentRolloutLoop, vllm, spec.async_trainer_kwargs()) as driven_loop:
                samples = driven_loop.take(24)
        assert_no_session_is_left(server)
    assert [rewards(sample) for sample in samples] == [{"counting": 0.25}] * 24
    assert CountingEnvironment.most == 3


class EndlessEnvironment(Base):
    """Its tool never comes back, nor does the `setup` of one of its tasks."""

    async def setup(self) -> None:
        if self.task_spec["target"] == "world":
            await asyncio.sleep(3600)

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Never come back."""
        await asyncio.sleep(3600)
        return output(params.text)


@pytest.fixture(scope="module")
def endless_server() -> Iterator[ORSServer]:
    with ORSServer([EndlessEnvironment]) as server:
        yield server


def test_a_loop_that_is_stopped_leaves_no_session_and_waits_for_no_tool(
    vllm: FakeVLLM, endless_server: ORSServer
) -> None:
    with MultiEnvSpec({"endless": EnvSpec(endless_server.url, discover_task_tools=False)}) as spec:
        with driven(ConcurrentRolloutLoop, vllm, spec.async_trainer_kwargs()):
            deadline = time.monotonic() + 20
            while not any("/call" in path for path in endless_server.paths()) and time.monotonic() < deadline:
                time.sleep(0.01)
        assert_no_session_is_left(endless_server)


@pytest.mark.parametrize("loop_class", LOOPS)
@pytest.mark.filterwarnings("ignore:an episode failed and goes unscored:RuntimeWarning")
def test_a_dead_server_costs_its_own_rollouts_only(loop_class: type, vllm: FakeVLLM, echo_server: ORSServer) -> None:
    limits = Limits(max_retries=0, connect_timeout_s=1.0)
    with ORSServer([CountingEnvironment]) as mortal:
        declared = {"echo": EnvSpec(echo_server.url), "dead": EnvSpec(mortal.url, limits=limits)}
        with MultiEnvSpec(declared) as spec:
            travelled = pickle.loads(pickle.dumps(spec.async_trainer_kwargs()))
    with driven(loop_class, vllm, travelled) as driven_loop:
        groups = first_groups(driven_loop, 12)
    travelled["environment_factory"]["echo"].spec.close()
    assert [rewards(sample) for sample in groups] == [{"echo": 1.0}, {}] * 6
    assert {sample.advantage for sample in groups} == {0.0}
    assert_no_session_is_left(echo_server)


# The rollout process


def shout(completions: list[Any], environment: list[str], target: list[str], **_: Any) -> list[float]:
    return [float(len(name) + len(word)) for name, word in zip(environment, target, strict=True)]


async def whisper(completions: list[Any], log_extra: Any = None, **_: Any) -> list[float | None]:
    return [None if log_extra is None else 1.0 for _ in completions]


@pytest.fixture
def worker(
    monkeypatch: pytest.MonkeyPatch, vllm: FakeVLLM, echo_server: ORSServer, endless_server: ORSServer
) -> Iterator[Any]:
    """TRL's own worker, playing in a process of its own until all rollouts in flight are endless ones."""
    PartialState()  # TRL's logger asks for it
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    declared = {
        "echo": EnvSpec(echo_server.url, reward_funcs=shout),
        "endless": EnvSpec(endless_server.url, discover_task_tools=False),
    }
    with MultiEnvSpec(declared, reward_funcs=whisper) as spec:
        made = AsyncRolloutWorker(**options(vllm, spec.async_trainer_kwargs()))
    make_concurrent(SimpleNamespace(rollout_worker=made))
    made.start()
    yield made
    if made._process.is_alive():  # `stop` waits for a child that was killed, for ever
        made.stop()


def test_trls_worker_plays_in_a_process_of_its_own_and_leaves_no_session(
    worker: Any, echo_server: ORSServer, endless_server: ORSServer
) -> None:
    samples = [worker.rollout_buffer.get(timeout=60) for _ in range(6)]
    for sample in samples:
        target = sample.prompt[-1]["content"].split("'")[1]
        assert rewards(sample) == {"echo": 1.0, "echo/shout": float(len("echo") + len(target))}
    worker.check_health(60)
    worker._process.terminate()
    worker._process.join(30)
    assert worker._process.exitcode == -signal.SIGTERM
    assert_no_session_is_left(echo_server, endless_server)


# Another TRL


def test_a_worker_that_is_not_as_expected_is_named_and_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_concurrent(SimpleNamespace(rollout_worker=None)), "another rank than the first has none"
    harness = type("HarnessLoop", (_AsyncRolloutLoop,), {})
    foreign = SimpleNamespace(rollout_worker=SimpleNamespace(_loop_cls=harness))
    with pytest.warns(RuntimeWarning, match=r"\(it runs HarnessLoop\); sessions open one after the other"):
        assert make_concurrent(foreign).rollout_worker._loop_cls is harness
    with pytest.warns(RuntimeWarning, match="it runs no rollout loop of TRL"):
        make_concurrent(object())
    expected = SimpleNamespace(rollout_worker=SimpleNamespace(_loop_cls=_AsyncRolloutLoop))
    monkeypatch.setattr(async_grpo, "SEAMS", {"run": ("self", "other")})
    with pytest.warns(RuntimeWarning, match=r"run is \(self\)"):
        assert make_concurrent(expected).rollout_worker._loop_cls is _AsyncRolloutLoop
    monkeypatch.setattr(async_grpo, "_LOOP", "_NoLoop")
    with pytest.warns(RuntimeWarning, match="has no attribute '_NoLoop'"):
        make_concurrent(expected)


# What is leaned on


def source(member: Any) -> str:
    return inspect.getsource(member)


def test_trls_worker_runs_the_loop_of_its_slot_and_is_the_trainers_rollout_worker() -> None:
    assert unexpected_seams(AsyncRolloutWorker) == ""
    assert "self._loop_cls," in source(AsyncRolloutWorker.start)
    assert "self.rollout_worker = AsyncRolloutWorker(" in source(AsyncGRPOTrainer.__init__)
    assert "rollout_worker.start()" in source(async_grpo_trainer._TrainBeginCallback)


def test_trls_loop_makes_the_last_message_anew_for_each_rollout_and_keeps_that_prompt() -> None:
    text = source(_AsyncRolloutLoop._generate_loop)
    assert 'prompt = prompt[:-1] + [{**last, "content": content + observation}]' in text
    assert "inflight_tasks[task] = (group_id, slot, name, environment, prompt)" in text
    assert "group.prompts.append(prompt)" in text


def test_trls_loop_hands_a_rollout_the_bound_tools_of_the_environment_it_reset() -> None:
    text = source(_AsyncRolloutLoop._generate_loop)
    assert "self._generate_one(prompt, tool_dict=tool_dict, tools=tools, group_id=group_id)" in text
    assert "getattr(environment, member_name)" in text


def test_trls_loop_awaits_tools_and_rewards_that_are_coroutine_functions() -> None:
    assert "if inspect.iscoroutinefunction(tool):" in source(_AsyncRolloutLoop._execute_tool_calls)
    assert "if inspect.iscoroutinefunction(get_reward):" in source(_AsyncRolloutLoop._generate_loop)


def test_trls_loop_cancels_the_rollouts_in_flight_when_it_is_cancelled() -> None:
    assert "self._generate_loop(stop_event=stop_event)" in source(_AsyncRolloutLoop._run_loops)
    ending = source(_AsyncRolloutLoop._generate_loop).rpartition("finally:")[2]
    assert "task.cancel()" in ending
    assert "await asyncio.gather(*inflight_tasks, return_exceptions=True)" in ending


def test_trls_loop_counts_the_seconds_of_resets_in_its_rates() -> None:
    assert 'self._rates["env/reset_s"][0] += time.monotonic() - t0' in source(_AsyncRolloutLoop._generate_loop)
