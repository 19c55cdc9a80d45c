"""Stopping and going on: the stream of tasks is the one that would have been, given the same outcomes."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOTrainer

from multienv import MultiEnvSpec
from multienv.errors import CheckpointError, SpecError
from multienv.specs import CurriculumSpec, Schedule
from tests.support import resume_child
from tests.support.quiz import CURRICULA, Batches, Kill, KilledError, quiz, quizzes, trainer_on

ROOT = Path(__file__).parent.parent
NUM_STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Let each training's `gc.collect` pass over what this process has imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@dataclass(frozen=True)
class Slain:
    """A process that is about to be killed."""

    process: subprocess.Popen[bytes]
    directory: Path
    step: int


@pytest.fixture(scope="module", autouse=True)
def slain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slain]:
    """Begun first of all: it takes its time to import."""
    directory, step = tmp_path_factory.mktemp("slain"), random.Random(0).randrange(3, 7)
    command = [sys.executable, "-m", "tests.support.resume_child", str(directory / "parts"), str(step)]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=dict(os.environ))
    yield Slain(process, directory, step)
    process.kill()
    process.wait()


def options_of(pace: str) -> dict[str, Any]:
    """From "accumulation/steps per generation/iterations" to arguments with four groups of two in a batch."""
    accumulated, steps, iterations = map(int, pace.split("/"))
    return {
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": steps,
        "num_iterations": iterations,
        "per_device_train_batch_size": 8 // steps,
        "max_steps": NUM_STEPS,
    }


def in_json(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


def continued(trainer: Any, batches: Batches, step: int) -> Batches:
    """What is generated for from a checkpoint on: from the batch that the checkpoint is in the middle of, if it is."""
    pace = trainer._sampler.pace
    epoch, done = divmod(step, pace.steps_per_epoch)
    first = epoch * pace.num_batches + done * pace.num_accumulated // pace.num_repeats
    return [(max(step, then), tasks) for then, tasks in batches[first:]]


def killed(spec: Any, directory: Path, options: dict[str, Any], at: int | None, **slots: Any) -> Any:
    """Go on from the last checkpoint, if there is one, until a step."""
    trainer = trainer_on(spec, directory, options, callbacks=[Kill(at)], **slots)
    has_checkpoint = any(directory.glob("checkpoint-*"))
    if at is None:
        trainer.train(resume_from_checkpoint=has_checkpoint)
    else:
        with pytest.raises(KilledError):
            trainer.train(resume_from_checkpoint=has_checkpoint)
    return trainer


def assert_goes_on(
    curriculum: str, directory: Path, options: dict[str, Any], scale: int = 1, num_kills: int = 3
) -> Any:
    """Kill a training at several steps, one after the other, and compare it with one that was left alone."""
    every = {"save_steps": 1 if options["gradient_accumulation_steps"] > 1 else 2}
    with quizzes(curriculum, scale) as spec:
        whole = trainer_on(spec, directory / "whole", options | {"save_strategy": "no"})
        whole.train()
    steps = sorted(random.Random(str((curriculum, options))).sample(range(2, options["max_steps"]), num_kills))
    start = 0
    for at in (*steps, None):
        with quizzes(curriculum, scale) as spec:
            trainer = killed(spec, directory / "parts", options | every, at)
        expected = continued(whole, whole.batches, start)
        assert trainer.batches == expected[: len(trainer.batches)], (start, at)
        assert trainer.batches or at is not None
        if at is None:
            assert len(trainer.batches) == len(expected)
        start = max(
            (int(path.name.partition("-")[2]) for path in (directory / "parts").glob("checkpoint-*")), default=0
        )
        assert at is None or start in (at - 1, at - 2, 0)
    assert in_json(trainer.curriculum.state_dict()) == in_json(whole.curriculum.state_dict())
    assert trainer.curriculum.account.lines == whole.curriculum.account.lines
    return whole


@pytest.mark.parametrize("curriculum", CURRICULA)
def test_a_killed_training_goes_on_as_if_it_had_never_stopped(curriculum: str, tmp_path: Path) -> None:
    whole = assert_goes_on(curriculum, tmp_path, options_of("1/1/1"))
    assert whole.state.epoch > 4
    assert {task for _, tasks in whole.batches for task in tasks} > {"a/train/0"}


@pytest.mark.parametrize(
    ("pace", "scale", "num_steps"),
    [("2/2/1", 4, 7), ("1/2/1", 1, 9), ("3/1/1", 1, 5), ("1/2/2", 1, 11), ("3/2/1", 1, 6)],
)
def test_a_killed_training_goes_on_whatever_its_pace(pace: str, scale: int, num_steps: int, tmp_path: Path) -> None:
    whole = assert_goes_on("adaptive", tmp_path, options_of(pace) | {"max_steps": num_steps}, scale)
    assert (whole.state.epoch < 1) is (scale > 1)


def test_a_training_goes_on_by_epochs_and_their_checkpoints(tmp_path: Path) -> None:
    options = options_of("2/2/1") | {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "epoch"}
    with quizzes("stages") as spec:
        whole = trainer_on(spec, tmp_path / "whole", options)
        whole.train()
    with quizzes("stages") as spec:
        killed(spec, tmp_path / "parts", options, at=5)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"checkpoint-2", "checkpoint-4"}
    with quizzes("stages") as spec:
        trainer = killed(spec, tmp_path / "parts", options, at=None)
    assert trainer.batches == whole.batches[4:]
    assert len(whole.batches) == 6, "two batches an epoch"
    assert in_json(trainer.curriculum.state_dict()) == in_json(whole.curriculum.state_dict())


@pytest.mark.parametrize("pace", ["1/1/1", "1/2/2"])
def test_who_does_not_skip_data_goes_on_with_the_same_tasks_in_a_new_epoch(pace: str, tmp_path: Path) -> None:
    options = options_of(pace) | {"ignore_data_skip": True, "max_steps": 7}
    with quizzes("adaptive") as spec:
        whole = trainer_on(spec, tmp_path / "whole", options | {"save_strategy": "no"})
        whole.train()
    with quizzes("adaptive") as spec:
        killed(spec, tmp_path / "parts", options, at=6)
    with quizzes("adaptive") as spec:
        trainer = killed(spec, tmp_path / "parts", options, at=None)
    expected = continued(whole, whole.batches, 5)
    tasks = [tasks for _, tasks in trainer.batches]
    assert trainer.batches[0][0] == 5
    assert tasks == [tasks for _, tasks in expected][: len(tasks)]
    assert len(tasks) == (2 if pace == "1/1/1" else 1)


def test_workers_of_the_data_loader_read_further_ahead_and_the_stream_goes_on_the_same(tmp_path: Path) -> None:
    options = options_of("1/1/1") | {"dataloader_num_workers": 1, "max_steps": 6}
    whole = assert_goes_on("adaptive", tmp_path, options, scale=2, num_kills=1)
    assert whole.curriculum.lag == 3


def test_the_same_trainer_goes_on_after_an_exception(tmp_path: Path) -> None:
    """TRL's trainer keeps what it generated last and where it was in it; both are of another time."""
    options = options_of("1/2/2") | {"save_steps": 3}
    with quizzes("stages") as spec:
        whole = trainer_on(spec, tmp_path / "whole", options | {"save_strategy": "no"})
        whole.train()
    kill = Kill(5)
    with quizzes("stages") as spec:
        trainer = trainer_on(spec, tmp_path / "parts", options, callbacks=[kill])
        with pytest.raises(KilledError):
            trainer.train()
        trainer.batches.clear()
        kill.step = None
        trainer.train(resume_from_checkpoint=True)
        assert trainer.batches == continued(whole, whole.batches, 3)
        assert in_json(trainer.curriculum.state_dict()) == in_json(whole.curriculum.state_dict())
        trainer.batches.clear()
        trainer.train()
        assert trainer.batches == whole.batches, "without a checkpoint it begins anew"


def test_a_killed_process_goes_on(slain: Slain) -> None:
    def train(directory: Path, **resume: Any) -> Any:
        with quizzes(resume_child.CURRICULUM) as spec:
            trainer = trainer_on(spec, directory, resume_child.OPTIONS)
            trainer.train(**resume)
        return trainer

    whole = train(slain.directory / "whole")
    assert slain.process.wait(120) == -signal.SIGKILL, (slain.directory / "output").read_text()
    trainer = train(slain.directory / "parts", resume_from_checkpoint=True)
    assert trainer.batches == continued(whole, whole.batches, slain.step)
    assert in_json(trainer.curriculum.state_dict()) == in_json(whole.curriculum.state_dict())


# Checkpoints that do not fit


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an adaptive training after five steps."""
    directory = tmp_path_factory.mktemp("kept")
    with quizzes("adaptive") as spec:
        trainer_on(spec, directory, options_of("1/1/1") | {"max_steps": 5, "save_steps": 5}).train()
    return directory / "checkpoint-5"


def with_state(kept: Path, directory: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Return a copy of the checkpoint with something changed in what callbacks keep in it."""
    copy = directory / kept.name
    shutil.copytree(kept, copy)
    state = json.loads((copy / "trainer_state.json").read_text())
    change(state["stateful_callbacks"])
    (copy / "trainer_state.json").write_text(json.dumps(state))
    return str(copy)


def resumed(spec: MultiEnvSpec, directory: Path, checkpoint: str, **slots: Any) -> tuple[Any, list[str]]:
    """Go on for three steps; return the trainer, and what was said about the mixture."""
    with spec, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = options_of("1/1/1") | {"max_steps": 8, "save_strategy": "no"}
        trainer = trainer_on(spec, directory, options, **slots)
        trainer.train(resume_from_checkpoint=checkpoint)
    assert [step for step, _ in trainer.batches] == [5, 6, 7]
    told = [str(one.message) for one in caught if one.category in (UserWarning, RuntimeWarning)]
    return trainer, [words for words in told if "curriculum" in words or "mixture" in words]


def test_a_checkpoint_without_a_curriculum_goes_on_with_a_warning(kept: Path, tmp_path: Path) -> None:
    checkpoint = with_state(kept, tmp_path, lambda callbacks: callbacks.clear())
    with quizzes("adaptive") as spec:
        fresh = trainer_on(spec, tmp_path, options_of("1/1/1") | {"max_steps": 3, "save_strategy": "no"})
        fresh.train()
    trainer, told = resumed(quizzes("adaptive"), tmp_path, checkpoint)
    assert trainer.batches[0][1] == fresh.batches[0][1], "the tasks begin anew"
    assert told == ["the checkpoint has no curriculum: it was saved by a trainer without one, so the tasks begin anew"]


def test_a_schedule_goes_on_at_the_step_of_a_checkpoint_that_knows_no_curriculum(kept: Path, tmp_path: Path) -> None:
    checkpoint = with_state(kept, tmp_path, lambda callbacks: callbacks.clear())
    points = {0: {"a": 1.0}, 6: {"b": 1.0}, 7: {"c": 1.0}}
    spec = MultiEnvSpec(
        {"a": quiz(5), "b": quiz(3), "c": quiz(2)}, curriculum=CurriculumSpec(schedule=Schedule(points=points))
    )
    trainer, _ = resumed(spec, tmp_path, checkpoint)
    assert [{task[0] for task in tasks} for _, tasks in trainer.batches] == [{"a"}, {"b"}, {"c"}]


def drop(callbacks: dict[str, Any], *path: str) -> None:
    *parents, last = path
    for key in parents:
        callbacks = callbacks[key]
    del callbacks[last]


OURS = "multienv.Curriculum"
CORRUPTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no mapping": lambda callbacks: callbacks.update({OURS: [1, 2]}),
    "a text": lambda callbacks: callbacks.update({OURS: "state"}),
    "no attributes": lambda callbacks: drop(callbacks, OURS, "attributes"),
    "attributes of another kind": lambda callbacks: callbacks[OURS].update(attributes=[]),
    "no position": lambda callbacks: drop(callbacks, OURS, "attributes", "position"),
    "a position of another kind": lambda callbacks: callbacks[OURS]["attributes"].update(position=True),
    "a negative position": lambda callbacks: callbacks[OURS]["attributes"].update(position=-1),
    "no curriculum": lambda callbacks: callbacks[OURS]["attributes"].update(curriculum=None),
    "a part missing": lambda callbacks: drop(callbacks, OURS, "attributes", "curriculum", "quotas"),
    "another format": lambda callbacks: callbacks[OURS]["attributes"]["curriculum"].update(format=0),
    "an order cut off": lambda callbacks: drop(callbacks, OURS, "attributes", "curriculum", "orders", "a"),
    "batches of another form": lambda callbacks: callbacks[OURS]["attributes"]["curriculum"].update(batches=[{}]),
    "outcomes of another form": lambda callbacks: callbacks[OURS]["attributes"]["curriculum"].update(waiting=[[5]]),
    "a quota of another kind": lambda callbacks: callbacks[OURS]["attributes"]["curriculum"].update(quotas={"a": 0.5}),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_curriculum_is_a_checkpoint_error(corruption: str, kept: Path, tmp_path: Path) -> None:
    checkpoint = with_state(kept, tmp_path, CORRUPTIONS[corruption])
    with quizzes("adaptive") as spec:
        trainer = trainer_on(spec, tmp_path, options_of("1/1/1"))
        with pytest.raises(CheckpointError):
            trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.batches == []


def test_another_set_of_environments_goes_on_with_one_warning_that_lists_the_differences(
    kept: Path, tmp_path: Path
) -> None:
    spec = MultiEnvSpec(
        {"bee": quiz(3, 1, sampling_weight=3.0), "c": quiz(4, 4), "dee": quiz(2)}, curriculum=CURRICULA["adaptive"]
    )
    trainer, told = resumed(spec, tmp_path, str(kept), renamed={"b": "bee"})
    (words,) = told
    assert words == (
        "training goes on with another mixture: 'b' is called 'bee' now; 'a' is gone; 'dee' is new; 'c' has 4 tasks "
        "now, it had 2; batches planned ahead are planned anew"
    )
    trained = {task.partition("/")[0] for _, tasks in trainer.batches for task in tasks}
    assert trained == {"bee", "c", "dee"}
    lines = trainer.curriculum.account.lines
    assert set(lines) == {"a", "bee", "c", "dee"}, "what was trained on stays on record"
    assert sum(line.dispatched for line in lines.values()) == 8 * 4, "every batch is learnt from"


def test_another_sampling_weight_goes_on_with_a_warning(kept: Path, tmp_path: Path) -> None:
    spec = MultiEnvSpec(
        {"a": quiz(5, sampling_weight=1.0), "b": quiz(3, 1, sampling_weight=1.0), "c": quiz(2, 4, sampling_weight=2.0)},
        curriculum=CURRICULA["adaptive"],
    )
    _, (words,) = resumed(spec, tmp_path, str(kept))
    assert words == (
        "training goes on with another mixture: the prior share of 'a' is 0.25 now, it was 0.625; the prior share of "
        "'c' is 0.5 now, it was 0.125"
    )


def test_an_unknown_name_in_renamed_is_a_spec_error(kept: Path, tmp_path: Path) -> None:
    with quizzes("adaptive") as spec:
        trainer = trainer_on(spec, tmp_path, options_of("1/1/1"), renamed={"bee": "be"})
        with pytest.raises(SpecError, match="renamed has 'bee'"):
            trainer.train(resume_from_checkpoint=str(kept))


def test_a_command_that_renames_can_be_run_again_after_the_renaming(kept: Path, tmp_path: Path) -> None:
    with quizzes("adaptive") as spec:
        trainer, told = resumed(spec, tmp_path, str(kept), renamed={"formerly": "b"})
        assert (told, trainer.state.global_step) == ([], trainer.args.max_steps)


def test_trls_own_sampler_replays_its_first_epoch_after_a_restart_and_ours_does_not(tmp_path: Path) -> None:
    """When the first part of this fails, TRL has been mended."""
    options = options_of("1/1/1") | {"max_steps": 6, "save_steps": 2}

    def train(name: str, mixture: str, at: int | None = None) -> Any:
        with MultiEnvSpec({"a": quiz(8)}, curriculum=mixture) as spec:
            return killed(spec, tmp_path / name, options, at)

    for mixture, does_replay in (("dataset", True), ("weights", False)):
        whole = train(f"{mixture}-whole", mixture)
        assert type(whole.callback_handler.train_dataloader.batch_sampler.sampler).__name__ == (
            "RepeatSampler" if does_replay else "PlannedSampler"
        )
        train(mixture, mixture, at=3)
        trainer = train(mixture, mixture)
        first, second = whole.batches[:2], whole.batches[2:4]
        assert [tasks for _, tasks in first] != [tasks for _, tasks in second]
        tasks = [tasks for _, tasks in trainer.batches[:2]]
        assert tasks == [tasks for _, tasks in (first if does_replay else second)], "two batches an epoch"
        assert isinstance(trainer, GRPOTrainer)
