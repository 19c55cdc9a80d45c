"""What may be declared of a mixture over time, and what is said where it cannot be right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.errors import SpecError
from multienv.specs import Adaptive, CurriculumSpec, EnvSpec, Schedule, Stage, declare_curriculum
from multienv.specs.curriculum import PRESETS
from tests.strategies import curriculum_specs

NAN, INF, HUGE = float("nan"), float("inf"), 10**400
ONE = {"a": 1.0}


def made(declaration: Any, **options: Any) -> Any:
    """Declare what the types would not let through."""
    return declaration(**options)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Schedule(points={}), "Schedule: points={}; accepted: a mapping such as {0: {"),
    (lambda: Schedule(points=[ONE]), "points=[{'a': 1.0}]; accepted: a mapping"),
    (lambda: Schedule(points={0: ONE, 5: {}}), "the weights at step 5 are empty; name at least one environment"),
    (lambda: Schedule(points={0: {}}), "the weights at step 0 are empty"),
    (lambda: Schedule(points={0: 3}), 'the weights at step 0 are of type int; accepted: a mapping such as {"seta"'),
    (lambda: Schedule(points={0: {"a": 0, "b": 0}}), "the weights at step 0 are all 0; at least one environment must"),
    (lambda: Schedule(points={0: {"a": -1}}), "at step 0: that of 'a' is -1; accepted: a finite number from 0"),
    (lambda: Schedule(points={0: {"a": NAN}}), "that of 'a' is nan; accepted"),
    (lambda: Schedule(points={0: {"a": INF}}), "that of 'a' is inf; accepted"),
    (lambda: Schedule(points={0: {"a": HUGE}}), "that of 'a' is 1000000000"),
    (lambda: Schedule(points={0: {"a": True}}), "that of 'a' is True; accepted"),
    (lambda: Schedule(points={0: {"a": "2"}}), "that of 'a' is '2'; accepted"),
    (lambda: Schedule(points={-1: ONE}), "points has the step -1; accepted: whole numbers from 0"),
    (lambda: Schedule(points={"0.5": ONE}), "points has the step '0.5'; accepted: whole numbers from 0"),
    (lambda: Schedule(points={"-1": ONE}), "points has the step '-1'; accepted: whole numbers from 0"),
    (lambda: Schedule(points={True: ONE}), "points has the step True; accepted: whole numbers from 0"),
    (lambda: Schedule(points={0.5: ONE}), "points has the step 0.5; accepted: whole numbers from 0"),
    (lambda: made(Schedule), "Schedule: points is missing; it has no default"),
    (
        lambda: made(Schedule, point={0: ONE}),
        "unknown option 'point' (did you mean 'points'?); accepted: interpolation, poi",
    ),
    (lambda: Schedule(points={0: ONE}, interpolation="cubic"), "interpolation='cubic': input should be 'piecewise' or"),
    (lambda: Stage(weights=[1]), "Stage: weights are of type list; accepted: a mapping such as"),
    (lambda: Stage(weights={"a": 0}), "weights are all 0; at least one environment must be trained on"),
    (lambda: Stage(weights={"a": 1, "b": 0}, until={"b": 0.5}), "until waits for 'b', which the stage does not train"),
    (lambda: Stage(weights=ONE, until={"b": 0.5, "c": 0.5}), "until waits for 'b', 'c', which the stage does not"),
    (lambda: Stage(until={"a": 0.0}), "until.a=0.0: input should be greater than 0"),
    (lambda: Stage(until={"a": 80}), "until.a=80: input should be less than or equal to 1"),
    (lambda: Stage(until={"a": NAN}), "until.a=nan: input should be"),
    (lambda: Stage(min_groups=0), "min_groups=0: input should be greater than or equal to 1"),
    (lambda: Stage(min_groups=True), "min_groups=True: input should be a valid integer"),
    (lambda: Stage(max_tool_calls={"a": 0}), "max_tool_calls.a=0: input should be greater than or equal to 1"),
    (
        lambda: made(Stage, max_tool_call={"a": 1}),
        "unknown option 'max_tool_call' (did you mean 'max_tool_calls'?); accepted",
    ),
    (lambda: Adaptive(smoothing=0), "Adaptive: smoothing=0: input should be greater than 0"),
    (lambda: Adaptive(smoothing=NAN), "smoothing=nan: input should be"),
    (lambda: Adaptive(temperature=0), "temperature=0: input should be greater than 0"),
    (lambda: Adaptive(temperature=INF), "temperature=inf: input should be a finite number"),
    (lambda: Adaptive(floor=1), "floor=1: input should be less than 1"),
    (lambda: Adaptive(max_change=1.5), "max_change=1.5: input should be less than or equal to 1"),
    (lambda: Adaptive(max_compensation=0.5), "max_compensation=0.5: input should be greater than or equal to 1"),
    (lambda: Adaptive(max_compensation=True), "max_compensation=True: input should be a valid number"),
    (lambda: Adaptive(max_compensation="3"), "max_compensation='3': input should be a valid number"),
    (lambda: made(Adaptive, flor=0.2), "unknown option 'flor' (did you mean 'floor'?); accepted: floor, max_change"),
    (
        lambda: CurriculumSpec(mixture="wieghts"),
        "mixture='wieghts' (did you mean 'weights'?); accepted: 'weights', 'un",
    ),
    (lambda: CurriculumSpec(mixture="adaptive"), "mixture='adaptive' (did you mean adaptive=True?); accepted: 'weigh"),
    (lambda: CurriculumSpec(mixture=None), "mixture=None; accepted: 'weights', 'uniform'"),
    (lambda: CurriculumSpec(alpha=2), "alpha=2: input should be less than or equal to 1"),
    (lambda: CurriculumSpec(seed=-1), "seed=-1: input should be greater than or equal to 0"),
    (lambda: CurriculumSpec(seed=True), "seed=True: input should be a valid integer"),
    (lambda: CurriculumSpec(adaptive="yes"), "adaptive='yes': input should be a valid dictionary or instance of Adap"),
    (lambda: CurriculumSpec(adaptive={"floor": 2}), "Adaptive: floor=2: input should be less than 1"),
    (lambda: CurriculumSpec(schedule=3), "schedule=3: input should be a valid dictionary or instance of Schedule"),
    (
        lambda: CurriculumSpec(schedule={0: ONE}),
        "CurriculumSpec: Schedule is given as a mapping with the key 0; accepted: its options by name",
    ),
    (lambda: CurriculumSpec(stages=[{0: ONE}]), "Stage is given as a mapping with the key 0; accepted: its options"),
    (
        lambda: EnvSpec("http://localhost", task_rules={1: 2}),
        "EnvSpec: TaskRules is given as a mapping with the key 1; accepted: its options by name (expected_by_label, ",
    ),
    (lambda: CurriculumSpec(stages=Stage()), "stages is of type Stage; accepted: a list such as [Stage(until=...), St"),
    (lambda: CurriculumSpec(stages=[3]), "stages.0=3: input should be a valid dictionary or instance of Stage"),
    (
        lambda: CurriculumSpec(stages=[Stage(), Stage()]),
        "stage 0 of 2 has no until; every stage but the last needs one",
    ),
    (
        lambda: CurriculumSpec(stages=[Stage(until={"a": 1})]),
        "stage 0 of 1 has an until; every stage but the last need",
    ),
    (
        lambda: CurriculumSpec(schedule=Schedule(points={0: ONE}), stages=[Stage()]),
        "schedule and stages exclude each other: one follows the step, the other success",
    ),
    (
        lambda: CurriculumSpec(mixture="dataset", adaptive=True),
        "mixture='dataset' leaves the rows to TRL; schedule, stages and adaptive need another one",
    ),
    (
        lambda: made(CurriculumSpec, schedul=3),
        "unknown option 'schedul' (did you mean 'schedule'?); accepted: adaptive, alpha",
    ),
    (
        lambda: EnvSpec("http://localhost", sampling_weight=0),
        "sampling_weight=0; accepted: a finite number above 0, or",
    ),
    (lambda: EnvSpec("http://localhost", sampling_weight=HUGE), "sampling_weight=10000"),
    (
        lambda: EnvSpec("http://localhost", sampling_weight=NAN),
        "sampling_weight=nan; accepted: a finite number above 0",
    ),
    (lambda: declare_curriculum("adaptve", ["a"]), "curriculum='adaptve' (did you mean 'adaptive'?); accepted: 'weigh"),
    (lambda: declare_curriculum("", ["a"]), "curriculum=''; accepted: 'weights', 'uniform', 'proportional'"),
    (
        lambda: declare_curriculum({"a": 1}, ["a"]),
        "curriculum is of type dict; accepted: a CurriculumSpec, or one of 'w",
    ),
    (lambda: declare_curriculum(Stage(), ["a"]), "curriculum is of type Stage; accepted: a CurriculumSpec"),
]


@pytest.mark.parametrize(("declare", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_what_cannot_be_right_is_said(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        declare()
    assert said in str(raised.value)
    assert len(str(raised.value)) < 400, "and at no length that hides it"


@pytest.mark.parametrize(
    "spec",
    [
        CurriculumSpec(schedule=Schedule(points={0: ONE, 9: {"sta": 1.0}})),
        CurriculumSpec(stages=[Stage(weights={"sta": 1.0})]),
        CurriculumSpec(stages=[Stage(until={"sta": 0.5}), Stage()]),
        CurriculumSpec(stages=[Stage(max_tool_calls={"sta": 2})]),
    ],
)
def test_an_environment_that_there_is_not_is_named_with_the_nearest_one(spec: CurriculumSpec) -> None:
    said = (
        "the curriculum names 'sta' (did you mean 'seta'?), which the mixture does not have; its environments: a, seta"
    )
    with pytest.raises(SpecError) as raised:
        declare_curriculum(spec, ["a", "seta"])
    assert said in str(raised.value)
    assert declare_curriculum(spec, ["a", "sta"]) is spec


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_declaration(preset: str) -> None:
    declared = declare_curriculum(preset, ["a"])
    assert declared == (CurriculumSpec(adaptive=True) if preset == "adaptive" else CurriculumSpec(mixture=preset))
    assert declared is not None
    assert declared.is_left_to_trl is (preset == "dataset")


def test_nothing_declared_is_nothing() -> None:
    assert declare_curriculum(None, ["a"]) is None


def test_true_is_the_adaptive_mixture_with_its_defaults_and_false_is_none() -> None:
    assert CurriculumSpec(adaptive=True).adaptive == Adaptive()
    assert CurriculumSpec(adaptive=False).adaptive is None
    assert CurriculumSpec(adaptive={"floor": 0.5}).adaptive == Adaptive(floor=0.5)


def test_points_are_kept_in_the_order_of_their_steps() -> None:
    assert list(Schedule(points={100: ONE, 0: ONE, 7: ONE}).points) == [0, 7, 100]


@given(curriculum_specs(["a", "b", "c"]))
def test_a_declaration_survives_a_round_through_plain_data(spec: CurriculumSpec) -> None:
    assert CurriculumSpec(**spec.model_dump()) == spec
    assert CurriculumSpec(**json.loads(spec.model_dump_json())) == spec
    assert CurriculumSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.named <= {"a", "b", "c"}


@given(st.sampled_from(["mixture", "alpha", "seed", "stages", "adaptive", "schedule"]))
def test_a_declaration_cannot_be_changed(option: str) -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(CurriculumSpec(), option, None)
