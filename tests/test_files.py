"""Files of declarations: YAML and TOML say the same, and each value is found in its line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.errors import SpecError
from multienv.files import Document

YAML = """\
# a comment
model:
  name: tiny

environments:
  seta: {weight: 2.0, tags: [a, b]}
  swe:
    limits:
      max_sessions: 3
"""

TOML = """\
# a comment
[model]
name = "tiny"

[environments.seta]
weight = 2.0
tags = [
  "a",
  "b",
]

[environments.swe.limits]
max_sessions = 3
"""


def read(folder: Path, name: str, text: str) -> Document:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return Document.read(path)


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    assert read(tmp_path, "a.yaml", YAML).values == read(tmp_path, "a.toml", TOML).values


@pytest.mark.parametrize(
    ("place", "in_yaml", "in_toml"),
    [
        (("model",), 2, 2),
        (("model", "name"), 3, 3),
        (("environments", "seta", "weight"), 6, 6),
        (("environments", "seta", "tags", 1), 6, 7),
        (("environments", "swe", "limits", "max_sessions"), 9, 13),
        (("environments", "swe", "limits", "unknown"), 8, 12),
        (("nowhere",), 2, 1),
    ],
)
def test_a_value_is_found_in_its_line(tmp_path: Path, place: tuple[str | int, ...], in_yaml: int, in_toml: int) -> None:
    assert read(tmp_path, "a.yaml", YAML).line(place) == in_yaml
    assert read(tmp_path, "a.toml", TOML).line(place) == in_toml


plain = st.recursive(
    st.booleans() | st.integers(-99, 99) | st.text("abc \n'\"=[#", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def as_toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {inline(value)}\n" for key, value in values.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[\n" + "".join(f"  {inline(inner)},\n" for inner in value) + "]"
    return json.dumps(value)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), plain, max_size=4))
def test_every_value_of_toml_stands_in_the_statement_of_its_key(tmp_path_factory: Any, values: dict[str, Any]) -> None:
    document = read(tmp_path_factory.mktemp("toml"), "a.toml", as_toml(values))
    assert document.values == values
    lines = as_toml(values).splitlines()
    for key in values:
        assert lines[document.line((key,)) - 1].startswith(f"{key} = ")


def test_training_steps_are_whole_numbers_in_both(tmp_path: Path) -> None:
    in_yaml = read(tmp_path, "a.yaml", "points: {0: {a: 1.0}, 50: {b: 1.0}}\n")
    in_toml = read(tmp_path, "a.toml", "[points]\n0 = {a = 1.0}\n50 = {b = 1.0}\n")
    assert in_yaml.values == in_toml.values == {"points": {0: {"a": 1.0}, 50: {"b": 1.0}}}
    assert in_toml.line(("points", 50)) == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "a = 1\nb = \n", r"a\.toml, line 2: this is no TOML"),
        ("a.toml", "a = 1\na = 2\n", r"a\.toml, line 2: this is no TOML: Cannot overwrite a value"),
        ("a.yaml", "a: 1\na: 2\n", r"a\.yaml, line 2: 'a' stands in line 1 already; keep one"),
        ("a.yaml", "a: [1\n", r"a\.yaml, line 2: this is no YAML"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(tmp_path, name, text)


def test_a_section_laid_over_the_rest_wins_key_by_key_and_keeps_its_lines(tmp_path: Path) -> None:
    under = "grpo: {steps: 100, lr: 1.0}\nenvironments:\n  a: {n: 1}\n  b: {n: 1}\n"
    text = under + "offline:\n  grpo:\n    steps: 3\n  environments: {b: null}\n"
    laid = read(tmp_path, "a.yaml", text).overlaid("offline")
    assert laid.values == {"grpo": {"steps": 3, "lr": 1.0}, "environments": {"a": {"n": 1}}}
    assert (laid.line(("grpo", "steps")), laid.line(("environments", "a", "n"))) == (7, 3)


def test_a_long_toml_file_is_read_without_a_look_for_its_lines(tmp_path: Path) -> None:
    indices = "".join(f"  {number},\n" for number in range(20_000))  # minutes, if each line were read from the top
    started = time.monotonic()
    document = read(tmp_path, "a.toml", f"indices = [\n{indices}]\n")
    assert len(document.values["indices"]) == 20_000
    assert time.monotonic() - started < 10
