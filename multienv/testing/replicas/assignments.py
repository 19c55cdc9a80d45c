"""Decides which tasks the replicas have: few words, short lines, and one to three files to write or mend.

The texts are repetitive on purpose, one step a line, so that a policy of a hundred thousand parameters can learn them.

Flow: a replica asks for the task spec of an index, and its session for the `Assignment` of that task spec.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from multienv.errors import SpecError
from multienv.types import JSONObject

WORDS: Final = ("amber", "birch", "cedar", "delta")
"""The words that files hold."""

_SLOTS: Final = ("one", "two", "three")
_WHY: Final = "task"
"""What a solution gives as the reason of a call, where a tool asks for one."""

Call = tuple[str, Mapping[str, Any]]
"""A tool's name with its arguments."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one task asks for, and how it is judged.

    Attributes:
        prompt: What the policy is told.
        folder: Where a session begins.
        files: The file tree at the beginning, text by path.
        wanted: The text that each check looks for, by path; white space around it does not count.
        weights: What each check counts, in the same order; they add up to 1.
        calls: Tool calls that solve it.
    """

    prompt: str
    folder: str
    files: Mapping[str, str]
    wanted: Mapping[str, str]
    weights: tuple[float, ...]
    calls: tuple[Call, ...]

    def passed(self, files: Mapping[str, str]) -> list[bool]:
        """Tell which checks a file tree passes."""
        return [files.get(path, "").strip() == text.strip() for path, text in self.wanted.items()]

    def score(self, files: Mapping[str, str]) -> float:
        """Return the weighted fraction of the checks that a file tree passes."""
        return math.fsum(
            weight for weight, is_passed in zip(self.weights, self.passed(files), strict=True) if is_passed
        )


def _word(start: int, slot: int) -> str:
    return WORDS[(start + slot) % len(WORDS)]


# SETA: write a word into one, two or three files, by difficulty

_DIFFICULTIES: Final[tuple[tuple[str, str, list[str], tuple[float, ...]], ...]] = (
    ("easy", "devops", ["docker"], (1.0,)),
    ("medium", "software-engineering", [], (0.6, 0.4)),
    ("hard", "system-administration", ["bash", "cron"], (0.5, 0.25, 0.25)),
)


def _seta_task_spec(index: int) -> dict[str, Any]:
    difficulty, category, tags, _ = _DIFFICULTIES[index % len(_DIFFICULTIES)]
    return {"task_id": index, "difficulty": difficulty, "category": category, "tags": list(tags)}


def _seta(task_spec: JSONObject) -> Assignment:
    start, level = divmod(int(task_spec["task_id"]), len(_DIFFICULTIES))
    weights = _DIFFICULTIES[level][-1]
    wanted = {f"/app/{_SLOTS[slot]}.txt": _word(start, slot) for slot in range(len(weights))}
    lines = [f"Write the word {word} to {path}." for path, word in wanted.items()]
    writes = [("write", {"file_path": path, "content": word}) for path, word in wanted.items()]
    return Assignment(
        prompt="\n".join([*lines, "Then call submit_solution."]),
        folder="/app",
        files={},
        wanted=wanted,
        weights=weights,
        calls=(*writes, ("submit_solution", {})),
    )


# EndlessTerminals: create one or two files

_NUM_TERMINAL_LEVELS: Final = 2


def _terminals_task_spec(index: int) -> dict[str, Any]:
    return {"id": f"task_{index:06d}_{index * 40503 % 65536:04x}"}


def _terminals(task_spec: JSONObject) -> Assignment:
    start, level = divmod(_number(r"task_(\d+)_", task_spec["id"]), _NUM_TERMINAL_LEVELS)
    wanted = {f"/home/user/{_SLOTS[slot]}.txt": _word(start, slot) for slot in range(level + 1)}
    lines = [f"Create the file {path} with the word {word}." for path, word in wanted.items()]
    creates = [("create_file", {"description": _WHY, "path": path, "file_text": word}) for path, word in wanted.items()]
    return Assignment(
        prompt="\n".join([*lines, "Then call submit_answer."]),
        folder="/home/user",
        files={},
        wanted=wanted,
        weights=(1 / len(wanted),) * len(wanted),
        calls=(*creates, ("submit_answer", {})),
    )


# SWE-rebench-V2: a repository with one or two wrong lines

_REPO: Final = "acme/widgets"
_NUM_FAULT_LEVELS: Final = 2
_LANGUAGES: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("python", "py", {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest", "install": "pip install -e ."}),
    ("go", "go", {"test_cmd": "go test -v", "log_parser": "parse_log_gotest", "install": ["go mod tidy", "go build"]}),
    (
        "rust",
        "rs",
        {"test_cmd": ["cargo build", "cargo test"], "log_parser": "parse_log_cargo", "install": "cargo fetch"},
    ),
)


def _swe_task_spec(index: int) -> dict[str, Any]:
    language, suffix, install_config = _LANGUAGES[index % len(_LANGUAGES)]
    faults = _faults(index)
    tests = [f"tests/test_{slot}.{suffix}" for slot in _SLOTS[: len(faults)]]
    return {
        "instance_id": f"acme__widgets-{index}",
        "repo": _REPO,
        "base_commit": f"{index:040d}",
        "test_patch": "".join(f"diff --git a/{test} b/{test}\n+test_word\n" for test in tests),
        "problem_statement": "\n".join(f"In {path} replace {wrong} with {right}." for path, wrong, right in faults),
        "image_name": f"docker.io/example/acme-widgets:{index}",
        "language": language,
        "FAIL_TO_PASS": [f"{test}::test_word" for test in tests],
        "PASS_TO_PASS": [] if language == "go" else [f"{test}::test_name" for test in tests],
        "install_config": {**install_config, "base_image_name": "base"},
    }


def _faults(index: int) -> list[tuple[str, str, str]]:
    """Return path, wrong word and right word of each wrong line."""
    rest, language = divmod(index, len(_LANGUAGES))
    start, level = divmod(rest, _NUM_FAULT_LEVELS)
    suffix = _LANGUAGES[language][1]
    return [(f"/repo/{_SLOTS[slot]}.{suffix}", _word(start, slot), _word(start, slot + 1)) for slot in range(level + 1)]


def _swe(task_spec: JSONObject) -> Assignment:
    faults = _faults(_number(r"acme__widgets-(\d+)$", task_spec["instance_id"]))
    facts = f"Repository: {task_spec['repo']}\nLanguage: {task_spec['language']}\nFolder: /repo"
    edits = [
        ("str_replace", {"path": path, "old_str": wrong, "new_str": right, "description": _WHY})
        for path, wrong, right in faults
    ]
    return Assignment(
        prompt=f"{facts}\n{task_spec['problem_statement']}\nThen call submit_answer.",
        folder="/repo",
        files={path: _source(wrong) for path, wrong, _ in faults},
        wanted={path: _source(right) for path, _, right in faults},
        weights=(1 / len(faults),) * len(faults),
        calls=(*edits, ("submit_answer", {})),
    )


def _source(word: str) -> str:
    return f"name = widgets\nword = {word}\n"


def _number(pattern: str, text: Any) -> int:
    match = re.match(pattern, text)
    if match is None:
        raise ValueError(f"{text!r} does not match {pattern}")
    return int(match[1])


_KINDS: Final[Mapping[str, tuple[Callable[[int], dict[str, Any]], Callable[[JSONObject], Assignment]]]] = {
    "seta": (_seta_task_spec, _seta),
    "endless-terminals": (_terminals_task_spec, _terminals),
    "swe-rebench-v2": (_swe_task_spec, _swe),
}


def make_task_spec(preset_name: str, index: int) -> dict[str, Any]:
    """Return the task spec of an index, with the keys and types that the real environment publishes.

    Args:
        preset_name: Whose replica's task.
        index: From 0; there is no last one.
    """
    return _KINDS[preset_name][0](index)


def make_assignment(preset_name: str, task_spec: JSONObject) -> Assignment:
    """Return what a task asks for.

    Args:
        preset_name: Whose replica's task.
        task_spec: A task spec that `make_task_spec` gave.

    Raises:
        SpecError: It did not.
    """
    try:
        return _KINDS[preset_name][1](task_spec)
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(
            f"{task_spec!r} is no task spec of the replica {preset_name!r} ({error!r}); accepted: what the replica "
            f"gives, as {make_task_spec(preset_name, 0)!r}"
        ) from error
