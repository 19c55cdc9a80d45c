"""What `spec.check()` says about how often environments are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multienv import (
    CurriculumSpec,
    EnvSpec,
    Finding,
    ForeignSpec,
    Limits,
    MultiEnvSpec,
    Schedule,
    Severity,
    Stage,
    TaskRules,
)
from multienv.checks.findings import Code
from tests.support.environments import EchoEnvironment
from tests.support.foreign import GuessEnvironment
from tests.support.training import config

SAMPLING = {Code.CURRICULUM_NEEDS_TRAINER, Code.SAMPLING_CAPPED, Code.SELDOM_SAMPLED}


def mixture(num_other_tasks: int = 2, limits: Limits | None = None, **options: Any) -> dict[str, Any]:
    return {
        "echo": EnvSpec(EchoEnvironment, indices=[0], limits=limits or Limits(), discover_task_tools=False, **options),
        "guess": ForeignSpec(GuessEnvironment, num_tasks=num_other_tasks),
    }


def found(environments: dict[str, Any], args: Any = None, **options: Any) -> list[Finding]:
    with MultiEnvSpec(environments, **options) as spec:
        return [finding for finding in spec.check(args) if finding.code in SAMPLING]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (CurriculumSpec(adaptive=True), "adaptive"),
        (CurriculumSpec(schedule=Schedule(points={0: {"echo": 1.0, "guess": 1.0}})), "schedule"),
        (CurriculumSpec(stages=(Stage(until={"echo": 0.5}), Stage())), "stages"),
    ],
)
def test_what_acts_in_this_librarys_trainer_only_is_said(spec: CurriculumSpec, named: str) -> None:
    (finding,) = found(mixture(), curriculum=spec)
    assert (finding.severity, finding.code) == (Severity.NOTE, Code.CURRICULUM_NEEDS_TRAINER)
    assert f"acting in MultiEnvGRPOTrainer only: {named}." in finding.message


def test_task_rules_act_in_this_librarys_trainer_only() -> None:
    (finding,) = found(mixture(task_rules=TaskRules(gate_after=3)))
    assert "acting in MultiEnvGRPOTrainer only: task_rules." in finding.message
    assert found(mixture()) == []


def test_an_environment_with_less_than_a_group_a_batch_is_told(tmp_path: Path) -> None:
    args = config(tmp_path, per_device_train_batch_size=8, num_generations=2)
    (finding,) = found(mixture(num_other_tasks=19), args, curriculum="proportional")
    assert (finding.environment, finding.code) == ("echo", Code.SELDOM_SAMPLED)
    assert "its share is 0.05 of the mixture: one group every 5.0 batches of 4 groups" in finding.message
    assert found(mixture(num_other_tasks=19), args) == []
    assert found(mixture(num_other_tasks=19), args, curriculum="dataset") == []


def test_the_first_stage_and_the_first_point_of_a_schedule_are_judged(tmp_path: Path) -> None:
    args = config(tmp_path, per_device_train_batch_size=8, num_generations=2)
    late = {"echo": 0.1, "guess": 0.9}
    for spec in (
        CurriculumSpec(schedule=Schedule(points={0: late, 5: {"echo": 1.0}})),
        CurriculumSpec(stages=(Stage(weights=late, until={"echo": 0.5}), Stage())),
    ):
        assert [(f.environment, f.code) for f in found(mixture(), args, curriculum=spec)] == [
            (None, Code.CURRICULUM_NEEDS_TRAINER),
            ("echo", Code.SELDOM_SAMPLED),
        ]


@pytest.mark.parametrize(("max_sessions", "severity"), [(7, Severity.WARNING), (1, Severity.ERROR), (8, None)])
def test_a_share_that_the_sessions_do_not_hold_is_told(max_sessions: int, severity: Any, tmp_path: Path) -> None:
    args = config(tmp_path, per_device_train_batch_size=16, num_generations=2)
    findings = found(mixture(limits=Limits(max_sessions=max_sessions)), args, curriculum="uniform")
    assert [finding.severity for finding in findings] == ([] if severity is None else [severity])
    if severity is Severity.WARNING:
        assert (
            "its share of a batch is 4.0 of 8 groups, and limits.max_sessions=7 holds 3 groups" in findings[0].message
        )
        assert findings[0].fix.startswith("Raise it to 8 or more")


def test_parts_of_a_curriculum_that_train_on_nothing_or_wait_for_nothing_are_told(tmp_path: Path) -> None:
    args = config(tmp_path)
    environments = mixture(evaluation_only=True)
    only, both = {"echo": 1.0}, {"echo": 1.0, "guess": 1.0}
    curricula = {
        "stage 1 trains on 'echo' only": CurriculumSpec(stages=(Stage(until={"guess": 0.5}), Stage(weights=only))),
        "stage 0 trains on 'echo' only": CurriculumSpec(stages=(Stage(weights=only),)),
        "stage 0 waits for 'echo'": CurriculumSpec(stages=(Stage(weights=both, until={"echo": 0.5}), Stage())),
        "step 0 of the schedule trains on 'echo' only": CurriculumSpec(schedule=Schedule(points={0: only})),
    }
    for told, curriculum in curricula.items():
        with MultiEnvSpec(environments, curriculum=curriculum) as spec:
            findings = spec.check(args)
        (finding,) = (one for one in findings if one.code == Code.DECLARATION_WRONG)
        assert finding.message.startswith(f"{told}, of which no task is trained on")
        assert (finding.severity, finding.fix) == (Severity.ERROR, "Name another environment there: guess.")
        assert not [one for one in findings if one.code == Code.CHECK_FAILED]
    for fine in (CurriculumSpec(stages=(Stage(weights=both),)), CurriculumSpec(schedule=Schedule(points={0: both}))):
        with MultiEnvSpec(environments, curriculum=fine) as spec:
            assert not [one for one in spec.check(args) if one.code == Code.DECLARATION_WRONG]
