"""The record of episodes: what is written is read again, at any time, after any end, once."""

from __future__ import annotations

import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multienv import EnvSpec, Episode, EpisodeStatus, MultiEnvGRPOTrainer, MultiEnvSpec, RewardSpec, Step, errors
from multienv.reporting import EpisodeRecord, plain, read_episodes, rescore
from multienv.reporting.record import file_of, parsed
from multienv.router.presentation import shortened
from tests import strategies
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer

ROOT = Path(__file__).parent.parent


def episode(row: int, step: int | None = 0, **fields: Any) -> Episode:
    status = fields.pop("status", EpisodeStatus.FINISHED)
    return Episode("a", f"a/train/{row}", None, (), status, training_step=step, **fields)


def cut(value: Any) -> Any:
    """What the record keeps of a value."""
    if isinstance(value, dict):
        return {cut(key): cut(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(cut(item) for item in value)
    return shortened(value, 2_000) if isinstance(value, str) else value


def as_recorded(episode: Episode) -> Episode:
    steps = tuple(
        replace(
            step,
            tool=cut(step.tool),
            arguments=cut(step.arguments),
            text=cut(step.text),
            metadata=cut(step.metadata),
        )
        for step in episode.steps
    )
    return replace(episode, steps=steps, reason=cut(episode.reason), completion=cut(episode.completion))


@given(st.lists(strategies.recorded_episodes, min_size=1, max_size=4))
def test_what_is_written_is_read_again_but_for_what_is_cut_from_long_texts(episodes: list[Episode]) -> None:
    with TemporaryDirectory() as directory:
        EpisodeRecord(directory).add(episodes)
        read = read_episodes(directory)
    expected = [as_recorded(episode) for episode in episodes]
    expected.sort(key=lambda episode: (episode.training_step, not episode.is_evaluation))
    assert sorted(read, key=repr) == sorted(expected, key=repr)
    assert [(e.training_step, e.is_evaluation) for e in read] == [(e.training_step, e.is_evaluation) for e in expected]


@given(strategies.recorded_episodes, st.text(min_size=4, max_size=8), st.data())
def test_a_secret_is_nowhere_in_a_line(episode: Episode, secret: str, data: st.DataObject) -> None:
    hidden = f"before {secret} after"
    step = Step(
        hidden, {"a": [hidden], hidden: 1}, hidden + "x" * data.draw(st.sampled_from([0, 3_000])), 1.0, {"m": hidden}
    )
    message = {"role": "tool", "content": [{"type": "text", "text": hidden}]}
    told = replace(episode, steps=(step,), completion=(message,), reason=hidden, error=hidden, session_id=hidden)
    with TemporaryDirectory() as directory:
        EpisodeRecord(directory, secrets=[secret]).add([told])
        (read,) = read_episodes(directory)
    leaves = [*walk(read.steps[0].arguments), *walk(read.steps[0].metadata), *walk(list(read.completion))]
    for text in (*leaves, read.reason, read.error, read.session_id, read.steps[0].tool, read.steps[0].text):
        assert secret not in str(text).replace("[secret]", "\0")
    assert read.steps[0].tool == hidden.replace(secret, "[secret]")


def walk(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in [key, *walk(item)]]
    if isinstance(value, list):
        return [text for item in value for text in walk(item)]
    return [value] if isinstance(value, str) else []


def test_what_json_cannot_say_is_said_in_words() -> None:
    from PIL import Image

    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    odd = {"nan": float("nan"), "inf": [float("inf")], 1: {2}, "picture": Image.new("RGB", (2, 2)), "number": 123456}
    assert plain(odd) == {"nan": "nan", "inf": ["inf"], "1": "{2}", "picture": "[image]", "number": 123456}
    assert plain(odd, secrets={"123456"})["number"] == "[secret]"
    assert "nested too deep" in json.dumps(plain(deep))
    with TemporaryDirectory() as directory:
        step = Step("t", {"n": float("nan"), "deep": deep}, "", float("-inf"), {"x": float("inf")})
        EpisodeRecord(directory).add([episode(0, reward=float("inf")), replace(episode(1), steps=(step,))])
        first, second = read_episodes(directory)
        for line in file_of(directory, 0).read_text().splitlines():
            json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert first.reward == float("inf")
    assert (second.steps[0].reward, second.steps[0].arguments["n"]) == (float("-inf"), "nan")


def test_what_python_cannot_write_ends_no_run(tmp_path: Path) -> None:
    class Shy:
        def __str__(self) -> str:
            raise RuntimeError("not in front of others")

    step = Step("t", {}, "", 1.0, {"huge": 10**5_000, "shy": Shy(), "fine": 2})
    EpisodeRecord(tmp_path).add([replace(episode(0), steps=(step,))])
    metadata = read_episodes(tmp_path)[0].steps[0].metadata
    assert metadata == {"huge": "[int that cannot be written]", "shy": "[Shy that cannot be written]", "fine": 2}


def test_a_record_that_cannot_be_read_is_not_gone_on_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file_of(tmp_path, 0).mkdir()
    record = EpisodeRecord(tmp_path)
    assert record.last_run() is None
    record.resume(record.run, 3)
    record.add([episode(0)])
    assert [message for message in caplog.messages if "its run is not gone on with" in message]
    assert [message for message in caplog.messages if "1 rollouts are missing from the record" in message]


def test_a_resume_does_not_hold_the_record_in_memory(tmp_path: Path) -> None:
    record, text = EpisodeRecord(tmp_path), "x" * 1_900
    steps = tuple(Step("t", {"a": text}, text, 0.0) for _ in range(10))
    for step in range(4):
        record.add([replace(episode(row, step), steps=steps) for row in range(64)])
    size = file_of(tmp_path, 0).stat().st_size
    tracemalloc.start()
    resumed = EpisodeRecord(tmp_path)
    resumed.resume(resumed.last_run() or "", 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(read_episodes(tmp_path)) == 3 * 64
    assert peak < size / 10


def test_numbers_of_the_runs_own_are_no_secrets(tmp_path: Path) -> None:
    EpisodeRecord(tmp_path, secrets=["1234", "finished", "a/train/0"]).add([episode(0, 1234, reward=1234.0)])
    (read,) = read_episodes(tmp_path)
    assert (read.training_step, read.reward, read.task_id) == (1234, 1234.0, "a/train/0")
    assert read.status is EpisodeStatus.FINISHED


def test_half_a_line_is_not_read_and_is_cut_off_before_the_next_one(tmp_path: Path) -> None:
    record, path = EpisodeRecord(tmp_path), file_of(tmp_path, 0)
    record.add([episode(0), episode(1)])
    whole = path.read_bytes()
    first_end = whole.index(b"\n") + 1
    for end in (first_end, first_end + 1, first_end + 100, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert [e.task_id for e in read_episodes(tmp_path)] == ["a/train/0"]
        record.add([episode(2)])
        assert [e.task_id for e in read_episodes(tmp_path)] == ["a/train/0", "a/train/2"]
    path.write_bytes(b"x" * 200_000)
    record.add([episode(3)])
    assert [e.task_id for e in read_episodes(tmp_path)] == ["a/train/3"]


def test_a_line_that_is_none_is_left_out_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record, path = EpisodeRecord(tmp_path), file_of(tmp_path, 0)
    record.add([episode(0)])
    for nonsense in (b"\0\0\0\n", b"[]\n", b'{"version": 1}\n', b"[" * 5_000 + b"\n"):
        path.write_bytes(path.read_bytes() + nonsense)
    record.add([episode(1)])
    assert [e.task_id for e in read_episodes(tmp_path)] == ["a/train/0", "a/train/1"]
    said = [message for message in caplog.messages if "is left out" in message]
    assert [message.split(",")[1].split(" is")[0] for message in said] == [f" line {n}" for n in (2, 3, 4, 5)]


def test_reading_while_it_is_written_never_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    EpisodeRecord(tmp_path).add([episode(0)])
    record, is_over = EpisodeRecord(tmp_path), threading.Event()
    record.run = next(line.run for _, line in parsed(file_of(tmp_path, 0)) if line)

    def write() -> None:
        for step in range(1, 200):
            record.add(episode(row, step, reason="z" * 1_500) for row in range(8))
            if step % 50 == 0:
                record.resume(record.run, step - 2)  # the file is replaced
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    while not is_over.is_set():
        read = read_episodes(tmp_path)
        counts.append(len(read))
        steps = Counter(e.training_step for e in read)
        assert set(list(steps.values())[1:-1]) <= {8}, "only the step that is being written may be incomplete"
    writer.join()
    assert len(counts) > 2
    assert not caplog.messages


def test_a_killed_writer_leaves_no_broken_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng, step = random.Random(0), 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.record_child", str(tmp_path), str(step)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == f"{step}\n"
        time.sleep(rng.random() / 10)
        child.send_signal(signal.SIGKILL)
        told = [step, *map(int, child.stdout.read().split())]
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        read = read_episodes(tmp_path)
        assert Counter(e.training_step for e in read) >= Counter(dict.fromkeys(told, 1))
        step = told[-1] + 2  # the step it was killed in may be there in part
    lines = file_of(tmp_path, 0).read_bytes().splitlines(keepends=True)
    assert all(json.loads(line) for line in lines if line.endswith(b"\n"))
    assert not caplog.messages


def test_the_files_of_several_ranks_become_one_list(tmp_path: Path) -> None:
    for rank in (1, 0, 10):
        record = EpisodeRecord(tmp_path, rank)
        record.run = "run"
        record.add([episode(row, step, rank=rank) for step in (0, 1) for row in (0, 1)])
        record.add([episode(7, 1, rank=rank, is_evaluation=True)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["episodes.jsonl", "episodes.rank1.jsonl", "episodes.rank10.jsonl"]
    order = [(e.training_step, e.is_evaluation, e.rank, e.task_id[-1]) for e in read_episodes(tmp_path)]
    training = [(step, False, rank, row) for step in (0, 1) for rank in (0, 1, 10) for row in "01"]
    assert order == [*training[:6], *((1, True, rank, "7") for rank in (0, 1, 10)), *training[6:]]


def test_the_last_run_is_read_unless_another_is_named(tmp_path: Path) -> None:
    first, second = EpisodeRecord(tmp_path), EpisodeRecord(tmp_path)
    first.add([episode(1)])
    second.add([episode(2)])
    assert [e.task_id for e in read_episodes(tmp_path)] == ["a/train/2"]
    assert [e.task_id for e in read_episodes(tmp_path, first.run)] == ["a/train/1"]
    with pytest.raises(errors.RecordError, match="no run 'nope' in .*; it has "):
        read_episodes(tmp_path, "nope")


def test_a_record_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(errors.RecordError, match="holds no episodes.jsonl; give the output_dir"):
        read_episodes(tmp_path)
    EpisodeRecord(tmp_path).add([episode(0)])
    path = file_of(tmp_path, 0)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(errors.RecordError, match="version 2 of a record; accepted: up to 1; use a later version"):
        read_episodes(tmp_path)


def test_fields_that_a_line_has_not_or_has_too_many_of_do_no_harm(tmp_path: Path) -> None:
    EpisodeRecord(tmp_path).add([episode(0, reward=1.0)])
    path = file_of(tmp_path, 0)
    line = json.loads(path.read_text())
    del line["open_s"], line["rank"]
    path.write_text(json.dumps(line | {"mood": "good"}) + "\n")
    assert read_episodes(tmp_path) == [episode(0, reward=1.0)]


def test_a_disk_that_fails_costs_the_record_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    record = EpisodeRecord(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        record.add([episode(0)])
        record.add([episode(0)])
    assert len(caplog.messages) == 1
    assert "1 rollouts are missing from the record" in caplog.messages[0]


@given(st.lists(strategies.recorded_episodes, max_size=4))
@settings(max_examples=20)
def test_another_rule_gives_other_rewards_and_changes_nothing_else(episodes: list[Episode]) -> None:
    def rule(episode: Episode) -> float | None:
        return None if not episode.steps else float(len(episode.steps))

    again = rescore(episodes, rule)
    assert [e.reward for e in again] == [rule(e) for e in episodes]
    assert [replace(e, reward=None) for e in again] == [replace(e, reward=None) for e in episodes]


def test_one_environments_rule_is_changed_and_the_others_keep_their_rewards() -> None:
    steps = (Step("up", {}, "1", 0.25), Step("up", {}, "2", 0.5))
    played = [
        Episode(name, f"{name}/train/0", "s", steps, EpisodeStatus.UNFINISHED, reward=0.5) for name in ("maze", "game")
    ]
    assert [e.reward for e in rescore(played, {"maze": RewardSpec(reduction="total")})] == [0.75, 0.5]
    assert [e.reward for e in rescore(played, RewardSpec(reduction="total"))] == [0.75, 0.75]


def test_a_resume_cuts_off_what_is_played_again_of_its_own_run_in_every_ranks_file(tmp_path: Path) -> None:
    def left(run: str) -> list[tuple[int | None, bool, int]]:
        return [(e.training_step, e.is_evaluation, e.rank) for e in read_episodes(tmp_path, run)]

    for run in ("older", "run"):
        for rank in range(3):
            record = EpisodeRecord(tmp_path, rank)
            record.run = run
            for step in range(4):
                record.add([episode(0, step, rank=rank, is_evaluation=True), episode(1, step, rank=rank)])
    older = left("older")
    for rank in range(2):  # two ranks now
        record = EpisodeRecord(tmp_path, rank)
        assert record.last_run() == "run"
        record.resume("run", 2, num_ranks=2)
    expected = [(step, is_eval, rank) for step in range(3) for is_eval in (True, False) for rank in range(3)]
    assert left("run") == [line for line in expected if line[:2] != (2, False)]
    assert left("older") == older
    EpisodeRecord(tmp_path).resume("run", 2, evaluates_first=True)
    assert (2, True, 0) not in left("run")


# A real run


def climb(text: str, turn: int) -> str:
    """Climb up, say the secret on the way."""
    return [call("secret", word="KEY"), call("up", n=4)][turn] if turn < 2 else "done"


def train(server: ORSServer, directory: Path, options: dict[str, Any], resume: Any = None, **switches: Any) -> Any:
    secrets = {"KEY": "very-secret-123"}
    declared = EnvSpec(server.url, secrets=secrets, api_key="key-of-mine", discover_task_tools=False)
    with MultiEnvSpec({"climb": declared}) as spec:
        settings = {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 6} | options
        slots = {"spec": spec, "eval_dataset": spec.train_dataset, **switches}
        trainer = scripted_trainer(climb, directory, settings, MultiEnvGRPOTrainer, **slots)
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def keys(directory: Path) -> list[tuple[str, int, bool, int]]:
    lines = [json.loads(line) for line in file_of(directory, 0).read_text().splitlines()]
    return [(line["run"], line["training_step"], line["is_evaluation"], line["row"]) for line in lines]


def test_the_record_of_a_run_says_what_happened_and_no_secret(climb_server: ORSServer, tmp_path: Path) -> None:
    before = time.time()
    trainer = train(climb_server, tmp_path, {"max_steps": 1})
    episodes = read_episodes(tmp_path)
    assert [(e.rank, e.group, e.training_step, e.is_evaluation) for e in episodes] == [
        (0, group, 0, False) for group in (0, 0, 1, 1, 2, 2)
    ]
    assert [e.task_id for e in episodes[::2]] == [e.task_id for e in episodes[1::2]], "a group is one task"
    for e in episodes:
        assert (e.status, e.reward, e.error) == (EpisodeStatus.FINISHED, 1.0, "")
        assert [(s.tool, s.arguments, s.text) for s in e.steps] == [
            ("secret", {"word": "KEY"}, "[secret]"),
            ("up", {"n": 4}, "4"),
        ]
        assert [message["role"] for message in e.completion] == ["assistant", "tool", "assistant", "tool"]
        assert before < e.started_at < time.time()
        assert e.open_s > 0
    masks = trainer._buffered_inputs[0]
    trained = (masks["completion_mask"] * masks["tool_mask"]).sum(1).tolist()
    assert sorted(e.num_completion_tokens for e in episodes) == sorted(trained)
    written = file_of(tmp_path, 0).read_text()
    assert "very-secret" not in written
    assert "key-of-mine" not in written


def test_the_record_can_be_switched_off(climb_server: ORSServer, tmp_path: Path) -> None:
    trainer = train(climb_server, tmp_path, {"max_steps": 1}, record_episodes=False)
    assert not list(tmp_path.glob("episodes*"))
    assert trainer.state.log_history[0]["env/climb/rollouts"] == 6


def test_no_rollout_is_there_twice_after_a_resume(climb_server: ORSServer, tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    train(climb_server, tmp_path, options | {"max_steps": 3})
    interrupted = keys(tmp_path)
    assert sorted({step for _, step, is_eval, _ in interrupted if not is_eval}) == [0, 1, 2]
    resumed = train(climb_server, tmp_path, options | {"max_steps": 4}, resume=str(tmp_path / "checkpoint-2"))
    after = keys(tmp_path)
    assert resumed.state.global_step == 4
    assert len(set(after)) == len(after)
    assert len({run for run, *_ in after}) == 1, "a resumed run is one run"
    assert Counter((step, is_eval) for _, step, is_eval, _ in after) == {
        **{(step, False): 6 for step in range(4)},
        **{(step, True): 6 for step in (2, 4)},
    }
    assert len(read_episodes(tmp_path)) == len(after)
    train(climb_server, tmp_path, {"max_steps": 1})
    assert len(read_episodes(tmp_path)) == 6, "a run that begins anew is another run"
    assert keys(tmp_path)[: len(after)] == after


def test_a_resume_goes_on_with_the_checkpoints_run_and_not_with_one_that_came_between(
    climb_server: ORSServer, tmp_path: Path
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    train(climb_server, tmp_path, saving)
    ((first, *_), *_) = keys(tmp_path)
    train(climb_server, tmp_path, {"max_steps": 1})
    train(climb_server, tmp_path, saving | {"max_steps": 3}, resume=str(tmp_path / "checkpoint-1"))
    steps = [
        Counter(step for run, step, *_ in keys(tmp_path) if (run == first) is is_first) for is_first in (True, False)
    ]
    assert steps == [{0: 6, 1: 6, 2: 6}, {0: 6}]
    assert len(read_episodes(tmp_path)) == 18


def test_what_is_evaluated_before_training_belongs_to_the_run(climb_server: ORSServer, tmp_path: Path) -> None:
    train(climb_server, tmp_path, {"max_steps": 1, "eval_on_start": True, "eval_strategy": "steps", "eval_steps": 9})
    played = Counter((e.training_step, e.is_evaluation) for e in read_episodes(tmp_path))
    assert played == {(0, True): 6, (0, False): 6, (1, True): 6}
