"""Which tasks a mixture trains on and evaluates on, asked of real servers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import EnvSpec, Finding, ForeignSpec, MultiEnvSpec, Severity, errors
from multienv.checks.findings import Code
from multienv.router import task_key
from multienv.specs.choice import TaskChoice, is_excluded, left_over, names_of
from multienv.types import Task, TaskKey, task_id
from tests.strategies import catalogues, environment_names
from tests.support.environments import EchoEnvironment, TaskToolsEnvironment, shelf
from tests.support.foreign import GuessEnvironment
from tests.support.servers import ORSServer

TRAIN = [{"target": f"train {index}", "id": f"t-{index}"} for index in range(6)]
TEST = [{"target": f"test {index}", "id": f"e-{index}", "level": index} for index in range(3)]


@pytest.fixture(scope="module")
def shelf_server() -> Iterator[ORSServer]:
    with ORSServer([shelf(train=TRAIN, test=TEST)]) as server:
        yield server


def found(mixture: MultiEnvSpec) -> list[Finding]:
    """What the check finds, but for the policy that no trainer has told it of."""
    return [finding for finding in mixture.check() if finding.code != "policy-unknown"]


def ids(dataset: Any) -> list[str]:
    return list(dataset["task_id"])


@given(catalogues(), st.data())
def test_what_is_excluded_is_left_out_and_the_rest_keeps_its_order(tasks: list[Task], data: st.DataObject) -> None:
    known: list[int | str] = [
        *{task.index for task in tasks},
        *{name for task in tasks for name in names_of("a", "train", task)},
    ]
    entries = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=4))
    choice = TaskChoice("train", exclude=tuple(entries))
    expected = [
        task for task in tasks if task.index not in entries and not set(names_of("a", "train", task)) & set(entries)
    ]
    if not expected:
        with pytest.raises(errors.EmptyTaskListError, match="exclude leaves out all"):
            left_over("a", choice, tasks)
        return
    assert left_over("a", choice, tasks) == expected
    assert [task for task in tasks if not is_excluded("a", choice, task)] == expected


@given(catalogues(), st.integers(21, 30) | st.text(min_size=5, max_size=8))
def test_what_names_no_chosen_task_is_refused(tasks: list[Task], entry: int | str) -> None:
    choice = TaskChoice("train", exclude=(tasks[0].index, entry))
    with pytest.raises(
        errors.SpecError, match="exclude holds .* none of the .*chosen tasks of split 'train'.*; accepted"
    ):
        left_over("a", choice, tasks)


def test_tasks_are_excluded_by_index_by_task_id_and_by_the_names_of_their_specs(shelf_server: ORSServer) -> None:
    spec = EnvSpec(shelf_server.url, indices=[5, 0, 1, 0, 2, 3], exclude=[0, "shelf/train/3", "t-5"])
    with MultiEnvSpec({"shelf": spec}) as mixture:
        assert ids(mixture.train_dataset) == ["shelf/train/1", "shelf/train/2"]
        assert found(mixture) == [], "the session of the check is that of a task that is trained on"
        assert mixture.eval_dataset == {}


@pytest.mark.parametrize(
    ("exclude", "words"),
    [
        ([7], "'shelf': exclude holds 7, which is none of the 4 chosen tasks of split 'train' (the nearest is 3)"),
        (
            ["t-9"],
            "'shelf': exclude holds 't-9', which names none of the chosen tasks of split 'train' (did you mean 't-",
        ),
        (
            ["shelf/test/0"],
            "such as 'shelf/train/0', or the value of a task's own id, task_id, instance_id, name such as",
        ),
        ([0, 1, "t-2", "shelf/train/3"], "'shelf': exclude leaves out all 4 chosen tasks of split 'train'"),
    ],
)
def test_an_exclusion_that_does_not_fit_is_explained(shelf_server: ORSServer, exclude: list[Any], words: str) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, num_tasks=4, exclude=exclude)}) as mixture:
        with pytest.raises(errors.SpecError) as caught:
            _ = mixture.train_dataset
    assert words in str(caught.value)
    assert caught.value.environment == "shelf"


def test_the_check_tells_an_index_that_excludes_nothing(shelf_server: ORSServer) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, num_tasks=4, exclude=[7])}) as mixture:
        (finding,) = found(mixture)
    assert (finding.code, finding.severity) == ("declaration-wrong", "error")
    assert "exclude holds 7" in finding.message


def test_evaluation_rows_have_the_columns_of_the_training_rows_and_are_fetched_once(shelf_server: ORSServer) -> None:
    specs = {
        "one": EnvSpec(shelf_server.url, num_tasks=4, eval_split="test", eval_num_tasks=2, system_prompt="Be brief."),
        "two": EnvSpec(shelf_server.url, indices=[4], eval_indices=[5]),
    }
    with MultiEnvSpec(specs) as mixture:
        shelf_server.requests.clear()
        evaluation = mixture.eval_dataset
        assert {name: ids(rows) for name, rows in evaluation.items()} == {
            "one": ["one/test/0", "one/test/1"],
            "two": ["two/train/5"],
        }
        assert ids(mixture.train_dataset) == [*(f"one/train/{index}" for index in range(4)), "two/train/4"]
        for rows in evaluation.values():
            assert rows.features == mixture.train_dataset.features
        assert evaluation["one"]["level"] == [0, 1]
        assert evaluation["one"][0]["prompt"][0] == {"role": "system", "content": "Be brief."}
        assert json.loads(evaluation["two"][0]["task"]) == TRAIN[5]
        assert mixture.trainer_kwargs()["eval_dataset"].keys() == {"one", "two"}
        assert shelf_server.paths().count("/shelf/task_range") == 4
        copy = pickle.loads(pickle.dumps(mixture))
        assert ids(copy.eval_dataset["one"]) == ["one/test/0", "one/test/1"]
        assert shelf_server.paths().count("/shelf/task_range") == 4


def test_without_evaluation_nothing_is_fetched_for_it_and_no_slot_is_filled() -> None:
    mixture = MultiEnvSpec({"down": EnvSpec("http://127.0.0.1:1")})
    assert mixture.eval_dataset == {}
    with MultiEnvSpec({"shelf": shelf(train=TRAIN)}) as there:
        assert "eval_dataset" not in there.trainer_kwargs()


def test_an_environment_may_be_evaluated_only(shelf_server: ORSServer) -> None:
    specs = {
        "trained": EnvSpec(shelf_server.url, num_tasks=2),
        "rest": EnvSpec(shelf_server.url, indices=[3, 2], evaluation_only=True),
        "test": EnvSpec(shelf_server.url, eval_split="test", evaluation_only=True),
        "first": EnvSpec(shelf_server.url, split="test", eval_num_tasks=1, evaluation_only=True),
    }
    with MultiEnvSpec(specs) as mixture:
        assert ids(mixture.train_dataset) == ["trained/train/0", "trained/train/1"]
        assert {name: ids(rows) for name, rows in mixture.eval_dataset.items()} == {
            "rest": ["rest/train/3", "rest/train/2"],
            "test": [f"test/test/{index}" for index in range(3)],
            "first": ["first/test/0"],
        }
        assert list(mixture.environment_factory) == list(specs)
        assert [function.__name__ for function in mixture.reward_funcs] == list(specs)
        assert found(mixture) == []


def test_a_mixture_in_which_nothing_trains_says_so_and_still_evaluates(shelf_server: ORSServer) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, evaluation_only=True)}) as mixture:
        with pytest.raises(errors.EmptyTaskListError, match="nothing to train on: 'shelf' is evaluation_only; leave"):
            _ = mixture.train_dataset
        assert len(mixture.eval_dataset["shelf"]) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_indices": [3]}, "'a' is evaluated on task 3 of split 'train', on which it trains; accepted"),
        ({"num_tasks": 4, "eval_indices": [5, 3]}, "evaluated on task 3"),
        ({"eval_split": "train", "eval_num_tasks": 2}, "evaluated on task 0"),
        ({"indices": [7], "eval_split": "train"}, "evaluated on task 7"),
    ],
)
def test_what_is_trained_on_is_not_evaluated_on(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.OverlappingTasksError) as caught:
        MultiEnvSpec({"a": EnvSpec("x/a", **options)})
    assert words in str(caught.value)
    assert "exclude=[" in str(caught.value)


def test_nor_what_another_environment_trains_on(shelf_server: ORSServer) -> None:
    with pytest.raises(
        errors.OverlappingTasksError, match="'b' is evaluated on task 1 .* on which environment 'a' trains"
    ):
        MultiEnvSpec({"a": EnvSpec("x/a", num_tasks=2), "b": EnvSpec("X/A", indices=[1], evaluation_only=True)})
    kept_out = EnvSpec(shelf_server.url, exclude=["t-3"], eval_indices=[3])
    with MultiEnvSpec({"a": kept_out}) as mixture:
        assert ids(mixture.eval_dataset["a"]) == ["a/train/3"]
        assert "a/train/3" not in ids(mixture.train_dataset)
    with MultiEnvSpec({"a": EnvSpec(shelf_server.url, exclude=["t-3"], eval_indices=[3, 4])}) as mixture:
        with pytest.raises(errors.OverlappingTasksError, match="evaluated on task 4"):
            _ = mixture.eval_dataset


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_split": "tset"}, ["unknown split 'tset' (did you mean 'test'?)", "Set eval_split to one of them."]),
        ({"eval_split": "test", "eval_indices": [9]}, ["index 9 lies outside split 'test'", "eval_indices="]),
    ],
)
def test_the_check_covers_what_is_evaluated(shelf_server: ORSServer, options: dict[str, Any], words: list[str]) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, **options)}) as mixture:
        (finding,) = found(mixture)
        with pytest.raises(errors.SpecError, match="environment 'shelf': "):
            _ = mixture.train_dataset
    assert (finding.environment, finding.severity, finding.code) == ("shelf", "error", "declaration-wrong")
    assert all(word in str(finding) for word in words)


def test_fewer_tasks_to_evaluate_on_than_declared_are_a_note(shelf_server: ORSServer) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, eval_split="test", eval_num_tasks=9)}) as mixture:
        (finding,) = found(mixture)
        assert len(mixture.eval_dataset["shelf"]) == 3
    assert finding.code == "fewer-tasks"
    assert finding.message == "eval_num_tasks=9, and split 'test' has 3; it is evaluated on all of them."


def test_a_session_is_opened_in_the_rows_own_split(shelf_server: ORSServer) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, eval_split="test")}) as mixture:
        rows = {"train": mixture.train_dataset[1], "test": mixture.eval_dataset["shelf"][1]}
        assert {row["task_index"] for row in rows.values()} == {1}
        for factory in (mixture.environment_factory["shelf"], mixture.meta_environment_factory):
            adapter: Any = factory()
            for split, row in rows.items():
                assert adapter.reset(**row) == f"Echo '{split} 1' to win."
                assert adapter.episode.task_id == f"shelf/{split}/1"
        assert adapter.reset(environment="shelf", task_index=1) == "Echo 'train 1' to win."
        for split, row in rows.items():
            mixture.live.open_ahead("shelf", row)
            adapter._adapter()._start_reset(rows["test"])
            assert adapter.reset(**row) == f"Echo '{split} 1' to win."
        adapter._adapter()._start_reset(rows["train"])
        assert adapter.reset(**rows["test"]) == "Echo 'test 1' to win.", (
            "what was started for another split is not taken"
        )


def test_asyncgrpos_adapter_opens_the_rows_own_split_too(shelf_server: ORSServer) -> None:
    from multienv.sessions import session_loop

    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, eval_split="test")}) as mixture:
        row = mixture.eval_dataset["shelf"][2]
        with pytest.warns(UserWarning, match="AsyncGRPOTrainer has no eval_dataset"):
            slots = mixture.async_trainer_kwargs()
        adapter: Any = slots["environment_factory"]["shelf"]()
        assert adapter.reset(**row) == "Echo 'test 2' to win."
        adapter._deferred = []
        assert adapter.reset(**row) == ""
        assert session_loop().run(adapter._open_deferred()) == "Echo 'test 2' to win."
        assert adapter.episode.task_id == "shelf/test/2"


@given(environment_names, st.text(min_size=1, max_size=6) | st.just("a/b"), st.integers(0, 10**6))
def test_a_rows_task_is_what_its_task_id_says(name: str, split: str, index: int) -> None:
    row = {"environment": name, "task_index": index, "task_id": task_id(name, split, index)}
    assert task_key(row, name, "another") == TaskKey(split, index)
    assert task_key({"task_index": index}, name, "another") == TaskKey("another", index)


@pytest.mark.parametrize("identity", ["shelf/test/2", "other/test/1", "shelf//1", "1", 5])
def test_a_row_that_contradicts_itself_is_refused(shelf_server: ORSServer, identity: Any) -> None:
    with MultiEnvSpec({"shelf": EnvSpec(shelf_server.url, discover_task_tools=False)}) as mixture:
        adapter: Any = mixture.environment_factory["shelf"]()
        with pytest.raises(errors.RoutingError, match="has task_id=.* beside task_index=1; accepted: 'shelf/SPLIT/1'"):
            adapter.reset(task_index=1, task_id=identity)


def test_tools_learnt_in_one_split_are_not_taken_for_those_of_another() -> None:
    spec = EnvSpec(TaskToolsEnvironment, split="test", eval_split="train", task_tools_discovery_index=0)
    with MultiEnvSpec({"env": spec}) as mixture:
        adapter: Any = mixture.environment_factory["env"]()
        adapter.reset(**mixture.train_dataset[0])
        assert set(mixture.live.clients["env"].listings) == {None, 0}
        adapter.reset(**mixture.eval_dataset["env"][1])
        assert set(mixture.live.clients["env"].listings) == {None, 0, "train/1"}
        assert [drift.differences for drift in mixture.tools_report().drift] == [
            ("in task train/1, not in what all tasks share and task 0",)
        ]


def test_an_environment_of_another_making_is_evaluated_on_rows_of_its_own() -> None:
    from datasets import Dataset

    def guessed(number: list[int], **_: Any) -> list[float]:
        return [float(one) for one in number]

    numbers = [{"prompt": [{"role": "user", "content": f"Guess {n}."}], "number": n} for n in (1, 2, 3)]
    train, held_out = Dataset.from_list(numbers[:2]), Dataset.from_list(numbers[2:])
    spec = ForeignSpec(GuessEnvironment, train_dataset=train, eval_dataset=held_out, reward_funcs=guessed)
    with MultiEnvSpec({"guess": spec}) as mixture:
        assert ids(mixture.train_dataset) == ["guess/train/0", "guess/train/1"]
        rows = mixture.eval_dataset["guess"]
        assert (ids(rows), rows[0]["prompt"][-1]["content"]) == (["guess/eval/0"], "Guess 3.")
        adapter: Any = mixture.environment_factory["guess"]()
        adapter.reset(**rows[0])
        assert adapter.rows[-1] == numbers[2]
        columns = {key: [value] for key, value in rows[0].items() if key != "prompt"}
        (reward,) = mixture.reward_funcs
        assert reward(prompts=["p"], completions=["c"], environments=[adapter], **columns) == [3.0]
        adapter.reset(**mixture.train_dataset[0])
        assert adapter.rows[-1] == numbers[0]
        with pytest.raises(errors.RoutingError, match="task_index=1 in split 'eval'; accepted: .* 0 in split 'eval'"):
            adapter.reset(task_index=1, task_id="guess/eval/1")
        with pytest.raises(errors.RoutingError, match="task_index=0 in split 'test'; accepted"):
            adapter.reset(task_index=0, task_id="guess/test/0")
    with pytest.raises(errors.SpecError, match="eval_dataset is of type list; accepted: a datasets.Dataset"):
        ForeignSpec(GuessEnvironment, eval_dataset=[])


def test_a_check_says_that_everything_is_left_out_and_blames_the_declaration() -> None:
    spec = MultiEnvSpec({"echo": EnvSpec(EchoEnvironment, indices=[0, 1], exclude=[0, 1], discover_task_tools=False)})
    with spec:
        wrong = [finding for finding in spec.check() if finding.severity is Severity.ERROR]
    assert [(finding.environment, finding.code) for finding in wrong] == [("echo", Code.DECLARATION_WRONG)]
    assert "exclude leaves out all 2 chosen tasks" in wrong[0].message
