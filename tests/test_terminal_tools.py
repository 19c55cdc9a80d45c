"""Terminal tools: the policy's last plain message is graded by the environment, once, before any reward function."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openreward.environments import ToolOutput, terminal, tool

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec
from multienv.router import grade_last_messages
from multienv.router.grading import last_plain_message
from multienv.training.async_loop import ConcurrentRolloutLoop
from tests.support.environments import (
    AnswerEnvironment,
    Base,
    EchoParams,
    NumberEnvironment,
    StateEnvironment,
    output,
)
from tests.support.fake_vllm import DrivenLoop, FakeVLLM, loop_options
from tests.support.fakes import said
from tests.support.kinds import KINDS, OURS, PLAIN, Watch, assert_closed, log_of, trained
from tests.support.servers import ORSServer
from tests.support.training import call, tokenizer


@pytest.fixture(scope="module")
def answer_server() -> Iterator[ORSServer]:
    with ORSServer([AnswerEnvironment]) as server:
        yield server
        assert_closed(server)


@pytest.fixture(autouse=True)
def _nothing_graded() -> None:
    AnswerEnvironment.graded.clear()
    NumberEnvironment.graded.clear()


def target_of(text: str) -> str:
    found = re.search(r"Echo '(\w+)'", text)
    return found[1] if found else ""


def looks_then_answers(text: str, turn: int) -> str:
    """Look around in one task, answer with the task's word in all."""
    target = target_of(text)
    return call("look") if target == "world" and turn < 1 else target


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_plain_message_is_graded_and_every_reward_function_sees_it(
    kind: str, answer_server: ORSServer, tmp_path: Path
) -> None:
    own, shared = Watch(), Watch()
    own.__name__ = "own"

    async def late(environments: list[Any], **_: Any) -> list[float]:
        return [environment.reward for environment in environments]

    declared = {"answer": EnvSpec(answer_server.url, reward_funcs=own)}
    with MultiEnvSpec(declared, reward_funcs=[shared, late]) as spec:
        log = log_of(trained(kind, spec, looks_then_answers, tmp_path))
    assert log["rewards/answer/mean"] == pytest.approx((5 + 5 + 4) / 3), "the grade is the length of the answer"
    assert log["rewards/late/mean"] == log["rewards/answer/mean"]
    assert sorted(AnswerEnvironment.graded) == [(w, w) for w in ("hello", "hello", "moon", "moon", "world", "world")]
    for watch in (own, shared):
        assert [row["reward"] for row in watch.rows] == [float(len(target_of(str(row)))) for row in watch.rows]
        assert {row["episode"].status for row in watch.rows} == {EpisodeStatus.FINISHED}
        for row in watch.of("moon"):
            (step,) = row["episode"].steps
            assert (step.tool, step.arguments, step.text) == ("submit", {"text": "moon"}, "right")


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_tool_without_argument_is_called_with_none(kind: str, tmp_path: Path) -> None:
    watch = Watch()
    with MultiEnvSpec({"state": EnvSpec(StateEnvironment, indices=[0])}, reward_funcs=watch) as spec:
        log = log_of(trained(kind, spec, lambda _, turn: call("push") if turn < 2 else "That is all.", tmp_path))
    assert log["rewards/state/mean"] == 2.0
    steps = watch.rows[0]["episode"].steps
    assert [(step.tool, step.arguments) for step in steps] == [("push", {}), ("push", {}), ("count", {})]


def test_async_grpo_grades_before_it_asks_for_the_reward(answer_server: ORSServer) -> None:
    with FakeVLLM(tokenizer(), looks_then_answers) as vllm, MultiEnvSpec({"answer": answer_server.url}) as spec:
        slots = spec.async_trainer_kwargs()
        slots["dataset"] = slots.pop("train_dataset")
        with DrivenLoop(ConcurrentRolloutLoop, **loop_options(tokenizer(), vllm.url, **slots)) as loop:
            samples = loop.take(6)
        assert_closed(answer_server)
    for sample in samples:
        assert sample.metrics["rewards/answer"] == float(len(target_of(str(sample.prompt))))


class QuestionEnvironment(Base):
    """Nothing but a question: the answer is graded, and there is no tool to call."""

    @terminal
    @tool
    async def submit(self, params: EchoParams) -> ToolOutput:
        """Grade the answer."""
        return output("graded", float(len(params.text)))


def test_async_grpo_grades_where_there_are_no_tools(answer_server: ORSServer) -> None:
    declared = {"question": EnvSpec(QuestionEnvironment), "answer": answer_server.url}
    with FakeVLLM(tokenizer(), looks_then_answers) as vllm, ORSServer([QuestionEnvironment]) as server:
        with MultiEnvSpec(declared | {"question": server.url}) as spec:
            slots = spec.async_trainer_kwargs()
            slots["dataset"] = slots.pop("train_dataset")
            with DrivenLoop(ConcurrentRolloutLoop, **loop_options(tokenizer(), vllm.url, **slots)) as loop:
                samples = loop.take(36)  # which task is done first is chance
        assert_closed(server, answer_server)
    scored = {name: [sample.metrics[f"rewards/{name}"] for sample in samples] for name in declared}
    for name, rewards in scored.items():
        assert {4.0, 5.0} <= set(rewards), f"{name} is graded by the length of the word"
    for row in zip(*scored.values(), strict=True):
        assert sum(not math.isnan(reward) for reward in row) == 1, "each by its own environment"


class MeetingGrader(Base):
    """Grading ends when all eight answers of a batch are being graded."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "x"}]
    num_graded: ClassVar[int] = 0
    all_there: ClassVar[asyncio.Event] = asyncio.Event()

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return output("a wall")

    @terminal
    @tool
    async def submit(self, params: EchoParams) -> ToolOutput:
        """Grade together with the others."""
        type(self).num_graded += 1
        if self.num_graded == 8:
            self.all_there.set()
        await self.all_there.wait()
        return output("graded", 1.0)


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_a_batch_is_graded_at_once(kind: str, tmp_path: Path) -> None:
    MeetingGrader.num_graded = 0
    limits = Limits(tool_timeout_s=20)
    options = {"per_device_train_batch_size": 8, "num_generations": 8}
    with ORSServer([MeetingGrader]) as server:
        MeetingGrader.all_there = asyncio.Event()
        with MultiEnvSpec({"meeting": EnvSpec(server.url, limits=limits)}) as spec:
            log = log_of(trained(kind, spec, lambda *_: "x", tmp_path, options))
    assert log["rewards/meeting/mean"] == 1.0
    assert MeetingGrader.num_graded == 8


def ends_badly(text: str, turn: int) -> str:
    """Leave, break, or go on calling; then say something that is no answer any more."""
    match target_of(text):
        case "hello":
            return call("leave") if turn < 1 else "hello"
        case "world":
            return call("breaks") if turn < 1 else "world"
    return call("look")


@pytest.mark.parametrize("kind", [OURS, PLAIN])
@pytest.mark.filterwarnings("ignore:an episode failed and goes unscored:RuntimeWarning")
def test_an_episode_that_is_over_or_ends_with_a_call_is_not_graded(
    kind: str, answer_server: ORSServer, tmp_path: Path
) -> None:
    watch = Watch()
    with MultiEnvSpec({"answer": answer_server.url}, reward_funcs=watch) as spec:
        options = {"max_tool_calling_iterations": 2}
        trained(kind, spec, ends_badly, tmp_path, options)
    assert AnswerEnvironment.graded == []
    statuses = {target: watch.of(target)[0]["episode"].status for target in ("hello", "world", "moon")}
    expected = EpisodeStatus.FINISHED, EpisodeStatus.FAILED, EpisodeStatus.TRUNCATED
    assert tuple(statuses.values()) == expected
    assert [watch.of(target)[0]["reward"] for target in statuses] == [0.25, None, 0.125]


def test_a_truncated_episode_keeps_what_it_has_earned_and_is_not_graded(
    answer_server: ORSServer, tmp_path: Path
) -> None:
    watch = Watch()
    declared = {"answer": EnvSpec(answer_server.url, indices=[2], limits=Limits(max_tool_calls=1))}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        trained(OURS, spec, lambda _, turn: call("look") if turn < 2 else "moon", tmp_path)
    assert AnswerEnvironment.graded == []
    row = watch.rows[0]
    assert (row["episode"].status, row["reward"]) == (EpisodeStatus.TRUNCATED, 0.125)
    assert row["completion"][-1]["content"] == "moon", "the policy had its last word"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:an episode failed and goes unscored:RuntimeWarning")
def test_a_grader_that_breaks_costs_its_own_episode_only(kind: str, answer_server: ORSServer, tmp_path: Path) -> None:
    def policy(text: str, _turn: int) -> str:
        return "break" if target_of(text) == "world" else target_of(text)

    watch = Watch()
    with MultiEnvSpec({"answer": answer_server.url}, reward_funcs=watch) as spec:
        log = log_of(trained(kind, spec, policy, tmp_path))
    assert log["rewards/answer/mean"] == 4.5
    assert [row["reward"] for row in watch.of("world")] == [None, None]
    assert {row["episode"].status for row in watch.of("world")} == {EpisodeStatus.FAILED}
    assert "the grader broke" in watch.of("world")[0]["episode"].reason


@pytest.mark.filterwarnings("ignore:an episode failed and goes unscored:RuntimeWarning")
def test_a_server_that_goes_down_before_grading_costs_its_own_episodes_only(
    answer_server: ORSServer, tmp_path: Path
) -> None:
    mortal = ORSServer([StateEnvironment]).start()

    def policy(text: str, turn: int) -> str:
        if '"push"' not in text:
            return target_of(text)
        if turn < 1:
            return call("push")
        if mortal in alive:
            alive.remove(mortal)
            mortal.stop()
        return "done"

    alive = [mortal]
    limits = Limits(tool_timeout_s=0.5, close_timeout_s=0.5, max_retries=0)
    declared = {
        "answer": EnvSpec(answer_server.url, indices=[0]),
        "mortal": EnvSpec(mortal.url, indices=[0], limits=limits),
    }
    watch = Watch()
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        log = log_of(trained(OURS, spec, policy, tmp_path))
    assert log["rewards/answer/mean"] == 5.0
    assert {(row["episode"].environment, row["episode"].status, row["reward"]) for row in watch.rows} == {
        ("answer", EpisodeStatus.FINISHED, 5.0),
        ("mortal", EpisodeStatus.FAILED, None),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_the_grader_refuses_is_refused_once(kind: str, tmp_path: Path) -> None:
    def later(environments: list[Any], **_: Any) -> list[None]:
        return [None] * len(environments)

    watch = Watch()
    with MultiEnvSpec({"number": EnvSpec(NumberEnvironment, indices=[0])}, reward_funcs=[later, watch]) as spec:
        trained(kind, spec, lambda _, turn: call("look") if turn < 1 else "many", tmp_path)
    for row in watch.rows:
        assert [(step.tool, step.refused) for step in row["episode"].steps] == [("look", False), ("submit", True)]
        assert (row["episode"].status, row["reward"]) == (EpisodeStatus.UNFINISHED, 0.125)
    assert NumberEnvironment.graded == []


def test_the_terminal_tool_is_not_shown_and_cannot_be_called(answer_server: ORSServer, tmp_path: Path) -> None:
    prompts: list[str] = []

    def policy(text: str, turn: int) -> str:
        if turn == 0:
            prompts.append(text)
        return call("submit", text="hello") if turn < 1 else "hello"

    watch = Watch()
    with MultiEnvSpec({"answer": EnvSpec(answer_server.url, indices=[0])}, reward_funcs=watch) as spec:
        for factory in (spec.environment_factory["answer"], spec.meta_environment_factory):
            assert not hasattr(factory, "submit")
        log = log_of(trained(OURS, spec, policy, tmp_path))
    assert all('"look"' in prompt and '"submit"' not in prompt for prompt in prompts)
    row = watch.rows[0]
    told = "'submit' is not a tool of this task; its tools are: breaks, leave, look"
    assert row["completion"][1]["content"] == str({"error": told})
    assert [(step.tool, step.refused) for step in row["episode"].steps] == [("submit", True), ("submit", False)]
    assert log["tools/failure_frequency"] == 1.0
    assert log["rewards/answer/mean"] == 5.0, "the answer is graded all the same"


def test_grading_a_rollout_that_was_graded_or_never_opened_does_nothing(answer_server: ORSServer) -> None:
    with MultiEnvSpec({"answer": answer_server.url}) as spec:
        adapter: Any = spec.environment_factory["answer"]()
        unopened: Any = spec.environment_factory["answer"]()
        adapter.reset(task_index=0)
        answers: list[Any] = [[{"role": "assistant", "content": "hello"}], "hello"]
        for _ in range(2):
            grade_last_messages([adapter, unopened], answers)
        assert (adapter.reward, adapter.finished, adapter.last_output) == (5.0, True, "right")
        assert unopened.episode.steps == ()
        assert said(adapter.look) == "The episode has finished; no further tool calls are accepted."
    assert AnswerEnvironment.graded == [("hello", "hello")]


def test_an_answer_is_the_content_of_a_message_of_the_policys_own_that_calls_no_tool() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "image": None}, {"type": "text", "text": "b"}]
    assert last_plain_message([{"role": "assistant", "content": blocks}]) == "a\nb"
    assert last_plain_message([{"role": "assistant", "content": None}]) == ""
    assert last_plain_message("plain text") == "plain text"
    for nothing in ([], [{"role": "tool", "content": "x"}], [{"role": "assistant", "tool_calls": [{}], "content": ""}]):
        assert last_plain_message(nothing) is None


def test_a_grader_that_outlasts_the_episode_is_given_up(answer_server: ORSServer) -> None:
    limits = Limits(episode_timeout_s=0.3)
    with MultiEnvSpec({"answer": EnvSpec(answer_server.url, limits=limits)}) as spec:
        adapter: Any = spec.environment_factory["answer"]()
        adapter.reset(task_index=0)
        grade_last_messages([adapter], ["wait"])
        assert (adapter.episode.status, adapter.reward) == (EpisodeStatus.TRUNCATED, None)


def test_an_answer_after_the_time_limit_is_not_graded(answer_server: ORSServer) -> None:
    limits = Limits(episode_timeout_s=0.3)
    with MultiEnvSpec({"answer": EnvSpec(answer_server.url, limits=limits)}) as spec:
        adapter: Any = spec.environment_factory["answer"]()
        adapter.reset(task_index=0)
        assert said(adapter.look) == "a wall"
        time.sleep(0.35)
        grade_last_messages([adapter], ["hello"])
        assert [step.tool for step in adapter.episode.steps] == ["look"]
        assert (adapter.episode.status, adapter.reward) == (EpisodeStatus.TRUNCATED, 0.125)
        assert_closed(answer_server)
    assert AnswerEnvironment.graded == []


def test_the_one_function_over_all_rows_has_last_messages_graded_too(answer_server: ORSServer) -> None:
    with MultiEnvSpec({"answer": answer_server.url}) as spec:
        adapter = spec.environment_factory["answer"]()
        target = target_of(str(adapter.reset(task_index=0)))
        completions = [[{"role": "assistant", "content": target}]]
        assert spec.reward_func(environments=[adapter], completions=completions) == [float(len(target))]
        assert adapter.finished
