"""The code of `docs/tools.md` and `docs/tasks.md` runs; the other pages are run by the tests of what they describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from multienv import MultiEnvSpec
from tests.support.environments import EchoEnvironment
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


def test_every_page_is_named_by_the_readme_or_another_page() -> None:
    pages = {path.name: path.read_text() for path in DOCS.glob("*.md")}
    readme = (DOCS.parent / "README.md").read_text()
    for name in pages:
        assert any(f"docs/{name}" in text for other, text in {**pages, "README": readme}.items() if other != name), name
