"""The tasks of a run, written down, compared and found again."""

from __future__ import annotations

import json
import pickle
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import EnvSpec, ForeignSpec, MultiEnvSpec, errors
from multienv.manifest import Manifest, compare, compare_manifests, digest, pairing
from tests.strategies import contents, json_values, manifests
from tests.support.environments import OneEnvironment, shelf
from tests.support.foreign import GuessEnvironment
from tests.support.servers import ORSServer


def shuffled(value: Any) -> Any:
    """The same JSON value with its keys the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(member) for member in value] if isinstance(value, list) else value


@given(json_values, json_values)
def test_a_digest_is_of_the_json_value_and_not_of_how_it_is_written(one: Any, other: Any) -> None:
    assert digest(shuffled(json.loads(json.dumps(one)))) == digest(one)
    written = [json.dumps(value, sort_keys=True) for value in (one, other)]
    assert (digest(one) == digest(other)) == (written[0] == written[1])


@given(contents, contents)
def test_every_place_of_both_sides_is_accounted_for_once(old: dict[str, str], new: dict[str, str]) -> None:
    changes = compare(old, new)
    stayed = [place for place in old if new.get(place) == old[place]]
    before = Counter([*stayed, *changes.removed, *changes.changed, *(place for place, _ in changes.moved)])
    after = Counter([*stayed, *changes.added, *changes.changed, *(place for _, place in changes.moved)])
    assert before == Counter(old.keys())
    assert after == Counter(new.keys())
    assert all(old[place] == new[found] and place != found for place, found in changes.moved)
    assert all(old[place] != new[place] for place in changes.changed)
    gone = {old[place] for place in (*changes.removed, *changes.changed)}
    assert not gone & {new[place] for place in (*changes.added, *changes.changed)}, "what could be paired is paired"
    assert bool(changes) == (old != new)
    assert (str(changes) == "nothing") == (old == new)


@given(contents, st.randoms())
def test_a_catalogue_in_another_order_has_only_moved(old: dict[str, str], random: Any) -> None:
    places = list(old)
    random.shuffle(places)
    changes = compare(old, dict(zip(places, old.values(), strict=True)))
    assert (changes.added, changes.removed, changes.changed) == ((), (), ())


@given(contents, contents)
def test_comparing_the_other_way_round_swaps_added_and_removed(old: dict[str, str], new: dict[str, str]) -> None:
    there, back = compare(old, new), compare(new, old)
    assert len(there.moved) == len(back.moved)
    assert len(there.added) + len(there.changed) == len(back.removed) + len(back.changed)
    if len(set(old.values())) == len(old) and len(set(new.values())) == len(new):
        assert {*there.added} == {*back.removed}
        assert {*there.changed} == {*back.changed}
        assert {*there.moved} == {(one, other) for other, one in back.moved}


@given(contents, contents)
def test_tasks_are_found_again_by_content_and_no_place_serves_two(old: dict[str, str], new: dict[str, str]) -> None:
    pairs = pairing(old, new)
    assert all(old[place] == new[found] for place, found in pairs.items())
    assert len(set(pairs.values())) == len(pairs)
    assert Counter(old[place] for place in pairs) == Counter(old.values()) & Counter(new.values())
    assert list(pairs) == [place for place in old if place in pairs]


@given(manifests())
def test_a_manifest_reads_back_as_it_was_written_and_has_not_changed(
    tmp_path_factory: pytest.TempPathFactory, manifest: Manifest
) -> None:
    path = tmp_path_factory.mktemp("manifest") / "new" / "tasks.json"
    for _ in range(2):
        manifest.write(path)
    assert [file.name for file in path.parent.iterdir()] == ["tasks.json"]
    assert Manifest.read(path) == manifest
    assert not compare_manifests(manifest, Manifest.read(path))
    assert str(compare_manifests(manifest, manifest)) == "nothing has changed"


TASKS = [{"target": f"task {index}"} for index in range(6)]
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Any:
    """From the tasks of each split to the URL of a server that has them."""
    servers: list[ORSServer] = []

    def start(**splits: list[dict[str, Any]]) -> str:
        servers.append(ORSServer([shelf(**splits)]).start())
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


def trained(mixture: MultiEnvSpec) -> list[tuple[int, str]]:
    """Index and target of each training row."""
    rows = mixture.train_dataset
    return [(row["task_index"], json.loads(row["task"])["target"]) for row in rows]


def test_a_manifest_says_which_tasks_a_run_had_and_no_secret(serve: Serve, tmp_path: Path) -> None:
    url, secret = serve(train=TASKS, test=TASKS[:1]), "sk-very-secret"
    spec = EnvSpec(url, indices=[4, 1, 4], eval_split="test", api_key=secret, secrets={"KEY": secret})
    with MultiEnvSpec({"shelf": spec}) as mixture:
        mixture.write_manifest(tmp_path / "tasks.json")
        assert not mixture.compare_manifest(tmp_path / "tasks.json")
    text = (tmp_path / "tasks.json").read_text()
    assert secret not in text
    assert json.loads(text) == {
        "format": "multienv-tasks",
        "version": 1,
        "environments": {
            "shelf": {
                "target": url,
                "served_name": "shelf",
                "training": {
                    "split": "train",
                    "tasks": [
                        {"index": index, "task_id": f"shelf/train/{index}", "sha256": digest(TASKS[index])}
                        for index in (4, 1, 4)
                    ],
                },
                "evaluation": {
                    "split": "test",
                    "tasks": [{"index": 0, "task_id": "shelf/test/0", "sha256": digest(TASKS[0])}],
                },
            }
        },
    }


def test_a_catalogue_that_has_changed_is_told_apart_and_trained_on_as_it_was_pinned(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.json"
    with MultiEnvSpec({"shelf": EnvSpec(serve(train=TASKS, test=TASKS[:2]), num_tasks=4, eval_split="test")}) as before:
        before.write_manifest(path)
    # The first task is gone, two are new, one was corrected: 1, 2', new, 3, 4, 5
    now = [TASKS[1], {"target": "task 2, corrected"}, {"target": "new"}, TASKS[3], TASKS[4], TASKS[5]]
    spec = EnvSpec(serve(train=now, test=TASKS[:1]), num_tasks=3, eval_split="test")
    with MultiEnvSpec({"shelf": spec, "more": OneEnvironment}) as mixture:
        changes = mixture.compare_manifest(path)
        assert trained(mixture) == [(0, "task 1"), (1, "task 2, corrected"), (2, "new"), (0, "one")]
    assert changes
    assert str(changes).splitlines() == [
        "shelf: 1 added (train/1); 1 removed (train/0); 1 changed (train/2); 1 moved (train/1 → train/0)",
        "shelf, evaluation: 1 removed (test/1)",
        "more: not in the manifest",
    ]
    with MultiEnvSpec({"shelf": spec, "more": OneEnvironment}, manifest=path) as pinned:
        with pytest.warns(UserWarning, match="are pinned by .* differs.*") as caught:
            assert trained(pinned) == [(0, "task 1"), (3, "task 3"), (0, "one")]
        assert [str(changes) in str(one.message) for one in caught] == [True], "it is said once"
        assert pinned.train_dataset["task_id"][:2] == ["shelf/train/0", "shelf/train/3"]
        pinned.write_manifest(tmp_path / "new.json")
        assert str(pinned.compare_manifest(path)) == str(changes)
        copy = pickle.loads(pickle.dumps(pinned))
        assert trained(copy) == trained(pinned)
    with MultiEnvSpec({"shelf": spec, "more": OneEnvironment}, manifest=tmp_path / "new.json") as again:
        with pytest.warns(UserWarning, match=r"shelf: 2 added \(train/1, train/2\)"):
            assert trained(again) == [(0, "task 1"), (3, "task 3"), (0, "one")]


def test_pinned_tasks_are_looked_for_in_the_whole_split_and_only_where_that_is_needed(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.json"
    with MultiEnvSpec({"shelf": EnvSpec(serve(train=TASKS), indices=[2, 3, 2], exclude=[3])}) as before:
        before.write_manifest(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same = MultiEnvSpec(before.environments, manifest=path)
            assert trained(same) == [(2, "task 2"), (2, "task 2")]
            same.close()
    moved = EnvSpec(serve(train=[*TASKS[4:], *TASKS[:4]]), indices=[2, 3], exclude=[3])
    with MultiEnvSpec({"shelf": moved}, manifest=path) as pinned:
        with pytest.warns(UserWarning, match=r"1 added \(train/2\); 1 moved \(train/2 → train/4\)"):
            assert trained(pinned) == [(4, "task 2"), (4, "task 2")]
    left_out = EnvSpec(serve(train=[*TASKS[4:], *TASKS[:4]]), indices=[2, 4], exclude=[4])
    with MultiEnvSpec({"shelf": left_out}, manifest=path) as excluded:
        with pytest.raises(
            errors.EmptyTaskListError, match="'shelf': none of the 2 tasks that manifest .* pins is there"
        ):
            with pytest.warns(UserWarning, match=r"1 changed \(train/2\)"):
                _ = excluded.train_dataset


def test_an_environment_of_the_manifest_that_is_missing_and_one_only_evaluated_then_are_told(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    one, two = shelf(train=TASKS[:2]), shelf(train=TASKS[2:4])
    with MultiEnvSpec({"one": one, "two": EnvSpec(two, evaluation_only=True)}) as before:
        before.write_manifest(path)
    with MultiEnvSpec({"two": EnvSpec(two)}, manifest=path) as mixture:
        with pytest.warns(UserWarning, match="pinned by") as caught:
            assert len(mixture.train_dataset) == 2, "what was not trained on is not pinned"
    assert str(caught[0].message).splitlines()[1:] == [
        "two: 2 added (train/0, train/1)",
        "two, evaluation: 2 removed (train/0, train/1)",
        "one: in the manifest, not in the mixture",
    ]


def test_rows_of_environments_of_another_making_are_pinned_with_their_prompts(tmp_path: Path) -> None:
    from datasets import Dataset

    def rows(*prompts: str) -> ForeignSpec:
        return ForeignSpec(GuessEnvironment, train_dataset=Dataset.from_list([{"prompt": one} for one in prompts]))

    path = tmp_path / "tasks.json"
    with MultiEnvSpec({"guess": rows("a", "b", "c")}, system_prompt="Be brief.") as before:
        before.write_manifest(path)
    with MultiEnvSpec({"guess": rows("c", "d", "a")}, manifest=path) as pinned:
        with pytest.warns(UserWarning, match="guess: .* 2 moved"):
            dataset = pinned.train_dataset
        assert [prompt[-1]["content"] for prompt in dataset["prompt"]] == ["a", "c"]
        assert dataset["task_index"] == [2, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file or directory); accepted: a file of format version 1 that"),
        ("", "is no manifest of tasks; accepted"),
        ("[]", "is no manifest of tasks; accepted"),
        ("[" * 100_000, "is no manifest of tasks; accepted"),
        (
            '{"format": "multienv-tasks", "version": 1, "environments": {"\\ud800": 1}}',
            "is damaged at one of its strings: Invalid JSON",
        ),
        ('{"version": 1, "environments": {}}', "is no manifest of tasks; accepted"),
        ('{"format": "multienv-tasks", "version": 2}', "has format version 2; accepted: a file of format version 1"),
        ('{"format": "multienv-tasks", "version": 1}', "is damaged at environments: Field required; accepted"),
        (
            '{"format": "multienv-tasks", "version": 1, "environments": {"a": {"target": 5}}}',
            "is damaged at environments.a.target: Input should be a valid string",
        ),
    ],
)
def test_what_is_no_manifest_is_refused_before_any_network(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "tasks.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(errors.SpecError) as caught:
        MultiEnvSpec({"a": "x/a"}, manifest=path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_manifest_that_an_editor_has_saved_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    Manifest(environments={}).write(tmp_path / "tasks.json")
    text = (tmp_path / "tasks.json").read_bytes()
    (tmp_path / "tasks.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert Manifest.read(tmp_path / "tasks.json") == Manifest(environments={})


def test_bytes_that_are_no_text_and_values_that_are_no_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.SpecError, match="cannot be read .embedded null byte.; accepted"):
        MultiEnvSpec({"a": "x/a"}, manifest="tasks\0.json")
    (tmp_path / "tasks.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(errors.SpecError, match="cannot be read .it is no text.; accepted"):
        MultiEnvSpec({"a": "x/a"}, manifest=tmp_path / "tasks.json")
    with pytest.raises(errors.SpecError, match="manifest is of type dict; accepted: the path of a manifest, or None"):
        MultiEnvSpec({"a": "x/a"}, manifest={})  # type: ignore[arg-type]
