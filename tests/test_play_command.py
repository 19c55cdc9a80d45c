"""`multienv play`: an episode stepped by hand is one of training, and no line does what it does not say."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvSpec, RewardSpec
from multienv.commands.lines import Command, MistakeError, Word, completions, read_line
from multienv.commands.play import run_play
from multienv.errors import SpecError
from multienv.reporting import EpisodeRecord, read_episodes
from multienv.router.spelling import Spelling
from multienv.router.toolbox import Toolbox
from multienv.types import ToolSpec
from tests.support.environments import (
    AnswerEnvironment,
    ClimbEnvironment,
    EchoEnvironment,
    NumberEnvironment,
    TalkEnvironment,
    VariedToolsEnvironment,
)
from tests.support.kinds import assert_closed
from tests.support.servers import ORSServer

EDIT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "yes": {"type": "boolean"},
        "list": {"type": "array"},
        "edit": {"$ref": "#/$defs/Edit"},
        "any": {},
    },
    "$defs": {"Edit": {"type": "object"}},
}
NAMES = ("edit", "edit file", "say", "call", "run-tests", "#odd")
TOOLS = Toolbox([ToolSpec(name, "A tool.", EDIT) for name in NAMES], Spelling()).shown


@pytest.fixture(scope="module")
def server() -> Iterator[ORSServer]:
    served = [EchoEnvironment, ClimbEnvironment, AnswerEnvironment, NumberEnvironment, TalkEnvironment]
    with ORSServer([*served, VariedToolsEnvironment]) as server:
        yield server
        assert_closed(server)


def mixture(server: ORSServer, name: str, **options: Any) -> MultiEnvSpec:
    return MultiEnvSpec({name: EnvSpec(server.url, env_name=f"{name}Environment", **options)})


def played(spec: MultiEnvSpec, *lines: str, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    given_ = {"environment": None, "console": Console(file=out, width=100), "lines": lines}
    return run_play(spec, **(given_ | options)), out.getvalue()


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("edit", {}),
        ('edit {"n": 1, "text": "1"}', {"n": 1, "text": "1"}),
        ('edit{"n":1}', {"n": 1}),
        ("\tedit\tn=1  x=1 yes=true  ", {"n": 1, "x": 1, "yes": True}),
        ("edit text=1 maybe=null any=null", {"text": "1", "maybe": "null", "any": None}),
        ("edit text='two words' any=\"a b\"", {"text": "two words", "any": "a b"}),
        ("edit text= n=1", {"text": "", "n": 1}),
        ("edit text=a=b", {"text": "a=b"}),
        ('edit list=["a b", 1] n=2', {"list": ["a b", 1], "n": 2}),
        ('edit edit={"line": 4}', {"edit": {"line": 4}}),
        ('edit text={"line": 4}', {"text": '{"line": 4}'}),
        ("edit text=[open", {"text": "[open"}),
        ("edit n=one x=1.5 yes=True", {"n": "one", "x": 1.5, "yes": True}),
        ("edit unknown=1", {"unknown": 1}),
    ],
)
def test_a_value_is_read_by_the_type_its_parameter_has(line: str, arguments: dict[str, Any]) -> None:
    assert read_line(line, TOOLS) == Command(Word.CALL, "edit", arguments)


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        ("edit file n=1", "edit file"),
        ("call say n=1", "say"),
        ("call call n=1", "call"),
        ("call #odd n=1", "#odd"),
        ("run-tests n=1", "run-tests"),
    ],
)
def test_every_tool_can_be_called_whatever_it_is_called(line: str, tool: str) -> None:
    assert read_line(line, TOOLS) == Command(Word.CALL, tool, {"n": 1})


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("", None),
        ("  # a remark", None),
        ("say  it's {done}", Command(Word.SAY, text="it's {done}")),
        ("help", Command(Word.HELP)),
        ("? edit file", Command(Word.HELP, "edit file", text="edit file")),
        ("edit?", Command(Word.HELP, "edit")),
        ("tools", Command(Word.TOOLS)),
        ("exit", Command(Word.QUIT)),
    ],
)
def test_a_word_means_what_the_help_says(line: str, meaning: Command | None) -> None:
    assert read_line(line, TOOLS) == meaning


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "edi text=hello",
            r"no tool 'edi' \(did you mean 'edit'\?\); tools: edit, edit file, call say, call call, run",
        ),
        ("call", "no tool ''"),
        ("help edi", "no tool 'edi'"),
        ("say", "say what"),
        ("edit {text: 1}", "no JSON"),
        ('edit {"n": 1, "n": 2}', "a name is given twice"),
        ('edit {"n": NaN}', "NaN is no number of JSON"),
        ("edit " + '{"list": ' + "[" * 100_000, "nested too deep"),
        ("edit n=1 n=2", "'n' is given twice"),
        ("edit hello", "'hello' is no name=value"),
        ("edit n = 1", "'n' is no name=value"),
        ("edit =1", "'=1' is no name=value"),
        ('edit text="open', "cannot be read: No closing quotation"),
    ],
)
def test_a_line_that_is_not_understood_is_told(line: str, told: str) -> None:
    with pytest.raises(MistakeError, match=told):
        read_line(line, TOOLS)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("", [*NAMES, *Word]),
        ("help ", [*NAMES]),
        ("call ", [*NAMES]),
        ("say ", []),
        ("edi ", []),
        ("edit n=1 ", [f"{name}=" for name in EDIT["properties"]]),
        ("call say ", [f"{name}=" for name in EDIT["properties"]]),
    ],
)
def test_what_can_follow_is_completed(before: str, words: list[str]) -> None:
    assert completions(before, TOOLS) == words


@given(st.dictionaries(st.sampled_from(["text", "maybe"]), st.text(st.characters(exclude_categories=["Cs"]))))
def test_quoted_texts_arrive_as_they_are(texts: dict[str, str]) -> None:
    quoted = " ".join(f"{name}='{text.replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'"
                      for name, text in texts.items())  # fmt: skip
    assert read_line(f"edit {quoted}", TOOLS) == Command(Word.CALL, "edit", texts)
    assert read_line(f"edit {json.dumps(texts)}", TOOLS) == Command(Word.CALL, "edit", texts)


@given(st.text() | st.text("edit={}[]\"' n1\\"))
def test_no_line_is_more_than_a_mistake(line: str) -> None:
    for text in (line, f"edit {line}"):
        try:
            read_line(text, TOOLS)
        except MistakeError as mistake:
            assert str(mistake)  # noqa: PT017 - whether it is raised is the line's affair


def test_an_episode_is_stepped_by_hand(server: ORSServer) -> None:
    with mixture(server, "Echo") as spec:
        status, text = played(spec, 'echo {"text": "no"}', "", "echo text=hello", "echo text=never")
    assert status == 0
    assert "Echo 'hello' to win." in text
    assert "no match\nreward 0.0" in text
    assert "· finished · the episode so far counts 1.0" in text
    assert "never" not in text
    assert text.endswith("finished\nreward 1.0, success True, 2 steps\n")


def test_a_mistake_sends_nothing_and_a_breach_of_the_schema_is_refused_as_in_training(server: ORSServer) -> None:
    with mixture(server, "Echo") as spec:
        status, text = played(spec, "eco text=hello", "echo wrong=1", "help echo", "tools", task=1)
    assert status == 0
    assert "no tool 'eco' (did you mean 'echo'?)" in text
    assert "refused" in text
    assert '"properties"' in text
    assert "TOOL name=value" in text
    assert "1 steps" in text


def test_the_limits_of_training_hold(server: ORSServer) -> None:
    with mixture(server, "Echo", limits=Limits(max_tool_calls=1), reward=RewardSpec(unfinished=-1.0)) as spec:
        _, text = played(spec, "echo text=no", "echo text=hello", "echo text=hello", "echo text=never")
        _, left = played(spec, "quit", "echo text=hello")
    assert "its limit of 1 tool calls is reached" in text
    assert "truncated" in text
    assert "never" not in text
    assert "reward -1.0, success False, 0 steps" in left


def test_a_conversation_is_shown_and_a_tool_named_like_a_word_can_be_called(server: ORSServer) -> None:
    with mixture(server, "Talk") as spec:
        _, text = played(spec, "call say text=1", "say text=1", task="Talk/train/0")
    assert "tools: call say" in text
    assert "You sell tea." in text
    assert "[assistant]" not in text, "message by message, as in training"
    assert "1\nreward 1.0" in text
    assert "1 steps" in text


def test_each_task_has_its_own_tools(server: ORSServer) -> None:
    with mixture(server, "VariedTools") as spec:
        _, text = played(spec, "press level=2", task=1)
        _, other = played(spec, "press level=2", "press button=red", task=0)
    assert "did press" in text
    assert VariedToolsEnvironment.calls[-2:] == [
        ("world", "press", {"level": 2}),
        ("hello", "press", {"button": "red"}),
    ]
    assert "refused" in other


@pytest.mark.parametrize(
    ("name", "said", "told"),
    [
        ("Answer", "hello", ["submit graded it: right", "reward 5.0, success True, 1 steps"]),
        ("Number", "seven", ["submit graded it:", "refused", "unfinished"]),
        ("Echo", "hello", ["unfinished", "0 steps"]),
    ],
)
def test_what_is_said_ends_the_episode_and_is_graded(server: ORSServer, name: str, said: str, told: list[str]) -> None:
    with mixture(server, name) as spec:
        _, text = played(spec, f"say {said}", "say never")
    for part in told:
        assert part in text
    assert "never" not in text


def test_the_episode_is_json_at_the_end(server: ORSServer, capsys: pytest.CaptureFixture[str]) -> None:
    with mixture(server, "Echo", reward=RewardSpec(scale=2.0)) as spec:
        status, _ = played(spec, "echo text=hello", console=Console(), is_json=True)
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert (document["status"], document["reward"], document["is_success"]) == ("finished", 2.0, True)
    assert document["steps"][0]["arguments"] == {"text": "hello"}
    assert [message["role"] for message in document["completion"]] == ["assistant", "tool"]


@pytest.mark.parametrize("is_json", [True, False])
def test_lines_come_from_a_pipe(
    server: ORSServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"# by hand\necho text=no\n"), "utf-8"))
    with mixture(server, "Echo") as spec:
        status, text = played(spec, lines=None, is_json=is_json)
    assert status == 0
    assert ("1 steps" in text) is not is_json
    assert (capsys.readouterr().out == "") is not is_json


def test_what_is_no_text_is_one_sentence(server: ORSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"echo text=\xff\n"), "utf-8"))
    with mixture(server, "Echo") as spec, pytest.raises(SpecError, match="no text in utf-8"):
        played(spec, lines=None)


def test_the_record_can_be_read_as_any_other(server: ORSServer, tmp_path: Path) -> None:
    path = tmp_path / "new" / "episodes.jsonl"
    with mixture(server, "Answer") as spec:
        played(spec, "look", "say hello", record=path)
        played(spec, "leave", record=path)
        with pytest.raises(SpecError, match="cannot be written: Is a directory"):
            played(spec, "look", record=tmp_path)
        EpisodeRecord(tmp_path).add(read_episodes(path.parent))
        with pytest.raises(SpecError, match="choose another file"):
            played(spec, "look", record=tmp_path / "episodes.jsonl")
    first, second = read_episodes(path.parent)
    assert (first.reward, first.is_evaluation, first.training_step) == (5.0, True, None)
    assert [message["role"] for message in first.completion] == ["assistant", "tool", "assistant"]
    assert first.completion[0]["tool_calls"][0]["function"]["name"] == "look"
    assert second.status is EpisodeStatus.FINISHED


def test_the_environments_own_word_of_a_failure_counts(server: ORSServer) -> None:
    rule = RewardSpec(is_failure=lambda metadata: metadata.get("height") == 2)
    with mixture(server, "Climb", reward=rule) as spec:
        status, text = played(spec, "up n=2")
    assert status == 1
    assert "failed\nreward None, success None" in text


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_session_is_closed_whatever_happens(server: ORSServer, error: type[BaseException]) -> None:
    def lines() -> Iterator[str]:
        yield "echo text=no"
        raise error

    with mixture(server, "Echo") as spec:
        with pytest.raises(error):
            played(spec, lines=lines())
        assert_closed(server)


def test_an_interrupt_ends_a_call_that_never_comes_back(server: ORSServer) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with mixture(server, "Climb") as spec:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            played(spec, "hangs")
        timer.join()
        assert_closed(server)
