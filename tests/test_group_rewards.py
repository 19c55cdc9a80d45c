"""Environments that score whole groups: each group together, as one more reward function, and no other row."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openreward.environments import ToolOutput, tool

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec, RewardSpec, errors
from multienv.router.groups import score_groups
from multienv.sessions.candidates import candidate, parse_scores
from tests.support.environments import Base, EchoEnvironment, output
from tests.support.fakes import batch, played
from tests.support.servers import ORSServer
from tests.support.training import call, config, model, scripted_trainer, tokenizer


class JudgedEnvironment(Base):
    """Scores the longest last message highest; writes down what was compared."""

    compared: ClassVar[list[list[Any]]] = []

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return output("a wall", 0.5)

    @tool
    def leave(self) -> ToolOutput:
        """Leave."""
        return output("gone", 1.0, finished=True)

    @tool
    def stumble(self) -> ToolOutput:
        """Stumble."""
        return output("ouch", sandbox="lost")

    async def score_group(self, candidates: Sequence[Any]) -> list[float]:
        self.compared.append([[(m.role, [b.type for b in m.blocks]) for m in one.messages] for one in candidates])
        texts = ["".join(getattr(b, "text", "") for b in one.messages[-1].blocks) for one in candidates]
        if any("spoil" in text for text in texts):
            raise ValueError("the judge is out")
        return [float(len(text)) for text in texts]


@pytest.fixture(scope="module")
def judged_server() -> Iterator[ORSServer]:
    with ORSServer([JudgedEnvironment]) as server:
        yield server
        assert server.open_sessions == []


def wordy(text: str, turn: int) -> str:
    if "Echo 'hello'" in text and turn < 1:
        return call("leave" if "leave" in text else "look")
    return "so" * (1 + text.count("o") % 3)


@pytest.mark.parametrize("is_in_process", [False, True])
def test_each_group_is_scored_together_and_other_rows_are_not(
    judged_server: ORSServer, echo_server: ORSServer, tmp_path: Path, is_in_process: bool
) -> None:
    JudgedEnvironment.compared.clear()
    target: Any = JudgedEnvironment if is_in_process else judged_server.url
    seen: list[Any] = []

    def watch(environments: list[Any], **_: Any) -> list[float]:
        seen.extend(environment.environment for environment in environments)
        return [0.0] * len(environments)

    environments = {"judged": EnvSpec(target, use_group_reward=True), "echo": echo_server.url}
    with MultiEnvSpec(environments, reward_funcs=watch) as spec:
        options = {"per_device_train_batch_size": 12, "num_generations": 4, "max_steps": 2}
        trainer = scripted_trainer(wordy, tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
        trainer.train()
    num_groups = seen.count("judged") // 4
    assert num_groups
    assert [len(candidates) for candidates in JudgedEnvironment.compared] == [4] * num_groups
    logged = [log for log in trainer.state.log_history if "rewards/judged/group/mean" in log]
    assert logged


def test_a_group_whose_scoring_fails_goes_without_and_is_told_once() -> None:
    with MultiEnvSpec({"judged": EnvSpec(JudgedEnvironment, use_group_reward=True)}) as spec:
        adapters: list[Any] = [spec.environment_factory["judged"]() for _ in range(4)]
        for row, adapter in enumerate(adapters):
            adapter.reset(task_index=row // 2)
        adapters[0].leave()
        texts = ["a", "spoil", "bb", "cccc"]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        function = next(one for one in spec.reward_funcs if one.__name__ == "judged/group")
        keywords = {**batch(adapters), "completions": completions}
        with pytest.warns(RuntimeWarning, match="could not be scored and goes without.*the judge is out"):
            assert function(**keywords) == [None, None, 2.0, 4.0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            adapters[2].reset(task_index=1)
            assert function(**{**keywords, "completions": completions}) == [None, None, 2.0, 4.0]


def test_rollouts_that_infrastructure_ended_are_no_candidates() -> None:
    fine = [played("a", []) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        failed = played("a", [errors.SessionError("lost")])
    completions = [[{"role": "assistant", "content": "x"}]] * 3
    assert score_groups("a", [fine[0], failed, fine[1]], completions, 3) == [0.0, None, 1.0]
    assert score_groups("a", [fine[0], failed], completions[:2], 2) == [None, None], "one is no comparison"
    assert score_groups("a", [*fine, *[played("a", []) for _ in range(2)]], [*completions, completions[0]], 2) == [
        0.0,
        1.0,
        0.0,
        1.0,
    ]


def test_rollouts_in_which_the_rule_recognises_a_failure_are_no_candidates() -> None:
    rule = RewardSpec(is_failure=lambda metadata: metadata.get("sandbox") == "lost")
    with MultiEnvSpec({"judged": EnvSpec(JudgedEnvironment, use_group_reward=True, reward=rule)}) as spec:
        adapters: list[Any] = [spec.environment_factory["judged"]() for _ in range(3)]
        for adapter in adapters:
            adapter.reset(task_index=0)
        adapters[0].stumble()
        completions = [[{"role": "assistant", "content": text}] for text in ["a", "bb", "cccc"]]
        function = next(one for one in spec.reward_funcs if one.__name__ == "judged/group")
        assert function(**{**batch(adapters), "completions": completions}) == [None, 2.0, 4.0]


def test_a_transcript_holds_calls_with_their_results() -> None:
    function = {"name": "look", "arguments": {"far": True}}
    made = candidate(
        [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "name": "look", "content": "a wall"},
            {"role": "assistant", "content": "A wall.", "reasoning_content": "hm"},
        ]
    )
    first, result, last = made["messages"]
    called = first["blocks"][0]
    assert (called["type"], called["name"], called["input"]) == ("tool_call", "look", {"far": True})
    assert result == {
        "role": "user",
        "blocks": [
            {"type": "tool_result", "tool_call_id": called["id"], "blocks": [{"type": "text", "text": "a wall"}]}
        ],
    }
    assert [block["type"] for block in last["blocks"]] == ["reasoning", "text"]


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")], [1.0, True], [1.0, "2"]])
def test_scores_are_one_finite_number_per_candidate(scores: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"scores for 2|finite number"):
        parse_scores({"scores": [{"reward": score} for score in scores]}, 2)


def test_an_environment_that_cannot_score_groups_and_a_group_spread_over_ranks_are_refused(
    judged_server: ORSServer, tmp_path: Path
) -> None:
    with MultiEnvSpec({"echo": EnvSpec(EchoEnvironment, use_group_reward=True)}) as spec:
        with pytest.raises(errors.SpecError, match="use_group_reward=True, but it does not score groups"):
            _ = spec.environment_factory
    with MultiEnvSpec({"judged": EnvSpec(judged_server.url, use_group_reward=True)}) as spec:
        args = config(tmp_path, per_device_train_batch_size=2, num_generations=4, gradient_accumulation_steps=2)
        args.steps_per_generation = 1
        with pytest.raises(errors.SpecError, match="2 rollouts of a batch, which is no multiple of num_generations=4"):
            MultiEnvGRPOTrainer(model(), args, spec=spec, processing_class=tokenizer())
        whole: dict[str, Any] = {"per_device_train_batch_size": 4, "num_generations": 4}
        args = config(tmp_path, **whole, per_device_eval_batch_size=2)
        trained = MultiEnvGRPOTrainer(model(), args, spec=spec, processing_class=tokenizer())
        with pytest.raises(errors.SpecError, match="2 rollouts of a batch, which is no multiple of num_generations_ev"):
            MultiEnvGRPOTrainer(
                model(), args, spec=spec, processing_class=tokenizer(), eval_dataset=trained.train_dataset
            )
        with pytest.raises(errors.SpecError, match="AsyncGRPOTrainer scores rollouts one by one"):
            spec.async_trainer_kwargs()
