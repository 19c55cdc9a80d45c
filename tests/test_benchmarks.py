from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PATIENCE_S = 120.0


def evaluated(module: str, expression: str) -> Any:
    """Evaluate an expression in a benchmark's module, in a process of its own, where its figures are taken."""
    code = f"import dataclasses, json, {module}\nprint(json.dumps({module}.{expression}, default=dataclasses.asdict))"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def test_a_dataset_takes_few_requests_per_environment_however_many_tasks_it_has() -> None:
    theirs, whole, ours, every = evaluated("dataset", "measure(num_tasks=20, num_repeats=1)")
    assert [theirs["num_rows"], whole["num_rows"], ours["num_rows"], every["num_rows"]] == [20, 20, 20, 60]
    assert max(ours["num_requests"], every["num_requests"]) <= 10 < theirs["num_requests"]
    assert len(every["durations_s"]) == len(ours["durations_s"]) > len(theirs["durations_s"]) == 1


def test_tool_calls_and_episodes_are_measured_on_both_sides_equally_often() -> None:
    for times in evaluated("tool_call", "measure(num_episodes=2, num_calls=3)"):
        assert len(times["call_s"]) == 6
        assert len(times["episode_s"]) == 2


def test_rollouts_are_the_same_with_both_trainers() -> None:
    theirs, ours = evaluated("rollouts", "measure(4, 0.05, 0.05)")
    assert theirs["rewards"] == ours["rewards"] == {"server0": 1.0, "server1": 1.0}
    assert min(theirs["duration_s"], ours["duration_s"]) > 0


def test_asynchronous_rollouts_are_the_same_with_both_loops() -> None:
    theirs, ours = evaluated("async_rollouts", "measure(4, 0.0, 0.0)")
    assert theirs["rewards"] == ours["rewards"] == {"1": 8}


def test_sessions_and_slow_environments_are_measured() -> None:
    assert len(evaluated("sessions", "run((2, 3))")["rows"]) == 4
    assert len(evaluated("slow_environment", "run(0.01, 2, 1)")["rows"]) == 3


def test_the_cost_of_a_curriculum_is_measured_for_every_case() -> None:
    rows = evaluated("curriculum_cost", "run((2, 3), 10, ())")["rows"]
    assert [row["what"].split(",")[0] for row in rows] == ["2 environments"] * 2 + ["3 environments"] * 3
    assert all(row["duration_s"] > 0 for row in rows)


def test_the_memory_of_a_curriculum_does_not_grow_with_its_batches() -> None:
    first, second = evaluated("curriculum_cost", "memory((100, 300), 3_000)").values()
    assert second - first < 0.1  # MiB; as plans or outcomes, 200 batches of 64 groups are more


def test_a_run_that_never_gets_there_counts_as_the_longest() -> None:
    report = evaluated("curricula", "run(2, 30, ['unequal task counts'])")
    (row,) = report["reached"].values()
    assert row["proportional"]["batches"] == [None, None]
    shown = [
        evaluated("curricula", f"Reached({batches}).in_words()")
        for batches in ("[None, None]", "[10, 20, 30]", "[10, None, None]")
    ]
    assert shown == ["never", "20 (10-30)", "never (10-never), 2 never"]


def test_the_same_prompts_are_rendered_with_every_trainer_and_exact_schemas_are_exact() -> None:
    times = evaluated("rendering", "measure(num_prompts=12, batch_size=6, num_repeats=2)")  # raises where they are not
    assert {what: len(taken) for what, taken in times["rendering_s"].items()} == dict.fromkeys(times["num_tokens"], 2)
    theirs, methods, exact = times["num_tokens"].values()
    assert exact > max(theirs, methods)  # neither binding can say all that is published
    assert min(times["toolbox_s"], times["check_s"]) > 0


def test_every_statement_is_timed_as_often_as_the_bare_interpreter() -> None:
    times = evaluated("import_time", "measure(['pass', 'import multienv'], num_repeats=2)")
    assert {statement: len(taken) for statement, taken in times.items()} == {"pass": 2, "import multienv": 2}


@pytest.mark.parametrize("statement", ["import multienv", "from multienv import EnvSpec, MultiEnvSpec"])
def test_importing_the_library_loads_no_heavy_package(statement: str) -> None:
    assert evaluated("import_time", f"heavy_modules({statement!r})") == []


def test_a_benchmark_that_cannot_run_fails_the_whole_and_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    run_all = importlib.import_module("run_all")
    report = importlib.import_module("report")

    def breaks() -> Any:
        raise ConnectionError("no server")

    def runs() -> Any:
        return report.Report("A benchmark", [report.Row("a thing", 0.002, 0.001)], "twice as slow")

    assert run_all.main(benchmarks={"breaks": breaks, "runs": runs}) == 1
    shown = capsys.readouterr()
    assert "no server" in shown.err
    assert "could not run" in shown.out
    assert "twice as slow" in shown.out
    assert run_all.main(benchmarks={"runs": runs}) == 0
    assert run_all.main(["nothing"]) == 2


def test_an_evaluation_makes_the_same_attempts_at_once_and_one_after_the_other() -> None:
    found = evaluated("evaluation", "run(num_tasks=2, latency_s=0.01)")
    assert [row["what"] for row in found["rows"]][1] == "the same at once"
    assert all(row["duration_s"] > 0 for row in found["rows"])
