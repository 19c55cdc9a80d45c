"""The pages of the documentation: their code runs, their messages are the library's, and they leave out nothing."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import multienv
from multienv import CurriculumSpec, Episode, EpisodeStatus, MultiEnvSpec, Stage, TaskRules, errors, reporting, testing
from multienv.demo.environments import ClimbEnvironment as DemoClimb
from multienv.demo.environments import EchoEnvironment as DemoEcho
from multienv.reporting import EpisodeRecord
from tests.support.environments import EchoEnvironment
from tests.support.messages import Message, messages
from tests.support.pages import PAGES, Reading, blocks
from tests.support.quiz import quiz, trainer_on
from tests.support.servers import ORSServer
from tests.support.training import tokenizer

WITH_CODE = [page for page in PAGES if blocks(page)]
SYMPTOMS = PAGES["failures.md"].partition("\n## Symptoms\n")[2].partition("\n## ")[0]


@pytest.fixture
def surroundings(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """What the code of a page finds: what to write instead of its addresses, and names that are there already."""
    monkeypatch.chdir(tmp_path)
    for variable in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(variable, "")  # so that what the code sets is taken back
        monkeypatch.delenv(variable)
    addresses: dict[str, str] = {}
    names: dict[str, Any] = {}
    with ExitStack() as stack:
        if request.param == "migration.md":
            for port, environment in ((8001, DemoEcho), (8002, DemoClimb)):
                addresses[f"http://127.0.0.1:{port}"] = stack.enter_context(ORSServer([environment])).url
        elif request.param == "tools.md":
            names = {"spec": stack.enter_context(MultiEnvSpec({"echo": EchoEnvironment})), "tokenizer": tokenizer()}
        elif request.param == "rewards.md":
            EpisodeRecord("output").add([Episode("a", "a/train/0", None, (), EpisodeStatus.UNFINISHED)])
        yield addresses, names


@pytest.mark.filterwarnings("ignore:an episode failed and goes unscored:RuntimeWarning")  # which a page is about
@pytest.mark.parametrize(("page", "surroundings"), [(page, page) for page in WITH_CODE], indirect=["surroundings"])
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: str, surroundings: tuple[dict[str, str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    addresses, names = surroundings
    for block in blocks(page):
        code = block.code
        for written, real in addresses.items():
            code = code.replace(written, real)
        program = compile(code, page, "exec")
        if block.is_run:
            exec(program, names)
            printed = capsys.readouterr().out
            if block.printed:
                assert printed.splitlines() == block.printed
            elif "print(" in code:
                assert printed


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_that_is_not_run_has_its_imports_names_and_keywords(page: str) -> None:
    reading = Reading()
    if page == "tools.md":
        reading.read("spec = tokenizer = None")
    for block in blocks(page):
        reading.read(block.code)
    assert reading.complaints == []


def test_what_is_wrong_with_code_is_found_without_running_it() -> None:
    reading = Reading()
    reading.read(
        "from multienv import EnvSpec, MultiEnvSpec, Missing\n"
        "spec = MultiEnvSpec({'a': EnvSpec('owner/name', num_task=1)}, curiculum='adaptive')\n"
        "spec.train_datasets\n"
        "trainer.train()\n"
    )
    assert reading.complaints == [
        "multienv has no Missing",
        "EnvSpec takes no num_task",
        "MultiEnvSpec takes no curiculum",
        "MultiEnvSpec has no train_datasets",
        "trainer is not known",
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_the_files_that_a_page_shows_can_be_read(page: str) -> None:
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block.code), dict)


def test_the_page_on_curricula_declares_what_it_says_and_every_metric_it_names_is_logged(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks("curriculum.md"):
        exec(block.code, names)
    environments = names["spec"].environments
    for declared in (names["warm_up"], names["staged"]):
        assert MultiEnvSpec(environments, curriculum=declared).curriculum == declared
    rules = TaskRules(solved_at=0.9, hopeless_at=0.1, gate_after=3)
    quizzes = {"a": quiz(4, task_rules=rules), "b": quiz(4)}
    stages = (Stage(until={"a": 1.0}, min_groups=99), Stage())
    with MultiEnvSpec(quizzes, curriculum=CurriculumSpec(adaptive=True, stages=stages)) as spec:
        trainer = trainer_on(spec, tmp_path, {"max_steps": 3})
        trainer.train()
    logged = {name for log in trainer.state.log_history for name in log}
    table = re.search(r"^\| metric \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGES["curriculum.md"], re.MULTILINE)
    assert table is not None
    named = [name.removeprefix("env/<name>/") for row in table[1].splitlines() for name in row.split("`")[1:-1:2]]
    assert len(named) == 13
    assert {f"env/a/{name}" for name in named} <= logged
    assert "curriculum/stage" in logged


def quotations() -> list[tuple[str, str]]:
    """The messages that the symptoms quote, each with the kind of what says it."""
    found = []
    for text in re.findall(r"^```text\n(.*?)\n```$", SYMPTOMS, re.MULTILINE | re.DOTALL):
        kind = re.match(r"(\w+(?:Error|Warning): |WARNING:[\w.]+:)?", text)
        assert kind is not None
        found.append((kind[0].removesuffix(": "), text[kind.end() :]))
    (reasons,) = re.findall(r"^\| reason \| what to do \|\n\|---\|---\|\n((?:\|.*\n)+)", SYMPTOMS, re.MULTILINE)
    return [*found, *(("", row.split("`")[1]) for row in reasons.splitlines())]


def test_the_symptoms_quote_what_the_library_says() -> None:
    said = messages()
    quoted = quotations()
    assert len(quoted) >= 50
    for kind, quotation in quoted:
        assert any(message.is_quoted_by(quotation) and _is_of_kind(message, kind) for message in said), (
            f"nothing of the package says {kind!r}: {quotation!r}"
        )


def _is_of_kind(message: Message, kind: str) -> bool:
    """A text that is handed on may be said by anything; what pydantic collects becomes a `SpecError`."""
    return message.kind in ("", kind) or not kind or (kind == "SpecError" and message.kind == "ValueError")


def test_a_quotation_that_is_not_a_message_is_found() -> None:
    said = [Message("environment … is left alone: … of the last … failed", "CircuitOpenError"), Message("…: …")]
    whole = "environment 'a' is left alone: 3 of the last 5 failed"
    for quotation, is_one in {"is left alone: 3": False, "is left alone: …": True, whole: True}.items():
        assert any(message.is_quoted_by(quotation) for message in said) == is_one
    assert not _is_of_kind(said[0], "SpecError")


def test_the_symptoms_name_figures_that_other_pages_explain() -> None:
    (table,) = re.findall(r"^\| in the figures .*\n\|[-|]+\|\n((?:\|.*\n)+)", SYMPTOMS, re.MULTILINE)
    named = {name for row in table.splitlines() for name in re.findall(r"`([\w/]+)`", row.split("|")[1])}
    assert len(named) >= 12
    explained = PAGES["rewards.md"] + PAGES["curriculum.md"]
    for name in named:
        figure = name.partition("/")[0] + "/<status>" if name.startswith("status/") else name
        assert figure in explained, name


def test_moving_over_names_every_option_of_trls_spec() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.openreward import OpenRewardSpec
    options = list(inspect.signature(OpenRewardSpec.__init__).parameters)[1:]
    table = PAGES["migration.md"].partition("| option |")[2].partition("\n\n")[0]
    assert [name for name in options if f"| `{name}` |" not in table] == []


def test_the_reference_has_every_public_name() -> None:
    documented = {name for page in PAGES for name in re.findall(r"^::: ([\w.]+)$", PAGES[page], re.MULTILINE)}
    public = {f"multienv.{name}" for name in multienv.__all__ if name != "errors"}
    public |= {f"multienv.testing.{name}" for name in testing.__all__}
    public |= {f"multienv.reporting.{name}" for name in reporting.__all__}
    public |= {
        f"multienv.errors.{name}"
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MultiEnvError)
    }
    public.add("multienv.training.make_concurrent")
    assert sorted(public - documented) == []


def test_the_reference_shows_the_tree_of_errors_as_it_is() -> None:
    assert errors.__doc__ is not None
    (tree,) = blocks("reference/errors.md", "text")
    written = inspect.cleandoc(errors.__doc__)
    assert inspect.cleandoc(tree.code) in inspect.cleandoc(written.partition("::\n\n")[2].partition("\n\nA failed")[0])
