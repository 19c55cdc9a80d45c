"""What `spec.check()` finds in a mixture before a run, and that it raises nothing whatever it meets."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import trl
from hypothesis import given
from hypothesis import strategies as st
from openreward.environments import TextBlock, ToolOutput, terminal, tool
from openreward.environments.types import ImageBlock, ListToolsOutput, Message, ToolSpec
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers.utils import DocstringParsingException
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from multienv import EnvSpec, Finding, ForeignSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec, Severity
from multienv.checks import run, settings
from multienv.checks.findings import Code, gravest_first, joined, quoted
from multienv.checks.hidden import hidden_parts
from multienv.checks.looks import Look, Mixture
from multienv.checks.signatures import hidden_by_signature
from multienv.checks.templates import prints_json
from multienv.errors import SpecError
from multienv.router.presentation import Presentation
from multienv.router.spelling import Spelling
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from multienv.types import ToolSpec as PublishedTool
from tests.support.environments import (
    Base,
    BrokenSetupEnvironment,
    EchoEnvironment,
    OneEnvironment,
    TaskToolsEnvironment,
    TwoEnvironment,
    output,
)
from tests.support.foreign import GuessEnvironment, guesses
from tests.support.published import catalogue, published
from tests.support.servers import AppServer
from tests.support.training import config, scripted_trainer, tokenizer
from tests.support.vision import processor

DOCS = (Path(__file__).parent.parent / "docs" / "checks.md").read_text(encoding="utf-8")
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
QUICK = Limits(connect_timeout_s=1.0, open_timeout_s=1.0, prompt_timeout_s=1.0, close_timeout_s=1.0, max_retries=0)


def check(environments: Mapping[str, Any], args: Any = None, **options: Any) -> list[Finding]:
    with MultiEnvSpec(environments, **options) as spec:
        return spec.check(args)


def of(findings: list[Finding], code: Code) -> list[Finding]:
    return [finding for finding in findings if finding.code is code]


def only(findings: list[Finding], code: Code) -> Finding:
    (found,) = of(findings, code)
    return found


def codes(findings: list[Finding]) -> set[Code]:
    return {finding.code for finding in findings}


def bare() -> Any:
    """An environment without any tool; `Base` itself must not be served, for its cache is handed to its subclasses."""
    return published("Bare", [])


def with_template(name: str) -> Any:
    made = copy.copy(tokenizer())
    made.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return made


@pytest.fixture
def faulty() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


# What a list of findings is


def test_a_healthy_mixture_has_nothing_worse_than_notes(tmp_path: Path) -> None:
    with MultiEnvSpec({"echo": EchoEnvironment, "one": OneEnvironment}) as spec:
        assert codes(spec.check(config(tmp_path))) == {Code.POLICY_UNKNOWN}
        spec.present_to(tokenizer())
        findings = spec.check(config(tmp_path))
    assert codes(findings) == {Code.TEMPLATE_EXACT}
    assert {finding.environment for finding in findings} == {"echo", "one"}


def test_the_documented_example_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "docs/checks.md", "exec"), names)
    assert printed.getvalue().splitlines() == [str(finding) for finding in names["findings"]]
    assert codes(names["findings"]) == {Code.SIGNATURE_LOSSY, Code.POLICY_UNKNOWN, Code.SELDOM_SAMPLED}


def test_the_documented_codes_are_the_codes_there_are() -> None:
    documented = re.findall(r"^\| `([\w-]+)` \|", DOCS, re.MULTILINE)
    assert sorted(documented) == sorted(Code)
    assert len(set(documented)) == len(documented)


def test_every_code_can_be_found_by_a_check() -> None:
    rooms = Path(run.__file__).parent
    used = "".join(path.read_text(encoding="utf-8") for path in rooms.glob("*.py") if path.name != "findings.py")
    assert [code for code in Code if f"Code.{code.name}" not in used] == []


def test_errors_come_first_and_findings_of_one_severity_stay_in_order() -> None:
    order = (Severity.NOTE, Severity.ERROR, Severity.WARNING, Severity.ERROR)
    findings = [Finding(severity, str(place), Code.NO_TOOLS, "m") for place, severity in enumerate(order)]
    assert [finding.environment for finding in gravest_first(findings)] == ["1", "3", "2", "0"]


def test_a_finding_is_frozen_and_reads_as_one_line() -> None:
    finding = Finding(Severity.ERROR, None, Code.REMOVES_COLUMNS, "It drops a column.")
    assert str(finding) == "error [removes-columns] It drops a column."
    with pytest.raises(AttributeError):
        finding.message = "other"  # type: ignore[misc]


def test_published_names_stay_short_and_on_one_line() -> None:
    assert quoted("a\nb") == r"'a\nb'"
    assert len(quoted("x" * 1_000)) == 60
    assert joined(map(str, range(5)), most=3) == "0; 1; 2; and 2 more"


# Servers and sessions


def test_each_server_that_fails_is_a_finding_and_the_others_are_checked(faulty: FaultServer) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with FaultServer(faults=[Fault(FaultKind.UNAUTHORIZED, Phase.LISTING)]) as locked:
        findings = check(
            {
                "nobody": EnvSpec(nobody, limits=QUICK),
                "locked": EnvSpec(locked.url, limits=QUICK),
                "keyless": "owner/name",
                "other": EnvSpec(faulty.url, env_name="falt"),
                "toolset": EnvSpec(faulty.url, toolset="claud-code"),
                "echo": EchoEnvironment,
                "broken": BrokenSetupEnvironment,
            }
        )
    errors = {finding.environment: finding for finding in findings if finding.severity is Severity.ERROR}
    assert {name: finding.code for name, finding in errors.items()} == {
        "nobody": Code.SERVER_UNREACHABLE,
        "locked": Code.SERVER_REFUSES_KEY,
        "keyless": Code.SERVER_REFUSES_KEY,
        "other": Code.UNKNOWN_ENVIRONMENT,
        "toolset": Code.DECLARATION_WRONG,
        "broken": Code.SESSION_FAILED,
    }
    assert "did you mean 'fault'?" in errors["other"].message
    assert "no sandbox left" in errors["broken"].message
    assert all(finding.fix for finding in errors.values())


@pytest.mark.parametrize("kind", [FaultKind.MALFORMED, FaultKind.ERROR])
def test_a_server_that_answers_wrongly_is_a_finding(faulty: FaultServer, kind: FaultKind) -> None:
    faulty.faults = [Fault(kind, Phase.LISTING, times=None)]
    finding = only(check({"env": EnvSpec(faulty.url, limits=QUICK)}), Code.SERVER_ANSWERS_WRONGLY)
    assert finding.environment == "env"


@pytest.mark.parametrize(
    ("phase", "code"), [(Phase.LISTING, Code.SERVER_UNREACHABLE), (Phase.PROMPT, Code.SESSION_FAILED)]
)
def test_a_server_that_hangs_costs_its_limit_and_no_more(faulty: FaultServer, phase: Phase, code: Code) -> None:
    faulty.faults = [Fault(FaultKind.HANG, phase, times=None)]
    with MultiEnvSpec({"env": EnvSpec(faulty.url, limits=QUICK)}) as spec:
        started = time.monotonic()
        finding = only(spec.check(), code)
        assert time.monotonic() - started < 10
    assert re.search(r"within 1 s", finding.message)


def test_one_session_is_opened_for_the_first_declared_task_and_closed(faulty: FaultServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(faulty.url, indices=[2, 0, 1])}) as spec:
        assert spec.check()
        assert faulty.num_requests["/create"] == 1
        assert faulty.open_sessions == {}
        assert faulty.runs == []
        assert spec.train_dataset["n"] == [2, 0, 1], "the spec is as usable as before"


def test_tasks_the_server_does_not_have_are_said_as_they_would_be_raised(faulty: FaultServer) -> None:
    environments = {
        "split": EnvSpec(faulty.url, split="trian"),
        "index": EnvSpec(faulty.url, indices=[0, 99]),
        "class": EnvSpec(EchoEnvironment, split="tets"),
    }
    findings = check(environments)
    told = {finding.environment: finding.message for finding in of(findings, Code.DECLARATION_WRONG)}
    assert "unknown split 'trian' (did you mean 'train'?)" in told["split"]
    assert "task index 99 lies outside split 'train', which has 3 tasks; accepted: 0 to 2" in told["index"]
    assert "did you mean 'test'?" in told["class"]
    assert Code.SESSION_FAILED not in codes(findings), "what is wrong is said once"
    assert faulty.num_requests["/create"] == 0
    for name, spec in environments.items():
        with MultiEnvSpec({name: spec}) as mixture, pytest.raises(SpecError):
            _ = mixture.train_dataset


def test_a_split_with_fewer_tasks_than_declared_is_told() -> None:
    environments = {"few": EnvSpec(EchoEnvironment, num_tasks=64), "all": EnvSpec(OneEnvironment, num_tasks=1)}
    finding = only(check(environments), Code.FEWER_TASKS)
    assert (finding.environment, finding.severity) == ("few", Severity.NOTE)
    assert finding.message == "num_tasks=64, and split 'train' has 3; it trains on all of them."


def test_what_to_do_is_said_once(faulty: FaultServer) -> None:
    environments = {
        "gone": EnvSpec("http://127.0.0.1:9", limits=QUICK),
        "split": EnvSpec(faulty.url, split="trian"),
        "other": EnvSpec(faulty.url, env_name="falt"),
        "keyless": "owner/name",
    }
    fixes = {finding.environment: (finding.message, finding.fix) for finding in check(environments) if finding.fix}
    assert fixes["gone"][1] == "Start the server, or correct the target."
    assert fixes["split"][1] == "Set split to one of them."
    assert fixes["other"][1] == "Set env_name=."
    assert "api_key=" in fixes["keyless"][1]
    for message, fix in fixes.values():
        assert fix.rstrip(".").casefold() not in message.casefold()
    spec = MultiEnvSpec({"echo": EchoEnvironment, "guess": ForeignSpec(GuessEnvironment, num_tasks=1)})
    spec.close()
    closed = of(spec.check(), Code.CLOSED)
    assert [str(finding).casefold().count("make a new multienvspec") for finding in closed] == [1, 1]


def test_a_class_in_this_process_has_no_server_whose_log_could_be_read() -> None:
    def list_tools(cls: Any) -> ListToolsOutput:
        raise ZeroDivisionError("a slip")

    findings = check({"env": published("Env", [], list_tools=classmethod(list_tools))})
    finding = only(findings, Code.SERVER_ANSWERS_WRONGLY)
    assert "ZeroDivisionError: a slip" in finding.message
    assert finding.fix.startswith("Correct the class")
    assert only(check({"env": BrokenSetupEnvironment}), Code.SESSION_FAILED).fix.startswith("Correct the class")


def test_a_closed_spec_is_a_finding_for_each_environment() -> None:
    spec = MultiEnvSpec({"echo": EchoEnvironment, "guess": ForeignSpec(GuessEnvironment, num_tasks=1)})
    spec.close()
    assert {finding.environment for finding in of(spec.check(), Code.CLOSED)} == {"echo", "guess"}


def test_an_environment_with_nothing_to_call_is_a_finding() -> None:
    assert only(check({"bare": bare()}), Code.NO_TOOLS).severity is Severity.ERROR


def test_a_check_that_breaks_is_a_finding_and_keeps_no_other_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(look: Look, mixture: Mixture) -> list[Finding]:
        raise LookupError("a surprise")

    monkeypatch.setattr(run, "ENVIRONMENT_CHECKS", (breaks, *run.ENVIRONMENT_CHECKS))
    findings = check({"bare": bare(), "echo": EchoEnvironment})
    assert [finding.environment for finding in of(findings, Code.CHECK_FAILED)] == ["bare", "echo"]
    assert "breaks broke off with LookupError: a surprise" in of(findings, Code.CHECK_FAILED)[0].message
    assert only(findings, Code.NO_TOOLS)


def test_a_configuration_that_cannot_even_be_read_raises_nothing() -> None:
    class Hostile(GRPOConfig):
        def __init__(self) -> None:
            """Set nothing."""

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    findings = check({"bare": bare()}, Hostile())
    assert Code.CHECK_FAILED in codes(findings)
    assert only(findings, Code.NO_TOOLS)


# Tools


def test_a_schema_nothing_can_be_checked_against_is_named() -> None:
    tools = [{"name": "go", "description": "", "input_schema": {"properties": {"x": {"$ref": "#/$defs/Gone"}}}}]
    finding = only(check({"env": published("Env", tools)}), Code.SCHEMA_UNUSABLE)
    assert "tool go" in finding.message
    assert "#/$defs/Gone" in finding.message


def test_renamed_tools_and_parameters_are_named_with_the_reason() -> None:
    parameters = {"properties": {"from": {"type": "string"}, "to": {"type": "string"}}, "required": ["from", "to"]}
    names = ("run-tests", "reset", "_x", "class", "fine")
    tools = [{"name": name, "description": "Go.", "input_schema": parameters} for name in names]
    findings = check({"env": published("Env", tools)})
    told = " ".join(finding.message for finding in of(findings, Code.TOOL_RENAMED))
    for expected in (
        "tool run-tests is called 'run_tests' by TRL's own trainers, for it is no identifier of Python",
        "tool reset is called 'reset_tool' by TRL's own trainers, for it is a member of every environment",
        "tool _x is called 'x' by TRL's own trainers, for it begins with an underscore",
        "tool class is called 'class_tool' by TRL's own trainers, for it is a keyword of Python",
    ):
        assert expected in told
    assert "fine" not in told
    assert len(of(findings, Code.PARAMETER_RENAMED)) == len(names)
    assert "from is 'from_'" in of(findings, Code.PARAMETER_RENAMED)[0].message
    assert "to is" not in of(findings, Code.PARAMETER_RENAMED)[0].message


def hidden(**schema: Any) -> list[str]:
    return hidden_by_signature(PublishedTool("tool", "Go.", {"type": "object", **schema}), Spelling())


def test_a_signature_carries_types_choices_items_and_descriptions() -> None:
    properties = {
        "mode": {"enum": ["a", "b"], "type": "string", "description": "How.", "title": "Mode"},
        "words": {"type": "array", "items": {"type": "string"}, "default": None},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "kind": {"$ref": "#/$defs/Kind"},
    }
    defs = {"Kind": {"enum": ["x"], "type": "string"}}
    assert hidden(properties=properties, required=["mode", "kind"], **{"$defs": defs}) == []


def test_what_a_signature_cannot_carry_is_said_per_parameter() -> None:
    edit = {"properties": {"old_string": {"type": "string"}, "n": {"type": "integer"}}, "type": "object"}
    properties = {
        "edits": {"type": "array", "items": edit, "minItems": 1},
        "level": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
        "item": {"$ref": "#/$defs/Item"},
    }
    defs = {"Item": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}}
    assert hidden(properties=properties, additionalProperties=False, **{"$defs": defs}) == [
        "edits[].old_string: not shown",
        "edits[].n: not shown",
        "edits: minItems",
        "level: minimum, maximum, default",
        "item.id: not shown",
        "item: required",
        "(arguments): additionalProperties",
    ]


def test_a_reader_that_shows_names_only_hides_everything_else() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "m": {"enum": ["a"]}}}
    assert hidden_parts(schema, lambda shown: str(list(shown["properties"]))) == ["n: type, minimum", "m: enum"]


@given(
    keyword=st.sampled_from(["minimum", "exclusiveMaximum", "multipleOf", "pattern", "format", "x-hint", "maxLength"]),
    inside=st.sampled_from(["plain", "items", "nullable", "reference"]),
)
def test_a_keyword_no_signature_carries_is_always_named(keyword: str, inside: str) -> None:
    bare: dict[str, Any] = {"type": "integer", keyword: 3}
    schemas: dict[str, tuple[Any, str]] = {
        "plain": (bare, "p"),
        "items": ({"type": "array", "items": bare}, "p[]"),
        "nullable": ({"anyOf": [bare, {"type": "null"}]}, "p"),
        "reference": ({"$ref": "#/$defs/P"}, "p"),
    }
    schema, place = schemas[inside]
    assert hidden(properties={"p": schema}, **{"$defs": {"P": bare}}) == [f"{place}: {keyword}"]


def test_a_schema_that_leads_back_to_itself_is_looked_at_for_a_while_only() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "n": {"type": "integer"}}}
    assert "root.n: not shown" in hidden(properties={"root": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}})
    wide = {f"p{number}": {"type": "string"} for number in range(500)}
    assert hidden_parts({"properties": wide}, lambda _: "")[-1].startswith("(the schema is larger")


def test_what_a_signature_loses_is_said_tool_by_tool() -> None:
    findings = of(check({"seta": catalogue("seta")}), Code.SIGNATURE_LOSSY)
    (todo,) = [finding for finding in findings if "tool todo_write" in finding.message]
    assert "todos[].content: not shown; todos[].status: not shown" in todo.message
    assert todo.severity is Severity.WARNING
    assert {finding.environment for finding in findings} == {"seta"}
    assert not any("submit_solution" in finding.message for finding in findings), "there is nothing to lose"


def test_what_concerns_other_trainers_is_a_note_once_an_exact_one_shows_the_mixture() -> None:
    with MultiEnvSpec({"seta": catalogue("seta")}) as spec:
        spec.present_to(tokenizer(), has_conversations=True)
        severities = {finding.severity for finding in of(spec.check(), Code.SIGNATURE_LOSSY)}
    assert severities == {Severity.NOTE}


def test_tools_that_only_some_tasks_have_are_named() -> None:
    environments = {"tasks": EnvSpec(TaskToolsEnvironment, indices=[0, 1])}
    with MultiEnvSpec(environments) as spec:
        assert not of(spec.check(), Code.TOOLS_DIFFER), "task 1 is not known yet"
        _ = spec.environment_factory
        finding = only(spec.check(), Code.TOOLS_DIFFER)
    assert "special: in task 1, not in what all tasks share and task 0" in finding.message


def test_a_tool_whose_schema_differs_between_tasks_is_named() -> None:
    def list_task_tools(self: Any) -> ListToolsOutput:
        properties = {self.task_spec["target"]: {"type": "string"}}
        schema = {"type": "object", "properties": properties}
        return ListToolsOutput(tools=[ToolSpec(name="say", description="Say.", input_schema=schema)])

    drifting = published(
        "Drifting", [], list_task_tools=list_task_tools, tasks=[{"target": "hello"}, {"target": "world"}]
    )
    with MultiEnvSpec({"env": EnvSpec(drifting, indices=[0, 1])}) as spec:
        _ = spec.environment_factory
        finding = only(spec.check(), Code.TOOLS_DIFFER)
    assert "from task 0 to task 1: hello only in task 0, world only in task 1" in finding.message


class Answer(BaseModel):
    answer: str


class AnswerEnvironment(Base):
    """No tools; the last message is graded."""

    @terminal
    @tool
    def grade(self, params: Answer) -> ToolOutput:
        """Grade the answer."""
        return output("graded", 1.0, finished=True)


@pytest.mark.parametrize(
    ("args", "expected"), [(None, Severity.NOTE), (GRPOConfig, None), (AsyncGRPOConfig, Severity.WARNING)]
)
def test_a_terminal_tool_is_not_graded_by_one_trainer(args: Any, expected: Severity | None, tmp_path: Path) -> None:
    made = None if args is None else args(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    findings = check({"env": AnswerEnvironment}, made)
    assert [finding.severity for finding in of(findings, Code.TERMINAL_TOOL_UNGRADED)] == [expected] * bool(expected)
    assert Code.NO_TOOLS not in codes(findings)


def test_special_tokens_are_named_with_their_place_before_and_after_the_policy_is_known() -> None:
    tools = [{"name": "go", "description": "Ends with <|im_end|>.", "input_schema": None}]

    def get_prompt(self: Any) -> list[TextBlock]:
        return [TextBlock(text="<|im_start|>system")]

    with MultiEnvSpec({"env": published("Env", tools, get_prompt=get_prompt), "echo": EchoEnvironment}) as spec:
        findings = spec.check()
        assert only(findings, Code.POLICY_UNKNOWN).environment is None
        warning = only(findings, Code.SPECIAL_TOKENS)
        spec.present_to(tokenizer())
        findings = spec.check()
    assert Code.POLICY_UNKNOWN not in codes(findings)
    finding = only(findings, Code.SPECIAL_TOKENS)
    assert finding.environment == "env"
    assert (warning.severity, finding.severity) == (Severity.WARNING, Severity.NOTE)
    for told in (warning, finding):
        assert "tool go: <|im_end|>; the prompt of task 0: <|im_start|>" in told.message
    assert "present_to" in warning.fix


# Prompts


class TalkEnvironment(Base):
    """Its prompt is a conversation, and has a picture."""

    @tool
    def look(self) -> ToolOutput:
        """Look."""
        return output("nothing")

    def get_messages(self) -> list[Message]:
        pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        blocks = [TextBlock(text="Look."), ImageBlock(data=pixel, mimeType="image/png")]
        return [Message(role="system", blocks=[TextBlock(text="Be kind.")]), Message(role="user", blocks=blocks)]


def test_a_conversation_is_flattened_by_some_trainers_only() -> None:
    with MultiEnvSpec({"talk": TalkEnvironment, "echo": EchoEnvironment}) as spec:
        finding = only(spec.check(), Code.CONVERSATION_FLATTENED)
        assert (finding.environment, finding.severity) == ("talk", Severity.WARNING)
        assert "(system, user)" in finding.message
        spec.present_to(tokenizer(), has_conversations=True)
        assert only(spec.check(), Code.CONVERSATION_FLATTENED).severity is Severity.NOTE


def test_pictures_are_told_unless_the_policy_sees_them() -> None:
    with MultiEnvSpec({"talk": TalkEnvironment}) as spec:
        assert only(spec.check(), Code.PROMPT_IMAGES).severity is Severity.NOTE
        spec.present_to(tokenizer())
        finding = only(spec.check(), Code.PROMPT_IMAGES)
        assert finding.severity is Severity.WARNING
        assert "has 1 image, and this policy reads text only" in finding.message
        seeing = copy.copy(tokenizer())
        seeing.image_processor = object()
        spec.present_to(seeing)
        assert Code.PROMPT_IMAGES not in codes(spec.check())


# Chat templates


@pytest.mark.parametrize("template", ["qwen3", "qwen2_5", "glm4moe", "llama3_1", "lfm2"])
def test_a_template_that_prints_json_is_recognised(template: str) -> None:
    with MultiEnvSpec({"seta": catalogue("seta")}) as spec:
        spec.present_to(with_template(template))
        assert only(spec.check(), Code.TEMPLATE_EXACT).environment == "seta"


@pytest.mark.parametrize(
    ("template", "left_out"),
    [
        ("gptoss", ["timeout: anyOf", "todos[]: not shown", "(arguments): additionalProperties"]),
        ("gemma4", ["timeout: anyOf", "todos[].status: not shown", "replace_all: default"]),
    ],
)
def test_what_a_template_leaves_out_is_said_tool_by_tool(template: str, left_out: list[str]) -> None:
    with MultiEnvSpec({"seta": catalogue("seta")}) as spec:
        spec.present_to(with_template(template))
        finding = only(spec.check(), Code.TEMPLATE_RERENDERS)
    assert finding.severity is Severity.WARNING
    for part in left_out:
        assert part in finding.message
    assert "tool edit (" in finding.message
    assert "submit_solution" not in finding.message


def test_a_parameter_that_one_version_of_a_template_swallows_is_told() -> None:
    """Gemma 4's second template skips a property called `description`."""
    with MultiEnvSpec({"swe": catalogue("swe_rebench_v2")}) as spec:
        spec.present_to(with_template("gemma4_v2"))
        assert "tool bash (description: not shown)" in only(spec.check(), Code.TEMPLATE_RERENDERS).message
        spec.present_to(with_template("gemma4_v5"))
        assert "description" not in only(spec.check(), Code.TEMPLATE_RERENDERS).message.split("Say it")[0]


def test_the_trainers_template_counts_and_not_the_tokenizers() -> None:
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        spec.present_to(tokenizer(), chat_template=(TEMPLATES / "gemma.jinja").read_text(encoding="utf-8"))
        assert only(spec.check(), Code.TEMPLATE_WITHOUT_TOOLS).severity is Severity.ERROR


def test_a_template_that_raises_is_an_error_with_its_message() -> None:
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        spec.present_to(tokenizer(), chat_template="{{ raise_exception('no tools, please') }}")
        assert "no tools, please" in only(spec.check(), Code.TEMPLATE_FAILS).message


def test_a_processors_template_is_given_content_blocks() -> None:
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        spec.present_to(processor())
        assert only(spec.check(), Code.TEMPLATE_EXACT).environment == "echo"


def test_json_is_found_however_it_is_indented_and_only_with_its_keys_in_order() -> None:
    function = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "x": [1, {"é": "{"}]}}}
    swapped = '{"function": {"parameters": {"type": "object", "x": [1, {"é": "{"}]}, "name": "a"}, "type": "function"}'
    pretty = (
        '{ {\n  "type" : "function", "function":\n' + '{"name":"a","parameters":{"type":"object","x":[1,{"é":"{"}]}}}'
    )
    assert prints_json(pretty, [function])
    assert not prints_json(swapped, [function])
    assert not prints_json('{"a": ' * 10_000, [function])


def test_who_reads_is_not_pickled_with_the_spec() -> None:
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        spec.present_to(tokenizer())
        presentation: Presentation = pickle.loads(pickle.dumps(spec))._presentation
    assert presentation.processing_class is None
    assert presentation.reserved == Presentation(spec._presentation.reserved).reserved


def test_large_tools_are_looked_at_for_a_while_only() -> None:
    properties = {f"p{number}": {"type": "string", "description": "x" * 2_000} for number in range(300)}
    tools = [{"name": "go", "description": "d" * 1_000_000, "input_schema": {"properties": properties}}]
    with MultiEnvSpec({"env": published("Env", tools)}) as spec:
        spec.present_to(with_template("gptoss"))
        started = time.monotonic()
        findings = spec.check()
        assert time.monotonic() - started < 20
    assert "larger than what was looked at" in only(findings, Code.TEMPLATE_RERENDERS).message


# Secrets


@pytest.fixture
def platform(faulty: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppServer]:
    """The catalogue's API, which knows of one environment."""

    async def required(request: Request) -> JSONResponse:
        known = request.path_params["name"] == "needy" and request.headers.get("x-api-key") == "key"
        return JSONResponse({"secrets": ["api_key", "OPENAI_API_KEY"]} if known else {}, 200 if known else 404)

    route = Route("/v1/environments/{owner}/{name}/required-secrets", required)
    with AppServer(Starlette(routes=[route])) as server:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", faulty.url)
        monkeypatch.setenv("OPENREWARD_API_URL", server.url)
        yield server


@pytest.mark.parametrize(
    ("secrets", "missing"),
    [(None, True), ({"OTHER": "x"}, True), ({"OPENAI_API_KEY": "x"}, False)],
)
def test_required_secrets_that_are_not_declared_are_an_error(platform: AppServer, secrets: Any, missing: bool) -> None:
    findings = check({"env": EnvSpec("owner/needy", api_key="key", secrets=secrets)})
    assert [finding.severity for finding in of(findings, Code.SECRET_MISSING)] == [Severity.ERROR] * missing
    for finding in of(findings, Code.SECRET_MISSING):
        assert "need the secrets OPENAI_API_KEY, which are missing" in finding.message
    assert Code.SECRETS_UNKNOWN not in codes(findings)


def test_secrets_that_cannot_be_asked_are_a_note(platform: AppServer) -> None:
    findings = check({"env": EnvSpec("owner/other", api_key="key")})
    assert only(findings, Code.SECRETS_UNKNOWN).severity is Severity.NOTE
    assert Code.SECRET_MISSING not in codes(findings)


# The trainer's configuration


@pytest.mark.parametrize("trainer_class", [None, MultiEnvGRPOTrainer])
def test_a_run_that_drops_unused_columns_breaks_and_is_an_error_before(trainer_class: Any, tmp_path: Path) -> None:
    options = {"remove_unused_columns": True}
    with MultiEnvSpec({"echo": EchoEnvironment, "one": OneEnvironment}) as spec:
        assert only(spec.check(config(tmp_path, **options)), Code.REMOVES_COLUMNS).severity is Severity.ERROR
        slots = {"spec": spec} if trainer_class else spec.trainer_kwargs()
        trainer = scripted_trainer(lambda *_: "no", tmp_path, options, trainer_class, **slots)
        with pytest.raises(ValueError, match="environment=None"):
            trainer.train()


def test_which_trainers_take_environments_is_what_trl_says() -> None:
    assert _takes_environments(AsyncGRPOTrainer)
    assert not _takes_environments(RLOOTrainer)
    assert issubclass(GMPOTrainer, GRPOTrainer)
    assert "**kwargs" in str(inspect.signature(GMPOTrainer.__init__))
    assert issubclass(GMPOConfig, GRPOConfig)
    others = [getattr(trl, name) for name in dir(trl) if name.endswith("Trainer")]
    assert [cls for cls in others if _takes_environments(cls)] == [GRPOTrainer]


def _takes_environments(cls: Any) -> bool:
    return "environment_factory" in inspect.signature(cls.__init__).parameters


@pytest.mark.parametrize(
    ("config_class", "expected"),
    [
        (GRPOConfig, set()),
        (GMPOConfig, set()),
        (AsyncGRPOConfig, {Code.ASYNC_TRAINER}),
        (RLOOConfig, {Code.TRAINER_WITHOUT_ENVIRONMENTS}),
    ],
)
def test_a_configuration_says_which_trainer_it_is_for(config_class: Any, expected: set[Code], tmp_path: Path) -> None:
    made = config_class(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    assert codes(check({"echo": EchoEnvironment}, made)) == expected | {Code.POLICY_UNKNOWN}


def test_what_is_no_configuration_of_trl_is_told() -> None:
    finding = only(check({"echo": EchoEnvironment}, {"max_steps": 3}), Code.TRAINER_UNKNOWN)
    assert "of type dict" in finding.message
    assert "spec.meta_environment_factory" in finding.fix


@pytest.mark.parametrize(("installed", "is_old"), [("1.15.2", True), ("1.16.0", False), ("2.0.0.dev0", False)])
def test_an_old_trl_is_an_error(installed: str, is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_installed", lambda package: {"trl": installed}[package])
    assert (Code.TRL_TOO_OLD in codes(check({"echo": EchoEnvironment}))) is is_old


def test_a_limit_of_the_trainer_below_an_environments_own_is_told(tmp_path: Path) -> None:
    environments = {
        "long": EnvSpec(EchoEnvironment, limits=Limits(max_tool_calls=20)),
        "short": EnvSpec(OneEnvironment, limits=Limits(max_tool_calls=3)),
    }
    finding = only(check(environments, config(tmp_path, max_tool_calling_iterations=10)), Code.TOOL_LIMIT_LOWER)
    assert finding.environment == "long"
    assert "max_tool_calls=20 is more than max_tool_calling_iterations=10" in finding.message


def test_a_mixture_with_fewer_rows_than_a_batch_has_prompts_trains_nothing_and_is_an_error_before(
    tmp_path: Path,
) -> None:
    with MultiEnvSpec({"echo": EchoEnvironment, "one": OneEnvironment}) as spec:
        finding = only(spec.check(config(tmp_path, per_device_train_batch_size=10)), Code.TOO_FEW_ROWS)
        assert finding.severity is Severity.ERROR
        assert "has 4 rows, and each generation batch takes 5 different ones" in finding.message
        slots = spec.trainer_kwargs()
        for size, num_steps in ((10, 0), (8, 1)):
            options = {"per_device_train_batch_size": size}
            assert (Code.TOO_FEW_ROWS in codes(spec.check(config(tmp_path, **options)))) is (num_steps == 0)
            trainer = scripted_trainer(lambda *_: "no", tmp_path, options, **slots)
            trainer.train()
            assert sum("rewards/echo/mean" in log for log in trainer.state.log_history) == num_steps


def test_rows_are_not_judged_where_some_cannot_be_counted(tmp_path: Path) -> None:
    class Unread:
        train_dataset = environment_factory = reward_funcs = property(lambda _: pytest.fail("read"))

    findings = check({"unread": Unread(), "one": OneEnvironment}, config(tmp_path))
    assert Code.TOO_FEW_ROWS not in codes(findings)


def test_limits_on_sessions_below_what_a_batch_can_need_are_told(tmp_path: Path) -> None:
    environments = {
        "low": EnvSpec(EchoEnvironment, limits=Limits(max_sessions=5)),
        "small": EnvSpec(OneEnvironment, limits=Limits(max_sessions=2)),
    }
    findings = check(environments, config(tmp_path), max_sessions=7)
    low, whole = only(findings, Code.ENVIRONMENT_SESSION_LIMIT), only(findings, Code.SESSION_LIMIT)
    assert low.environment == "low", "one task of 2 rollouts needs no more than 2 sessions"
    assert "can need 6 sessions at once, and limits.max_sessions is 5; such a batch ends the run with" in low.message
    assert "needs 8 sessions at once, and the mixture's max_sessions is 7; such a batch ends the run." in whole.message
    assert (low.severity, whole.severity) == (Severity.WARNING, Severity.ERROR)
    assert low.fix.startswith("Raise it to 6,")
    beside = check({**environments, "guess": ForeignSpec(GuessEnvironment)}, config(tmp_path), max_sessions=7)
    assert only(beside, Code.SESSION_LIMIT).severity is Severity.WARNING
    enough = {"low": EnvSpec(EchoEnvironment, limits=Limits(max_sessions=6)), "small": environments["small"]}
    assert not {Code.SESSION_LIMIT, Code.ENVIRONMENT_SESSION_LIMIT} & codes(
        check(enough, config(tmp_path), max_sessions=8)
    )


def test_limits_on_sessions_below_what_a_batch_of_the_evaluation_can_need_are_told(tmp_path: Path) -> None:
    args = config(tmp_path, per_device_eval_batch_size=6, num_generations_eval=2)
    limits = Limits(max_sessions=4)
    environments = {
        "low": EnvSpec(EchoEnvironment, indices=[0], eval_indices=[1, 2, 1], limits=limits),
        "few": EnvSpec(EchoEnvironment, split="test", num_tasks=1, evaluation_only=True, limits=limits),
        "one": EnvSpec(OneEnvironment, limits=limits),
    }
    found = of(check(environments, args, max_sessions=5), Code.SESSION_LIMIT)
    told = [one for one in found if "evaluation" in one.message]
    assert [one.environment for one in told] == ["low", "low"], "its own limit, and the mixture's"
    assert "a batch of its evaluation can need 6 sessions at once in each process" in told[0].message
    assert "limits.max_sessions is 4; such a batch ends the run" in told[0].message
    assert "the mixture's max_sessions is 5; such a batch ends the run" in told[1].message
    assert told[0].fix == "Raise it to 6, or lower per_device_eval_batch_size."
    lower = config(tmp_path, per_device_eval_batch_size=4, num_generations_eval=2)
    assert not [one for one in of(check(environments, lower), Code.SESSION_LIMIT) if "evaluation" in one.message]


def test_processes_share_the_limits_on_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = config(tmp_path)
    monkeypatch.setattr(GRPOConfig, "world_size", 2)
    environments = {"echo": EnvSpec(EchoEnvironment, limits=Limits(max_sessions=6)), "one": OneEnvironment}
    finding = only(check(environments, args), Code.ENVIRONMENT_SESSION_LIMIT)
    assert "limits.max_sessions is 6 shared by 2 processes" in finding.message
    assert finding.fix.startswith("Raise it to 12,")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "args has no reward_weights"),
        ({"reward_weights": [2.0, 1.0]}, 'in TRL\'s own trainer with scale_rewards="group"'),
        ({"reward_weights": [2.0, 1.0], "scale_rewards": "batch"}, None),
        ({"reward_weights": [2.0, 1.0], "scale_rewards": False}, None),
        ({"reward_weights": [2.0, 1.0], "multi_objective_aggregation": "normalize_then_sum"}, None),
        ({"scale_rewards": "batch"}, "args has no reward_weights"),
    ],
)
@pytest.mark.filterwarnings("ignore:reward_weight")
def test_reward_weights_that_do_nothing_are_told(options: Any, expected: str | None, tmp_path: Path) -> None:
    environments = {"echo": EnvSpec(EchoEnvironment, reward_weight=2.0), "one": OneEnvironment}
    found = of(check(environments, config(tmp_path, **options)), Code.REWARD_WEIGHT_IDLE)
    if expected is None:
        assert found == []
    else:
        assert expected in only(found, Code.REWARD_WEIGHT_IDLE).message
        assert "echo=2" in found[0].message
        assert "MultiEnvGRPOTrainer" in found[0].fix, "which refuses weights that are passed to TRL as well"
        # Three tasks and one: rollouts of one length count the same in every loss.
        assert "are echo 75%, one 25% whatever the weights are; with weights that act, echo 86%, one 14%." in (
            found[0].message
        )


@pytest.mark.filterwarnings("ignore:reward_weight")
def test_shares_are_left_out_where_they_cannot_be_known(tmp_path: Path) -> None:
    environments = {"echo": EnvSpec(EchoEnvironment, reward_weight=2.0), "gone": EnvSpec(EchoEnvironment, split="x")}
    finding = only(check(environments, config(tmp_path)), Code.REWARD_WEIGHT_IDLE)
    assert finding.message.endswith("args has no reward_weights.")


# Foreign environments and rewards


def test_of_a_foreign_environment_nothing_is_made_or_fetched() -> None:
    made: list[str] = []

    def opaque() -> Any:
        made.append("instance")
        return GuessEnvironment()

    class Untouched:
        @property
        def train_dataset(self) -> Any:
            raise AssertionError("read")

        environment_factory = reward_funcs = train_dataset

    findings = check({"opaque": ForeignSpec(opaque, num_tasks=1), "untouched": Untouched(), "guess": guesses()})
    assert findings == []
    assert made == []


def test_an_environment_nothing_scores_is_told() -> None:
    class Silent:
        def reset(self, **row: Any) -> None: ...

        def look(self) -> str:
            """Look."""
            return ""

    environments = {
        "silent": ForeignSpec(Silent, num_tasks=1),
        "unused": EnvSpec(EchoEnvironment, use_environment_reward=False),
        "one": OneEnvironment,
    }
    assert {finding.environment for finding in of(check(environments), Code.NO_REWARD)} == {"silent", "unused"}
    shared = check(environments, reward_funcs=lambda **_: [0.0])
    assert Code.NO_REWARD not in codes(shared)
    del environments["one"]
    finding = only(check(environments), Code.NO_REWARD)
    assert (finding.severity, finding.environment) == (Severity.ERROR, None)
    assert "in silent, unused." in finding.message


def test_a_group_reward_is_a_reward() -> None:
    spec = EnvSpec(EchoEnvironment, use_environment_reward=False, use_group_reward=True)
    assert Code.NO_REWARD not in codes(check({"echo": spec}))


class Untold:
    """Its tools cannot all be shown."""

    def reset(self, **row: Any) -> None: ...

    def get_reward(self) -> float:
        return 0.0

    def shown(self, word: str) -> str:
        """Say a word.

        Args:
            word: What to say.
        """
        return word

    def bare(self, word: str) -> str:
        return word

    @staticmethod
    def apart(word: str) -> str:
        """Say a word.

        Args:
            word: What to say.
        """
        return word


def test_tools_of_a_class_that_trl_cannot_show_are_an_error_as_they_are_in_a_run(tmp_path: Path) -> None:
    environments = {"untold": ForeignSpec(functools.partial(Untold), num_tasks=4)}
    finding = only(check(environments), Code.TOOL_UNSHOWABLE)
    assert (finding.severity, finding.environment) == (Severity.ERROR, "untold")
    assert "tool bare of class Untold cannot be shown to the policy" in finding.message
    assert "docstring" in finding.message
    with MultiEnvSpec(environments) as spec:
        trainer = scripted_trainer(lambda *_: "no", tmp_path, **spec.trainer_kwargs())
        with pytest.raises(DocstringParsingException, match="bare"):
            trainer.train()


def test_a_class_without_any_tool_is_told() -> None:
    class Silent:
        def reset(self, **row: Any) -> None: ...

        def get_reward(self) -> float:
            return 0.0

    finding = only(check({"silent": ForeignSpec(Silent, num_tasks=1)}), Code.NO_TOOLS)
    assert (finding.severity, finding.environment) == (Severity.WARNING, "silent")


# Metadata


def test_metadata_that_gets_no_column_is_told() -> None:
    environments = {"one": OneEnvironment, "two": TwoEnvironment}
    with MultiEnvSpec(environments) as spec:
        finding = only(spec.check(), Code.COLUMN_DROPPED)
        kept = spec.train_dataset.column_names
    assert finding.severity is Severity.NOTE
    assert "level (int in one, str in two); prompt (the name is not free)." in finding.message
    assert "level" not in kept
    assert {"target", "extra"} <= set(kept)
    alone = {"one": OneEnvironment, "two": EnvSpec(TwoEnvironment, include_metadata=False)}
    assert Code.COLUMN_DROPPED not in codes(check(alone))
