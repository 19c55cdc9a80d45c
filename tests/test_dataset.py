from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multienv.dataset import TaskList, build_dataset
from multienv.types import RESERVED_NAMES, Column, Task
from tests.strategies import json_values, mixtures, task_specs


@st.composite
def task_lists(draw: st.DrawFn) -> list[TaskList]:
    return [
        TaskList(
            name,
            "train",
            [
                Task(index, spec)
                for index, spec in enumerate(draw(st.lists(task_specs | json_values, min_size=1, max_size=3)))
            ],
            draw(st.none() | st.text(max_size=5)),
            draw(st.booleans()),
        )
        for name in draw(mixtures)
    ]


@settings(max_examples=300)
@given(task_lists())
def test_any_task_spec_round_trips_through_the_concatenated_dataset(lists: list[TaskList]) -> None:
    dataset, own = build_dataset(lists)
    expected = [(tasks, task) for tasks in lists for task in tasks.tasks]
    assert len(dataset) == len(expected)
    for row, (tasks, task) in zip(dataset, expected, strict=True):
        assert json.loads(row["task"]) == task.spec
        assert (row["environment"], row["task_index"]) == (tasks.environment, task.index)
        assert row["task_id"] == f"{tasks.environment}/train/{task.index}"
        assert row["prompt"][-1] == {"role": "user", "content": ""}
        assert [m["content"] for m in row["prompt"][:-1]] == (
            [] if tasks.system_prompt is None else [tasks.system_prompt]
        )
    promoted = set(dataset.column_names) - set(Column)
    assert promoted == {key for keys in own.values() for key in keys}
    assert not promoted & RESERVED_NAMES
    for row, (tasks, task) in zip(dataset, expected, strict=True):
        for key in promoted:
            value = row[key]
            if key in own[tasks.environment] and isinstance(task.spec, dict):
                assert value == task.spec.get(key)
            else:
                assert value is None, "a row never shows another environment's keys"


def columns_of(*specs: dict[str, Any]) -> list[str]:
    dataset, _ = build_dataset([TaskList(f"e{i}", "train", [Task(0, spec)]) for i, spec in enumerate(specs)])
    return [name for name in dataset.column_names if name not in set(Column)]


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        ({"level": 1}, {"level": 2}, ["level"]),
        ({"level": 1}, {"level": "hard"}, []),
        ({"level": 1}, {"level": 1.5}, []),
        ({"level": 1}, {"level": True}, []),
        ({"level": None}, {"level": 1}, ["level"]),
        ({"level": None}, {}, []),
        ({"tags": ["a"]}, {"tags": []}, ["tags"]),
        ({"tags": ["a"]}, {"tags": [1]}, []),
        ({"meta": {"a": 1}}, {"meta": {"a": 2}}, ["meta"]),
        ({"meta": {"a": 1}}, {"meta": {"b": 2}}, []),
        ({"meta": {}}, {}, []),
        ({"image": "x", "task_id": 3, "prompts": 1, "self": 1, "a b": 1}, {}, []),
        ({"n": 2**70}, {}, []),
        ({"text": "\ud800"}, {}, []),
        ({"meta": {"\x00": 1}}, {}, []),
    ],
)
def test_a_key_becomes_a_column_only_where_types_agree(
    one: dict[str, Any], other: dict[str, Any], kept: list[str]
) -> None:
    assert columns_of(one, other) == kept


def test_what_stays_in_task_only_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="multienv"):
        columns_of({"level": 1, "prompt": "x"}, {"level": "hard"})
    assert [record.message for record in caplog.records] == [
        "metadata kept in column 'task' only, for a reserved name or types that differ: ['level', 'prompt']"
    ]


def test_rows_read_back_from_disk_are_the_same(tmp_path: Any) -> None:
    from datasets import load_from_disk

    dataset, _ = build_dataset([TaskList("a", "train", [Task(3, {"target": "x"})], "Be brief.")])
    dataset.save_to_disk(tmp_path / "rows")
    assert load_from_disk(tmp_path / "rows")[0] == dataset[0]
