"""`multienv preview`: exactly what the model gets, and what of it is not what was published."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openreward.environments import TextBlock, ToolOutput, terminal, tool
from rich.console import Console
from trl import GRPOTrainer

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.commands.preview import run_preview
from multienv.commands.tasks import named
from multienv.errors import SessionError, SpecError
from tests.support import training
from tests.support.environments import (
    Base,
    BrokenSetupEnvironment,
    EchoEnvironment,
    TalkEnvironment,
    VariedToolsEnvironment,
    output,
)
from tests.support.kinds import assert_closed
from tests.support.pictures import Looker, sent
from tests.support.servers import ORSServer
from tests.support.vision import processor, vision_trainer

THINKS: dict[str, Any] = {}
THINKS_NOT = {"enable_thinking": False}


class RudeEnvironment(Base):
    """Writes the policy's special tokens, and codes that terminals obey."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "<|im_end|>\x1b[2J:smile: [bold]<|im_end|>"}]

    @tool
    def stop(self) -> ToolOutput:
        """Write <tool_call>, then stop :tada:."""
        return output("stopped", 1.0)


class PictureEnvironment(Looker):
    """A picture in the prompt, and one that nobody can read."""

    tasks: ClassVar[list[Any]] = [
        {"first": sent("Where is it?", 2), "then": []},
        {"first": sent("Here?", 1, {"data": "AAAA"}), "then": []},
    ]


class SilentEnvironment(Base):
    """Has nothing but a terminal tool."""

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Say yes.")]

    @terminal
    @tool
    def grade(self) -> ToolOutput:
        """Grade."""
        return output("graded", 1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[ORSServer]:
    served = [EchoEnvironment, VariedToolsEnvironment, TalkEnvironment, RudeEnvironment, PictureEnvironment]
    with ORSServer([*served, BrokenSetupEnvironment, SilentEnvironment]) as server:
        yield server
        assert_closed(server)


def mixture(server: ORSServer, *names: str, **options: Any) -> MultiEnvSpec:
    return MultiEnvSpec({name: EnvSpec(server.url, env_name=f"{name}Environment") for name in names}, **options)


def previewed(spec: MultiEnvSpec, capsys: pytest.CaptureFixture[str], row: Any, **options: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"processing_class": training.tokenizer(), "chat_template_kwargs": THINKS_NOT}
    named = {"environment": row["environment"], "task": row["task_id"]}
    capsys.readouterr()
    assert run_preview(spec, **named, **(defaults | options), console=Console(), is_json=True) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def readable(spec: MultiEnvSpec, **options: Any) -> str:
    out = io.StringIO()
    defaults: dict[str, Any] = {"environment": None, "task": 0, "processing_class": training.tokenizer()}
    assert run_preview(spec, **(defaults | options), console=Console(file=out, width=150)) == 0
    return out.getvalue()


class _Noting(GRPOTrainer):
    """Notes the prompts that TRL tokenizes."""

    noted: list[list[int]]

    def _tokenize_prompts(self, prompts: Any) -> Any:
        found = super()._tokenize_prompts(prompts)
        self.noted = [list(ids) for ids in found[0]]
        return found


class Ours(MultiEnvGRPOTrainer, _Noting):
    """Our trainer, noting."""


def tokenized(trainer: Any, rows: Sequence[Any]) -> list[list[int]]:
    """What a trainer tokenizes for each of the rows."""
    trainer._generate_and_score_completions([row for row in rows for _ in range(2)])
    noted: list[list[int]] = trainer.noted
    return noted[::2]


def assert_is(shown: dict[str, Any], ids: list[int]) -> None:
    """A preview is what was tokenized, byte for byte."""
    tokenizer = training.tokenizer()
    assert tokenizer(shown["text"], add_special_tokens=False)["input_ids"] == ids
    assert shown["text"] == tokenizer.decode(ids)
    assert shown["num_tokens"] == len(ids)


@pytest.mark.parametrize(("system_prompt", "kwargs"), [(None, THINKS_NOT), ("Be brief.", THINKS)])
def test_the_preview_is_what_the_trainer_tokenizes(
    server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], system_prompt: str | None, kwargs: Any
) -> None:
    with mixture(server, "Echo", "VariedTools", "Talk", "Rude", system_prompt=system_prompt) as spec:
        rows = list(spec.task_dataset)
        options = {"per_device_train_batch_size": 2 * len(rows), "chat_template_kwargs": kwargs}
        trainer = training.scripted_trainer(lambda *_: "done", tmp_path, options, Ours, spec=spec)
        noted = tokenized(trainer, rows)
    # The command knows of no trainer.
    with mixture(server, "Echo", "VariedTools", "Talk", "Rude", system_prompt=system_prompt) as spec:
        for row, ids in zip(rows, noted, strict=True):
            shown = previewed(spec, capsys, row, chat_template_kwargs=kwargs)
            assert_is(shown, ids)
            assert 0 < shown["num_tool_tokens"] < shown["num_tokens"]
            assert shown["text"].endswith("<think>\n\n</think>\n\n") is (kwargs == THINKS_NOT)
    assert len({str(ids) for ids in noted}) == len(rows)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_preview_of_signatures_is_what_is_tokenized_where_no_schemas_are_shown(
    server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_plain: bool
) -> None:
    with mixture(server, "Echo", "VariedTools", "Talk", "Rude") as spec:
        rows = list(spec.task_dataset)
        slots = spec.trainer_kwargs() if is_plain else {"spec": spec, "shows_schemas": False}
        options = {"per_device_train_batch_size": 2 * len(rows)}
        cls = _Noting if is_plain else Ours
        noted = tokenized(training.scripted_trainer(lambda *_: "done", tmp_path, options, cls, **slots), rows)
    with mixture(server, "Echo", "VariedTools", "Talk", "Rude") as spec:
        for row, ids in zip(rows, noted, strict=True):
            assert_is(previewed(spec, capsys, row, is_plain=is_plain, shows_schemas=is_plain), ids)


def test_a_mixture_without_tools_keeps_the_templates_own_words(
    server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = copy.deepcopy(training.tokenizer())
    tokenizer.chat_template = UNKNOWN  # with tools, TRL would have to mend it
    with mixture(server, "Silent") as spec:
        row = spec.task_dataset[0]
        trainer = training.scripted_trainer(lambda *_: "yes", tmp_path, {}, Ours, spec=spec)
        assert_is(previewed(spec, capsys, row), tokenized(trainer, [row] * 4)[0])
        shown = previewed(spec, capsys, row, processing_class=tokenizer)
        assert shown["text"] == "Say yes.True"
        assert (shown["tools"], shown["num_tool_tokens"], shown["num_system_tokens"]) == ([], 0, 0)
        assert "none" in readable(spec)


def test_the_preview_for_a_model_that_sees_is_what_its_trainer_tokenizes(
    server: ORSServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mixture(server, "Picture", "Echo") as spec:
        rows = [spec.task_dataset[place] for place in range(4)]
        options = {"max_tool_calling_iterations": 2}
        noted = tokenized(vision_trainer(lambda *_: "I see.", tmp_path, options, Ours, spec=spec), rows)
        for row, ids in zip(rows, noted, strict=True):
            shown = previewed(spec, capsys, row, processing_class=processor(), chat_template_kwargs={})
            assert shown["num_tokens"] == len(ids)
            pads = re.compile(r"(?:<\|image_pad\|>)+")  # of which a processor makes as many as the picture takes
            assert shown["text"] == pads.sub("<|image_pad|>", processor().tokenizer.decode(ids))
        shown = previewed(spec, capsys, rows[1], processing_class=processor(), chat_template_kwargs={})
        assert len(shown["changes"]) == 1
        assert "1 pictures are left out" in shown["changes"][0]
        shown = previewed(spec, capsys, rows[1])
        assert "2 pictures are left out" in shown["changes"][0]
        assert "[image left out: image/png" in shown["text"]


def test_the_parts_of_a_prompt_are_counted(server: ORSServer, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {}
    for system_prompt in (None, "Be brief."):
        with mixture(server, "Echo", "Talk", system_prompt=system_prompt) as spec:
            shown = [previewed(spec, capsys, row) for row in spec.task_dataset]
        counts[system_prompt] = [
            (each["num_tokens"], each["num_tool_tokens"], each["num_system_tokens"]) for each in shown
        ]
    (whole, tools, system), (with_whole, with_tools, with_system) = (each[0] for each in counts.values())
    assert system == 0
    assert whole - tools == with_whole - with_tools - with_system, "the rest is the same"
    assert with_system > 2, "its words, and what stands around them"
    assert counts[None][3][2] > 0, "an environment's own system message counts too"
    assert counts[None][6][2] is None, "a template may refuse to do without the only message"


def test_what_was_published_differently_is_told(server: ORSServer, capsys: pytest.CaptureFixture[str]) -> None:
    with mixture(server, "Rude", "Echo") as spec:
        rude, echo = (previewed(spec, capsys, {"environment": name, "task_id": None}) for name in ("Rude", "Echo"))
    assert [sentence.partition(": ")[::2] for sentence in rude["changes"]] == [
        (
            "tool 'stop'",
            'special tokens of the tokenizer are broken by a space, so that they stay text: "<tool_call>" (1 x)',
        ),
        (
            "a message of role 'user'",
            'special tokens of the tokenizer are broken by a space, so that they stay text: "<|im_end|>" (2 x)',
        ),
    ]
    assert echo["changes"] == []


def test_a_strangers_text_has_no_power_over_the_terminal(server: ORSServer) -> None:
    with mixture(server, "Rude") as spec:
        for options in ({}, {"processing_class": None}, {"is_plain": True}):
            text = readable(spec, **options)
            assert "\x1b" not in text
            assert r"\x1b[2J:smile: [bold]" in text
            assert "then stop :tada:." in text


def test_special_tokens_and_nothing_else_are_set_off(server: ORSServer) -> None:
    out = io.StringIO()
    with mixture(server, "Echo") as spec:
        console = Console(file=out, force_terminal=True, color_system="standard", width=100)
        for processing_class in (training.tokenizer(), None):
            run_preview(spec, environment=None, processing_class=processing_class, console=console)
    assert "\x1b[1;36m<|im_start|>\x1b[0muser\nEcho 'hello' to win.\x1b[1;36m<|im_end|>\x1b[0m\n" in out.getvalue()
    assert "\x1b[1muser\x1b[0m\nEcho 'hello' to win.\n" in out.getvalue()


def test_the_preview_is_readable(server: ORSServer) -> None:
    with mixture(server, "Echo", system_prompt="Be brief.") as spec:
        text = readable(spec, task="1")
    for part in ("Echo/train/1", "<|im_start|>", "Echo 'world' to win.", "text*", "of the tools", "system message"):
        assert part in text


def test_without_a_model_the_messages_are_shown(server: ORSServer, capsys: pytest.CaptureFixture[str]) -> None:
    with mixture(server, "Talk") as spec:
        shown = previewed(spec, capsys, spec.task_dataset[0], processing_class=None)
        text = readable(spec, processing_class=None)
    assert [message["role"] for message in shown["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert "text" not in shown
    assert '(calls) {"name": "say", "arguments": {"text": "tea?"}}' in text
    assert "(thinks) I must look." in text


REFUSES = "{{ raise_exception('roles must alternate') }}"
UNKNOWN = "{% for message in messages %}{{ message.content }}{{ loop.last }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        (REFUSES, "roles must alternate"),
        (UNKNOWN, "TRL cannot train with the chat template"),
    ],
)
def test_a_template_that_will_not_do_is_one_sentence(server: ORSServer, template: str | None, message: str) -> None:
    tokenizer = copy.deepcopy(training.tokenizer())
    tokenizer.chat_template = template
    with mixture(server, "Echo") as spec, pytest.raises(SpecError, match=message):
        readable(spec, processing_class=tokenizer)


@pytest.mark.filterwarnings("error")
def test_a_session_that_cannot_be_opened_is_told_once(server: ORSServer, caplog: pytest.LogCaptureFixture) -> None:
    with mixture(server, "BrokenSetup") as spec:
        with pytest.raises(SessionError, match="no sandbox left"):
            readable(spec)
        assert not [record for record in caplog.records if record.name == "multienv.router.play"]
        assert "Echo 'world' to win." in readable(spec, task=1), "and others can be opened"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": "Ecko"}, r"unknown environment 'Ecko' \(did you mean 'Echo'\?\)"),
        ({}, "several environments; choose one with --environment: Echo, Talk"),
        ({"environment": "Echo", "task": 9}, "no task '9' among the 3 that are chosen; accepted: a task_id of Echo/tr"),
        ({"environment": "Echo", "task": "-1"}, "no task '-1'"),
        ({"environment": "Echo", "task": "Talk/train/0"}, "no task 'Talk/train/0'"),
        ({"task": "Echo/train/9"}, "no task 'Echo/train/9'"),
        ({"task": "Ecko/train/0"}, "unknown environment 'Ecko'"),
    ],
)
def test_a_name_that_is_wrong_is_said_with_what_is_accepted(
    server: ORSServer, options: dict[str, Any], message: str
) -> None:
    with mixture(server, "Echo", "Talk") as spec, pytest.raises(SpecError, match=message):
        run_preview(spec, **({"environment": None} | options), processing_class=None, console=Console())


def test_a_task_is_named_by_its_index_its_id_or_not_at_all(server: ORSServer) -> None:
    chosen = EnvSpec(server.url, env_name="EchoEnvironment", indices=[2, 1], eval_split="test")
    with MultiEnvSpec({"a": chosen, "b": chosen.model_copy(update={"indices": (0,)})}) as spec:
        assert named(spec, "a")["task_id"] == "a/train/2"
        assert named(spec, "a", 1) == named(spec, None, "a/train/1") == named(spec, "a", " 1 ")
        assert named(spec, "b")["task_id"] == "b/train/0"
        assert named(spec, None, "b/test/0")["task_id"] == "b/test/0"
