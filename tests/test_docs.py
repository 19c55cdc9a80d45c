"""The code of the pages on tools, tasks and curricula runs; the others are run by the tests of what they describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from multienv import CurriculumSpec, MultiEnvSpec, Stage, TaskRules
from tests.support.environments import EchoEnvironment
from tests.support.quiz import quiz, trainer_on
from tests.support.training import tokenizer

DOCS = Path(__file__).parents[1] / "docs"


def test_the_code_of_the_page_on_tools_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "tools.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    with MultiEnvSpec({"echo": EchoEnvironment}) as spec:
        for block in blocks:
            exec(block, {"spec": spec, "tokenizer": tokenizer()})
        printed = capsys.readouterr().out
        assert all(str(finding) in printed for finding in spec.check())
        assert str(spec.tools_report()) in printed


def test_the_code_of_the_page_on_tasks_runs_and_prints_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (DOCS / "tasks.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    expected = re.findall(r"^ *print\(.*\) +# (.*)$", text, re.MULTILINE)
    assert len(expected) == 7
    assert capsys.readouterr().out.splitlines() == expected


def test_the_code_of_the_page_on_curricula_runs_and_every_metric_it_names_is_logged(tmp_path: Path) -> None:
    text = (DOCS / "curriculum.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
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
    (table,) = re.findall(r"^\| metric \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    named = [name.removeprefix("env/<name>/") for row in table.splitlines() for name in row.split("`")[1:-1:2]]
    assert len(named) == 13
    assert {f"env/a/{name}" for name in named} <= logged
    assert "curriculum/stage" in logged


def test_every_page_is_named_by_the_readme_or_another_page() -> None:
    pages = {path.name: path.read_text() for path in DOCS.glob("*.md")}
    readme = (DOCS.parent / "README.md").read_text()
    for name in pages:
        assert any(f"docs/{name}" in text for other, text in {**pages, "README": readme}.items() if other != name), name
