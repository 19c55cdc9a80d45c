"""`multienv eval`: real episodes against a real OpenAI-compatible server, and against a model in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec, RewardSpec
from multienv.errors import AuthenticationError, MultiEnvError, RecordError, ServerUnreachableError, SpecError
from multienv.evaluation import EndpointPolicy, EvalSpec, Evaluation, LocalPolicy, compared, evaluate
from multienv.evaluation.endpoint import _names, _sent
from multienv.evaluation.record import EvaluationRecord, read_attempts
from multienv.reporting import read_episodes
from tests.support import training
from tests.support.environments import EchoEnvironment
from tests.support.openai_server import Model, OpenAIServer, call, say
from tests.support.servers import ORSServer

ROOT = Path(__file__).parents[1]


def prompt_of(messages: list[dict[str, Any]]) -> str:
    return next(str(message["content"]) for message in messages if message["role"] == "user")


def diligent(messages: list[dict[str, Any]], _: Any) -> dict[str, Any]:
    """Says the word of the task, but for `moon`, which it takes for `sun`."""
    word = prompt_of(messages).split("'")[1]
    return call("echo", {"text": word if word != "moon" else "sun"}) if len(messages) == 1 else say("I give up.")


@pytest.fixture
def endpoint() -> Iterator[Callable[..., OpenAIServer]]:
    servers: list[OpenAIServer] = []

    def start(model: Model = diligent, **options: Any) -> OpenAIServer:
        servers.append(OpenAIServer(model, **options).start())
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def settings_of(server: OpenAIServer, **options: Any) -> EvalSpec:
    return EvalSpec(**({"model": "tiny", "base_url": server.base_url, "api_key": server.key} | options))


def evaluated(spec: MultiEnvSpec, settings: EvalSpec, directory: Path, **options: Any) -> Evaluation:
    return evaluate(spec, EndpointPolicy(settings), settings, directory, **options)


def test_the_figures_are_what_the_model_did(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    told: list[tuple[int, int]] = []
    settings = settings_of(
        server, num_attempts=2, price_per_million_prompt_tokens=1.0, price_per_million_completion_tokens=10.0
    )
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        found = evaluated(spec, settings, tmp_path / "out", on_progress=lambda *told_now: told.append(told_now))
    result = found.environments["echo"]
    assert (result.num_tasks, result.num_attempts, result.num_lost) == (3, 6, 0)
    assert {k: one.value for k, one in result.passes.items()} == {1: pytest.approx(2 / 3), 2: pytest.approx(2 / 3)}
    assert result.passes[1].low < 2 / 3 < result.passes[1].high
    assert result.reward is not None
    assert result.reward.value == pytest.approx(2 / 3)
    assert found.overall[1].value == pytest.approx(2 / 3)
    # Solved in one request; the wrong word needs a second one to give up.
    assert found.tokens == {"prompt": 100 * (4 + 2 * 2), "completion": 10 * (4 + 2 * 2)}
    assert found.cost == pytest.approx((800 * 1.0 + 80 * 10.0) / 1e6)
    assert told[0] == (0, 6)
    assert told[-1] == (6, 6)
    episodes = read_episodes(tmp_path / "out")
    assert len(episodes) == 6
    assert {episode.status for episode in episodes} == {EpisodeStatus.FINISHED, EpisodeStatus.UNFINISHED}
    assert all(episode.is_evaluation and episode.training_step is None for episode in episodes)
    assert not echo_server.open_sessions


def test_the_tools_reach_the_model_as_published_and_results_come_back(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": echo_server.url}, system_prompt="Be brief.") as spec:
        evaluated(spec, settings_of(server, num_tasks=1, temperature=0.5, seed=7), tmp_path / "out")
        published = spec.tools_report()
    body = server.bodies[0]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["function"]["name"] == "echo"
    assert body["tools"][0]["function"]["parameters"]["properties"]["text"]["type"] == "string"
    assert (body["temperature"], body["seed"]) == (0.5, 7)
    assert published is not None


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (call("echo", "{not json"), "no JSON"),
        (call("echo", "[1]"), "an object"),
        (call("echo", {}), "text"),
        (call("no_such_tool", {}), "not a tool of this task"),
    ],
)
def test_the_models_own_mistakes_go_back_to_it_and_count_as_failures(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path, first: dict[str, Any], told: str
) -> None:
    def model(messages: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
        return dict(first) if len(messages) == 1 else diligent(messages[:1], tools)

    server = endpoint(model)
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        found = evaluated(spec, settings_of(server, num_tasks=1), tmp_path / "out")
    [episode] = read_episodes(tmp_path / "out")
    assert told in server.bodies[1]["messages"][-1]["content"]
    assert episode.num_tool_failures == 1
    assert episode.status is EpisodeStatus.FINISHED
    assert found.environments["echo"].passes[1].value == 1.0


def test_names_that_the_protocol_cannot_take_are_sent_under_others() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("a.b", "a_b_0", "ok", "ü" * 80)]
    names = _names(tools)
    assert len(set(names.values())) == 4
    assert names["ok"] == "ok"
    assert all(name.isascii() and len(name) <= 64 and "." not in name for name in names.values())


def test_an_evaluation_that_was_stopped_makes_the_missing_attempts_only(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    directory = tmp_path / "out"
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server), directory)
        num_requests = len(server.bodies)
        found = evaluated(spec, settings_of(server, num_attempts=3), directory)
        assert found.environments["echo"].num_attempts == 9
        assert len(server.bodies) == 3 * num_requests
        again = evaluated(spec, settings_of(server, num_attempts=3), directory)
    assert len(server.bodies) == 3 * num_requests
    assert again == found
    keys = [(one.episode.task_id, one.number) for one in read_attempts(directory)]
    assert len(keys) == len(set(keys)) == 9


def test_another_evaluation_is_not_mixed_with_one_that_is_there(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server), tmp_path / "out")
        with pytest.raises(SpecError, match=r"temperature=None, and this one has 0\.5"):
            evaluated(spec, settings_of(server, temperature=0.5), tmp_path / "out")


def test_a_killed_evaluation_goes_on_where_it_was(endpoint: Callable[..., OpenAIServer], tmp_path: Path) -> None:
    server = endpoint(latency_s=0.3)
    echo_server = ORSServer([EchoEnvironment]).start()  # a killed process leaves its sessions to the server's reaper
    directory = tmp_path / "out"
    program = f"""
import pathlib
from multienv import MultiEnvSpec
from multienv.evaluation import EndpointPolicy, EvalSpec, evaluate
settings = EvalSpec(model="tiny", base_url={server.base_url!r}, api_key="sk-local", num_attempts=4, max_concurrent=2)
with MultiEnvSpec({{"echo": {echo_server.url!r}}}) as spec:
    evaluate(spec, EndpointPolicy(settings), settings, pathlib.Path({str(directory)!r}))
"""
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (directory / "episodes.jsonl").exists() or len(read_attempts(directory)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    done = {(one.episode.task_id, one.number): one for one in read_attempts(directory)}
    assert 3 <= len(done) < 12
    server.latency_s, before = 0.0, len(server.bodies)
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        found = evaluated(spec, settings_of(server, num_attempts=4), directory)
    assert found.environments["echo"].num_attempts == 12
    after = {(one.episode.task_id, one.number): one for one in read_attempts(directory)}
    assert len(after) == 12
    assert all(after[key] == one for key, one in done.items())
    assert len(server.bodies) - before >= 12 - len(done)
    echo_server.stop()


def test_faults_of_the_endpoint_are_tried_again_and_never_count_as_a_failed_task(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    server.faults = [429, 500, None]
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        found = evaluated(spec, settings_of(server, num_tasks=1, max_retries=3), tmp_path / "out")
        assert found.environments["echo"].passes[1].value == 1.0
        server.faults = [None, *[500] * 50]
        lost = evaluated(
            spec, settings_of(server, num_tasks=2, num_attempts=2, max_retries=0, max_concurrent=1), tmp_path / "out"
        )
        assert lost.num_lost == 2
        assert lost.environments["echo"].statuses["failed"] == 2
        assert all(one.is_success is None for one in read_attempts(tmp_path / "out") if one.episode.status == "failed")
        server.faults = []
        mended = evaluated(spec, settings_of(server, num_tasks=2, num_attempts=2), tmp_path / "out")
    assert mended.num_lost == 0
    assert mended.environments["echo"].num_attempts == 4
    assert len(read_episodes(tmp_path / "out")) == 4


def test_a_wrong_key_a_wrong_model_and_a_dead_endpoint_are_said_before_any_session(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        with pytest.raises(AuthenticationError, match="refuses the key"):
            evaluated(spec, settings_of(server, api_key="sk-other"), tmp_path / "out")
        with pytest.raises(SpecError, match=r"no model 'tinny' \(did you mean 'tiny'\?\)"):
            evaluated(spec, settings_of(server, model="tinny"), tmp_path / "out")
        with pytest.raises(SpecError, match="is no address"):
            evaluated(spec, settings_of(server, base_url="http://[::1"), tmp_path / "out")
        with pytest.raises(ServerUnreachableError, match="nobody answers"):
            evaluated(spec, settings_of(server, base_url="http://127.0.0.1:1/v1", max_retries=0), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_key_is_in_any_file(echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path) -> None:
    server = endpoint(lambda _messages, _tools: say("the key is sk-local"))
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server), tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        assert server.key not in path.read_text(encoding="utf-8")


def test_many_are_played_at_once_and_no_more_than_the_limits_allow(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint(latency_s=0.05)
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, limits=Limits(max_sessions=2))}) as spec:
        evaluated(spec, settings_of(server, num_attempts=4), tmp_path / "few")
    assert server.most_at_once == 2
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server, num_attempts=4, max_concurrent=8), tmp_path / "many")
    assert 4 <= server.most_at_once <= 8


def test_a_message_that_was_cut_and_too_many_turns_are_truncated(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint(lambda _messages, _tools: {**say("on and"), "finish_reason": "length"})
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server, num_tasks=1), tmp_path / "cut")
        server.model = lambda _messages, _tools: call("echo", {"text": "no"})
        evaluated(spec, settings_of(server, num_tasks=1, max_turns=3), tmp_path / "turns")
    [cut], [turns] = read_episodes(tmp_path / "cut"), read_episodes(tmp_path / "turns")
    assert (cut.status, turns.status) == (EpisodeStatus.TRUNCATED, EpisodeStatus.TRUNCATED)
    assert "max_turns=3" in turns.reason
    assert len(turns.steps) == 3


def test_held_out_tasks_are_played_where_there_are_some(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, eval_split="test")}) as spec:
        evaluated(spec, settings_of(server), tmp_path / "out")
    assert [episode.task_id for episode in read_episodes(tmp_path / "out")] == ["echo/test/0"]


def test_two_evaluations_are_compared_task_by_task(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint(lambda _messages, _tools: say("no"))
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server), tmp_path / "before")
        server.model = diligent
        evaluated(spec, settings_of(server), tmp_path / "after")
        evaluated(spec, settings_of(server, num_tasks=1), tmp_path / "less")
    comparison = compared(tmp_path / "before", tmp_path / "after")
    assert (comparison.before, comparison.after) == (f"tiny ({tmp_path}/before)", f"tiny ({tmp_path}/after)")
    change = comparison.success["echo"]
    assert (change.before, change.num_better, change.num_worse) == (0.0, 2, 0)
    assert change.difference.value == pytest.approx(2 / 3)
    assert change.p_value == pytest.approx(0.5)  # two tasks changed: a fair coin falls the same way twice
    assert compared(tmp_path / "less", tmp_path / "after").num_left_out == 2
    with pytest.raises(RecordError, match=r"no evaluation\.json"):
        compared(tmp_path, tmp_path / "after")


def test_a_model_in_this_process_plays_too(echo_server: ORSServer, tmp_path: Path) -> None:
    settings = EvalSpec(num_tasks=2, max_tokens=8, temperature=0.0, max_concurrent=4)
    policy = LocalPolicy("tiny", training.model(), training.tokenizer(), settings, {"enable_thinking": False})
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        spec.present_to(training.tokenizer(), has_conversations=True)
        found = evaluate(spec, policy, settings, tmp_path / "out")
    result = found.environments["echo"]
    assert (result.num_tasks, result.num_lost) == (2, 0)
    assert found.tokens["completion"] > 0


def test_what_a_model_in_this_process_calls_is_called(echo_server: ORSServer, tmp_path: Path) -> None:
    settings = EvalSpec(max_tokens=200)
    policy = LocalPolicy("scripted", training.model(), training.tokenizer(), settings, {"enable_thinking": False})

    def scripted(prompts: Any) -> list[list[int]]:
        tokenizer = training.tokenizer()
        words = [tokenizer.decode(ids).rsplit("Echo '")[-1].split("'")[0] for ids in prompts]
        texts = [training.call("echo", text=word) for word in words]
        return [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts]

    policy._generate = scripted  # type: ignore[method-assign]
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        spec.present_to(training.tokenizer(), has_conversations=True)
        found = evaluate(spec, policy, settings, tmp_path / "out")
    assert found.environments["echo"].passes[1].value == 1.0


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MultiEnvError, match=r"pip install 'multienv\[eval\]'"):
        EndpointPolicy(EvalSpec(model="tiny", base_url="http://127.0.0.1:1/v1"))


def test_the_record_holds_what_the_figures_need(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server, num_tasks=1, difficulty_key="target"), tmp_path / "out")
    line = json.loads((tmp_path / "out" / "episodes.jsonl").read_text(encoding="utf-8"))
    assert line["evaluation"] | {"requests_s": 0, "seconds": 0} == {
        "attempt": 0,
        "difficulty": "hello",
        "is_success": True,
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "requests_s": 0,
        "seconds": 0,
    }


def answer_of(message: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more}


@pytest.mark.parametrize(
    "raw",
    [
        b"<no json",
        b"",
        [1],
        {"choices": "abc"},
        {"choices": {"a": 1}},
        {"choices": [5]},
        answer_of("hi"),
        answer_of(None),
    ],
)
def test_an_answer_in_no_known_form_loses_its_attempt_and_nothing_else(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path, raw: Any
) -> None:
    server = endpoint()
    server.raw = raw
    settings = settings_of(server, num_tasks=2, max_retries=0)
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        assert evaluated(spec, settings, tmp_path / "out").num_lost == 2
        server.raw = None
        assert evaluated(spec, settings, tmp_path / "out").num_lost == 0


def test_answers_that_bend_the_protocol_are_understood(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    def calls(*functions: Any) -> dict[str, Any]:
        custom = {"id": "x", "type": "custom", "custom": {"name": "echo", "input": "world"}}
        named = [{"id": None, "type": "function", "function": function} for function in functions]
        return answer_of(
            {"role": "assistant", "content": None, "tool_calls": [custom, *named]}, usage={"prompt_tokens": "5"}
        )

    server = endpoint()
    settings = settings_of(server, num_tasks=1, max_turns=1)
    deep = {"name": "echo", "arguments": "[" * 100_000}
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        server.raw = calls({"name": None, "arguments": "{}"}, deep, {"name": "echo", "arguments": {"text": "hello"}})
        found = evaluated(spec, settings, tmp_path / "calls")
        assert found.environments["echo"].passes[1].value == 1.0
        assert found.tokens["prompt"] == 0
        server.raw = answer_of({"role": "assistant", "content": [{"type": "text", "text": "I give up."}]})
        evaluated(spec, settings, tmp_path / "parts")
    (attempt,) = read_attempts(tmp_path / "parts")
    assert attempt.episode.completion[-1]["content"] == "I give up."


def test_an_answer_that_is_none_costs_its_attempt_and_no_more(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    def model(messages: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": 7} if "world" in prompt_of(messages) else diligent(messages, tools)

    server = endpoint(model)
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        found = evaluated(spec, settings_of(server), tmp_path / "out")
    assert (found.num_lost, found.environments["echo"].num_attempts) == (1, 2)


def test_half_a_call_is_not_made(echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path) -> None:
    server = endpoint(lambda _messages, _tools: {**call("echo", {"text": "hello"}), "finish_reason": "length"})
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server, num_tasks=1), tmp_path / "out")
    [episode] = read_episodes(tmp_path / "out")
    assert (episode.status, episode.steps) == (EpisodeStatus.TRUNCATED, ())


def test_another_reward_rule_is_another_evaluation(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        evaluated(spec, settings_of(server), tmp_path / "out")
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, reward=RewardSpec(scale=2.0))}) as spec:
        with pytest.raises(SpecError, match="rewards="):
            evaluated(spec, settings_of(server), tmp_path / "out")


def test_a_conversation_of_the_environments_own_has_an_id_for_each_call() -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("a.b", "c")]
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": "a.b", "content": "1"},
        {"role": "tool", "name": "c", "content": "2"},
    ]
    first, *results = _sent(messages, {"a.b": "a_b"})
    assert [call["function"]["name"] for call in first["tool_calls"]] == ["a_b", "c"]
    assert [result["tool_call_id"] for result in results] == [call["id"] for call in first["tool_calls"]]


def test_two_evaluations_do_not_write_into_one_directory(
    echo_server: ORSServer, endpoint: Callable[..., OpenAIServer], tmp_path: Path
) -> None:
    server = endpoint()
    with MultiEnvSpec({"echo": echo_server.url}) as spec:
        refused: list[str] = []

        def model(messages: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
            if not refused:
                with pytest.raises(SpecError) as caught:
                    EvaluationRecord.begin(tmp_path / "out", {}, frozenset())
                refused.append(str(caught.value))
            return diligent(messages, tools)

        server.model = model
        evaluated(spec, settings_of(server, num_tasks=1), tmp_path / "out")
        evaluated(spec, settings_of(server), tmp_path / "out")
    assert "is being written by another evaluation" in refused[0]
