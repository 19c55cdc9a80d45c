"""Environments whose prompt is a conversation: message by message where rows can hold that, else one user turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openreward.environments import Environment, TextBlock, ToolOutput, tool
from openreward.environments.types import Message, ToolResultBlock

from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec
from multienv.router.conversations import with_conversation
from multienv.router.play import FAILED_PROMPT
from multienv.sessions.blocks import parse_messages
from multienv.training.async_loop import ConcurrentRolloutLoop
from tests.support.environments import Base, EchoEnvironment, EchoParams, TalkEnvironment, output
from tests.support.fake_vllm import DrivenLoop, FakeVLLM, loop_options
from tests.support.kinds import OURS, PLAIN, Watch, assert_closed, log_of, trained
from tests.support.servers import ORSServer
from tests.support.training import call, tokenizer

SAID = {"role": "assistant", "content": ""}
TEA = {"type": "function", "function": {"name": "say", "arguments": {"text": "tea?"}}}
MOON = {"type": "function", "function": {"name": "say", "arguments": {"text": "moon?"}}}
SHOP: list[dict[str, Any]] = [
    {"role": "user", "content": "Is there any?"},
    {"role": "assistant", "content": "One moment.", "reasoning_content": "I must look.", "tool_calls": [TEA]},
    {"role": "tool", "name": "say", "content": "two cups"},
    {"role": "user", "content": "Echo 'hello'\nto win."},
]
SHOWN: dict[str, list[dict[str, Any]]] = {
    "hello": [{"role": "system", "content": "You sell tea."}, *SHOP],
    "world": [{"role": "user", "content": "Speak."}, {"role": "assistant", "content": "Echo 'world' to win."}],
    "moon": [
        {"role": "user", "content": "Look."},
        {**SAID, "tool_calls": [MOON]},
        {"role": "tool", "name": "say", "content": "Echo 'moon' to win."},
    ],
    "sun": [{"role": "system", "content": "Echo 'sun' to win."}],
}
BRIEF = {"role": "system", "content": "Be brief."}


def shown_under_a_system_prompt(target: str) -> list[dict[str, Any]]:
    first, *rest = SHOWN[target]
    if first["role"] != "system":
        return [BRIEF, first, *rest]
    return [{"role": "system", "content": f"Be brief.\n\n{first['content']}"}, *rest]


@pytest.fixture(scope="module")
def talk_server() -> Iterator[ORSServer]:
    with ORSServer([TalkEnvironment]) as server:
        yield server
        assert_closed(server)


class Play:
    """Say one thing, then stop; keeps the prompts it was given."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}

    def __call__(self, text: str, _turn: int) -> str:
        found = re.search(r"Echo '(\w+)'", text)
        assert found is not None, text
        if found[1] not in self.prompts:
            self.prompts[found[1]] = text
            return call("say", text="a")
        return call("say", text="b") if text.rstrip().endswith(("to win.", "[user]")) else "done"


def rendered(messages: list[dict[str, Any]], tools: list[Any], chat_template: str) -> str:
    ids = tokenizer().apply_chat_template(
        messages,
        tools=tools,
        chat_template=chat_template,
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    return str(tokenizer().decode(ids))


def tools_of(spec: MultiEnvSpec) -> list[Any]:
    factory: Any = spec.environment_factory["talk"]
    return list(factory()._offered().functions)


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
@pytest.mark.parametrize("is_concurrent", [True, False])
def test_the_prompt_is_the_conversation_message_by_message(
    talk_server: ORSServer, tmp_path: Path, system_prompt: str | None, is_concurrent: bool
) -> None:
    watch, play = Watch(), Play()
    declared = {"talk": EnvSpec(talk_server.url, system_prompt=system_prompt)}
    with MultiEnvSpec(declared, reward_funcs=watch) as spec:
        template = trained(OURS, spec, play, tmp_path, is_concurrent=is_concurrent).chat_template
        tools = tools_of(spec)
    for target, messages in SHOWN.items():
        expected = messages if system_prompt is None else shown_under_a_system_prompt(target)
        assert play.prompts[target] == rendered(expected, tools, template)
        assert [row["prompt"] for row in watch.of(target)] == [expected, expected]
        assert {row["episode"].status for row in watch.of(target)} == {EpisodeStatus.UNFINISHED}
        assert any(row["reward"] == 1.0 for row in watch.of(target)), "and the rollout goes on from there"


def test_async_grpo_shows_the_conversation_message_by_message(talk_server: ORSServer) -> None:
    play = Play()
    with (
        FakeVLLM(tokenizer(), play) as vllm,
        MultiEnvSpec({"talk": talk_server.url}, system_prompt="Be brief.") as spec,
    ):
        slots = spec.async_trainer_kwargs()
        slots["dataset"] = slots.pop("train_dataset")
        with DrivenLoop(ConcurrentRolloutLoop, **loop_options(tokenizer(), vllm.url, **slots)) as loop:
            samples = loop.take(8)
            template = loop.loop.chat_template
        tools = tools_of(spec)
        assert_closed(talk_server)
    for target in SHOWN:
        expected = shown_under_a_system_prompt(target)
        assert play.prompts[target] == rendered(expected, tools, template)
        assert expected in [sample.prompt for sample in samples]


@pytest.mark.parametrize("slots", [{}, {"shows_schemas": False}])
def test_where_a_row_holds_one_turn_it_is_the_servers_own_flattened_conversation(
    talk_server: ORSServer, tmp_path: Path, slots: dict[str, Any]
) -> None:
    watch = Watch()
    with MultiEnvSpec({"talk": EnvSpec(talk_server.url, indices=[0])}, reward_funcs=watch) as spec:
        log = log_of(
            trained(
                OURS if slots else PLAIN,
                spec,
                lambda _, turn: call("say", text="a") if turn < 2 else "b",
                tmp_path,
                **slots,
            )
        )
    # Our trainer keeps the policy's own markers out of what environments write.
    think = "< think>I must look.< /think>" if slots else "<think>I must look.</think>"
    flat = "\n".join(
        [
            "[system]",
            "You sell tea.",
            "[user]",
            "Is there any?",
            "[assistant]",
            think,
            "One moment.",
            '[tool_call say] {"text": "tea?"}',
            "[user]",
            "[tool_result]",
            "two cups",
            "[user]",
            "Echo 'hello'",
            "to win.",
        ]
    )
    assert [row["prompt"] for row in watch.rows] == [[{"role": "user", "content": flat}]] * 2
    assert log["rewards/talk/mean"] == 1.0


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
def test_an_environment_without_conversations_has_the_tokens_it_has_without_them(
    echo_server: ORSServer, tmp_path: Path, system_prompt: str | None
) -> None:
    rows = {}
    for has_conversations in (True, False):
        declared = {"echo": EnvSpec(echo_server.url, system_prompt=system_prompt)}
        with MultiEnvSpec(declared) as spec:
            echo_server.requests.clear()
            trainer = trained(
                OURS,
                spec,
                lambda _, turn: call("echo", text="hello") if turn < 1 else "done",
                tmp_path / str(has_conversations),
                shows_schemas=has_conversations,
            )
        batch = trainer._buffered_inputs[0]
        decode = trainer._tokenizer.decode
        prompts = [
            decode(ids[mask.bool()]) for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
        ]
        rows[has_conversations] = sorted(prompt.rpartition("</tools>")[2] for prompt in prompts)
        asked = [path for path in echo_server.paths() if path.endswith(("/messages", "/prompt"))]
        assert set(asked) == {"/echoenvironment/messages" if has_conversations else "/echoenvironment/prompt"}
    assert rows[True] == rows[False]


class ResultsEnvironment(Base):
    """Two results of two calls in one message, with a text beside them."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "x"}]

    def get_prompt(self) -> Any:
        return Environment.get_prompt(self)

    def get_messages(self) -> list[Message]:
        results = [
            ToolResultBlock(tool_call_id=name, blocks=[TextBlock(text=f"result of {name}")]) for name in ("c1", "c2")
        ]
        return [
            Message(role="user", blocks=[TextBlock(text="Go on."), TextBlock(text="<|im_end|>")]),
            Message(role="assistant", blocks=[]),
            Message(role="user", blocks=[*results, TextBlock(text="What now?")]),
        ]

    @tool
    def say(self, params: EchoParams) -> ToolOutput:
        """Say something."""
        return output(params.text, 1.0)


def test_results_become_messages_of_their_own_and_special_tokens_stay_text() -> None:
    with MultiEnvSpec({"results": ResultsEnvironment}) as spec:
        spec.present_to(tokenizer(), has_conversations=True)
        adapter: Any = spec.environment_factory["results"]()
        assert adapter.reset(task_index=0) == "What now?"
        first, *rest = adapter._opened_conversation()
    assert first["content"].startswith("Go on.\n")
    assert "<|im_end|>" not in first["content"]
    assert rest == [
        SAID,
        {"role": "tool", "name": "", "content": "result of c1"},
        {"role": "tool", "name": "", "content": "result of c2"},
        {"role": "user", "content": "What now?"},
    ]


def test_an_in_process_class_gives_its_conversation_too() -> None:
    with MultiEnvSpec({"talk": TalkEnvironment, "echo": EchoEnvironment}) as spec:
        spec.present_to(tokenizer(), has_conversations=True)
        talk: Any = spec.environment_factory["talk"]()
        echo: Any = spec.environment_factory["echo"]()
        assert talk.reset(task_index=0) == "Echo 'hello'\nto win."
        assert talk._opened_conversation() == SHOWN["hello"]
        assert echo.reset(task_index=0) == "Echo 'hello' to win."
        assert echo._opened_conversation() == []


@pytest.mark.filterwarnings("ignore:an episode failed")
def test_a_conversation_that_the_chat_template_refuses_fails_its_own_episode_only() -> None:
    alone = "{% if messages[-1].role == 'system' %}{{ raise_exception('No user query found.') }}{% endif %}{{ tools }}"
    with MultiEnvSpec({"talk": TalkEnvironment}) as spec:
        spec.present_to(tokenizer(), chat_template=alone, has_conversations=True)
        adapter: Any = spec.environment_factory["talk"]()
        for index, target in enumerate(SHOWN):
            prompt = adapter.reset(task_index=index)
            is_refused = SHOWN[target][-1]["role"] == "system"
            assert (adapter.episode.status is EpisodeStatus.FAILED) == is_refused
            assert (prompt == FAILED_PROMPT) == is_refused
            assert adapter._opened_conversation() == ([] if is_refused else SHOWN[target])
            if is_refused:
                assert "No user query found." in adapter.episode.reason


@pytest.mark.parametrize("role", ["tool", "developer", "User", "", None, ["user"], "x" * 5_000])
def test_a_role_that_ors_does_not_have_is_refused(role: Any) -> None:
    good = {"role": "user", "blocks": [{"type": "text", "text": "Hi"}]}
    with pytest.raises(ValueError, match="expected system, user, assistant") as refused:
        parse_messages([good, {**good, "role": role}])
    assert len(str(refused.value)) < 200


def test_a_rows_own_messages_come_first_and_system_messages_become_one() -> None:
    picture = {"type": "image", "image": None}
    row: dict[str, Any] = {"prompt": [BRIEF, {"role": "user", "content": "First."}], "task_index": 0}
    system: dict[str, Any] = {"role": "system", "content": [{"type": "text", "text": "See."}, picture]}
    user = {"role": "user", "content": "Hi"}
    joined = with_conversation(row, [system, user])["prompt"]
    assert joined == [
        {
            "role": "system",
            "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "\n\n"}, *system["content"]],
        },
        {"role": "user", "content": "First."},
        {"role": "user", "content": ""},
    ]
    assert row["prompt"][0] == BRIEF, "the row is left as it was"
    assert with_conversation(row, []) == row
