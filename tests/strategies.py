"""The interesting inputs, generated in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from multienv import discounted
from multienv.curriculum import Entry, Outcome, Pick
from multienv.errors import SessionError
from multienv.manifest import Manifest, PinnedEnvironment, PinnedTask, PinnedTasks
from multienv.specs import Adaptive, CurriculumSpec, RewardSpec, Schedule, Stage, TaskRules
from multienv.types import (
    RESERVED_NAMES,
    Episode,
    EpisodeStatus,
    Step,
    Task,
    ToolOutput,
    ToolRefused,
    ToolSpec,
    task_id,
)

environment_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,11}", fullmatch=True).filter(
    lambda name: name.casefold() not in RESERVED_NAMES
)
mixtures = st.lists(environment_names, min_size=1, max_size=4, unique_by=str.casefold)

step_rewards = st.none() | st.floats(-10, 10) | st.sampled_from([0.0, 1.0])
failures = st.just(SessionError("the session is lost"))
outcomes = st.lists(
    st.builds(ToolOutput, text=st.text(max_size=8), reward=step_rewards, finished=st.sampled_from([False, False, True]))
    | st.builds(ToolRefused, st.just("not_found"), st.text(max_size=8))
    | failures,
    max_size=5,
)


@st.composite
def rollouts(draw: st.DrawFn, max_rows: int = 10) -> tuple[list[str], list[tuple[str, list[Any]]]]:
    """A mixture's names, and a batch of rows: for each the environment's name and its session's outcomes."""
    names = draw(mixtures)
    return names, draw(st.lists(st.tuples(st.sampled_from(names), outcomes), max_size=max_rows))


json_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
task_specs = st.dictionaries(
    st.sampled_from(["target", "level", "prompt", "image", "self", "environment", "a b", "data"]) | st.text(max_size=6),
    json_values,
    max_size=5,
)

nasty_texts = st.text(max_size=40) | st.lists(
    st.sampled_from(
        [
            "Args:",
            "Returns:",
            "Raises:",
            "\n",
            "  ",
            "x:",
            '"""',
            "'",
            "\\",
            "{{",
            "<|im_end|>",
            "(choices: a)",
            "é",
            "\x00",
        ]
    ),
    max_size=8,
).map("".join)
_WORDS = """
    reset get_reward _x __class__ from class self return run-tests submit.answer 1st reward episode environment dict
    locals été cls metadata _call_tool
"""
nasty_names = st.sampled_from([*_WORDS.split(), "", "file path"]) | st.text(min_size=1, max_size=8)

_enums = st.lists(json_scalars, min_size=1, max_size=3).map(lambda values: {"enum": values})
_scalar_schemas: st.SearchStrategy[Any] = _enums | st.sampled_from(
    [{"type": name} for name in ("string", "integer", "number", "boolean", ["string", "null"])] + [{}]
)
_schemas: st.SearchStrategy[Any] = st.recursive(
    _scalar_schemas,
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "object", "additionalProperties": values}),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.just({"$ref": "#/$defs/Node"}),
        st.just({"$ref": "#/nowhere"}),
    ),
    max_leaves=4,
)


_descriptions: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({}, optional={"description": nasty_texts})


@st.composite
def tool_specs(draw: st.DrawFn) -> ToolSpec:
    """A published tool with any names, any descriptions and a schema of the kinds that occur."""
    names = draw(st.lists(nasty_names, max_size=4, unique=True))
    described = {name: draw(_schemas) | draw(_descriptions) for name in names}
    schema = {
        "type": "object",
        "properties": described,
        "required": [name for name in names if draw(st.booleans())],
        "$defs": {"Node": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    }
    return ToolSpec(draw(nasty_names), draw(nasty_texts), draw(st.sampled_from([schema, schema, schema, {}])))


toolsets = st.lists(tool_specs(), max_size=5, unique_by=lambda tool: tool.name)

Shape = tuple[dict[str, Any], st.SearchStrategy[Any]]
"""A schema as environments publish them, and the values it accepts."""

_PARAMETERS = "path from class self return kwargs été a-b $ref 名前 file.path _x args dict type"
_parameter_names = st.sampled_from(_PARAMETERS.split()) | st.text(min_size=1, max_size=6)
_remarks: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"description": st.text(max_size=20), "title": st.text(max_size=8), "default": json_values}
)


@st.composite
def _plain_shapes(draw: st.DrawFn) -> Shape:
    """Strings, numbers, choices: with their bounds."""
    low, more = draw(st.integers(-5, 5)), draw(st.integers(0, 9))
    choices = draw(st.lists(json_values, min_size=1, max_size=3))
    chosen: Shape = draw(
        st.sampled_from(
            [
                ({"type": "string"}, st.text(max_size=8)),
                ({"type": "string", "minLength": 2, "maxLength": 2 + more}, st.text(min_size=2, max_size=2 + more)),
                ({"type": "string", "pattern": "^[a-z]+$"}, st.from_regex("^[a-z]+$", fullmatch=True)),
                ({"type": "integer", "minimum": low, "maximum": low + more}, st.integers(low, low + more)),
                ({"type": "integer", "exclusiveMinimum": low}, st.integers(low + 1)),
                ({"type": "number", "exclusiveMaximum": low}, st.floats(-1e9, low, exclude_max=True)),
                ({"type": "number", "multipleOf": 0.25}, st.integers(-9, 9).map(lambda count: count * 0.25)),
                ({"type": "boolean"}, st.booleans()),
                ({"type": ["string", "null"]}, st.none() | st.text(max_size=3)),
                ({"enum": choices}, st.sampled_from(choices)),
                ({"const": choices[0]}, st.just(choices[0])),
                ({}, json_values),
                ({"$ref": "#/$defs/Node"}, _NODES),
            ]
        )
    )
    return chosen


_NODES: st.SearchStrategy[Any] = st.recursive(
    st.just({"next": None}), lambda inner: st.fixed_dictionaries({"next": inner, "été": st.integers()}), max_leaves=2
)
_NODE: dict[str, Any] = {
    "properties": {
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        "été": {"title": "Été", "type": "integer"},
    },
    "required": ["next"],
    "type": "object",
}


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Shape]) -> Shape:
    """Objects with their keys, and the keys of their schema, in any order."""
    shapes = draw(st.dictionaries(_parameter_names, inner, max_size=3))
    required = draw(st.sets(st.sampled_from(sorted(shapes)))) if shapes else set()
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in shapes.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }
    always = {name: values for name, (_, values) in shapes.items() if name in required}
    values = st.fixed_dictionaries(always, optional={k: v for k, (_, v) in shapes.items() if k not in required})
    return dict(draw(st.permutations(list(schema.items())))), values


def _wider(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    def array(shape: Shape) -> Shape:
        return {"type": "array", "items": shape[0], "minItems": 1}, st.lists(shape[1], min_size=1, max_size=3)

    def mapping(shape: Shape) -> Shape:
        return {"additionalProperties": shape[0], "type": "object"}, st.dictionaries(st.text(max_size=3), shape[1])

    def union(shapes: list[Shape]) -> Shape:
        return {"anyOf": [schema for schema, _ in shapes]}, st.one_of([values for _, values in shapes])

    options = st.lists(inner, min_size=1, max_size=3).map(union)
    return st.one_of(inner.map(array), inner.map(mapping), options, _objects(inner))


_shapes = st.builds(
    lambda shape, remarks: ({**remarks, **shape[0]}, shape[1]),
    st.recursive(_plain_shapes(), _wider, max_leaves=5),
    _remarks,
)


@st.composite
def published_tools(draw: st.DrawFn) -> tuple[ToolSpec, st.SearchStrategy[Any]]:
    """A tool with any name and description, a schema of the kinds that environments publish, and valid arguments."""
    schema, arguments = draw(_objects(_shapes))
    if draw(st.booleans()):
        schema = {"$defs": {"Node": _NODE}, **schema}
    else:
        schema["$defs"] = {"Node": _NODE}
    return ToolSpec(draw(nasty_names), draw(st.text(max_size=40)), schema), arguments


def reports_failure(metadata: dict[str, Any]) -> bool:
    """What the generated rules recognise as an infrastructure failure."""
    return bool(metadata.get("is_broken"))


def _steps(*, finished: bool, max_size: int) -> st.SearchStrategy[list[Step]]:
    metadata = st.sampled_from([None, None, {}, {"note": "fine"}, {"is_broken": True}])
    step = st.builds(
        Step, st.just("answer"), st.just({}), st.just("ok"), step_rewards, metadata, finished=st.just(finished)
    )
    return st.lists(step, min_size=int(finished), max_size=max_size)


@st.composite
def episodes(draw: st.DrawFn, statuses: Sequence[EpisodeStatus] = tuple(EpisodeStatus)) -> Episode:
    """An episode of any status; a finished one may have steps behind its end."""
    status = draw(st.sampled_from(statuses))
    steps = draw(_steps(finished=False, max_size=5))
    if status is EpisodeStatus.FINISHED:
        steps += draw(_steps(finished=True, max_size=1)) + draw(_steps(finished=False, max_size=2))
    return Episode("a", f"a/train/{draw(st.integers(0, 3))}", "session", tuple(steps), status)


_numbers = st.floats(-10, 10)
_outcomes: st.SearchStrategy[Any] = st.just("reduce") | st.none() | _numbers
reward_specs = st.builds(
    RewardSpec,
    reduction=st.sampled_from(["last", "total", "best", "mean", min]) | st.floats(0, 1).map(discounted),
    unfinished=_outcomes,
    truncated=_outcomes,
    unscored=st.none() | _numbers,
    scale=_numbers.filter(bool),
    offset=_numbers,
    clip=st.none() | st.tuples(st.floats(-5, 0), st.floats(1, 5)),
    step_penalty=st.sampled_from([0.0, 0.1, 1.0]),
    success_threshold=st.none() | _numbers,
    is_failure=st.sampled_from([None, reports_failure]),
)

_long_texts = st.integers(1_900, 2_100).map(lambda length: "ab\n" * (length // 3) + "c" * (length % 3))
texts = st.text(max_size=20) | _long_texts | st.text(st.characters(), max_size=4)  # lone surrogates included
rewards = st.none() | st.floats(allow_nan=False)
metadata = st.none() | st.dictionaries(st.text(max_size=6), json_values, max_size=3)
_seconds = st.floats(0, 1e6)

recorded_steps = st.builds(
    Step,
    tool=texts,
    arguments=st.dictionaries(st.text(max_size=6), json_values | texts, max_size=3),
    text=texts,
    reward=rewards,
    metadata=metadata,
    finished=st.booleans(),
    refused=st.booleans(),
    duration_s=_seconds,
    lost=st.booleans(),
    terminal=st.booleans(),
)
_messages = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["assistant", "tool"]), texts
)
recorded_episodes = st.builds(
    Episode,
    environment=environment_names,
    task_id=texts,
    session_id=st.none() | st.text(max_size=8),
    steps=st.lists(recorded_steps, max_size=3).map(tuple),
    status=st.sampled_from(EpisodeStatus),
    reason=texts,
    open_s=_seconds,
    error=st.sampled_from(["", "SessionError"]),
    started_at=_seconds,
    num_retries=st.integers(0, 3),
    num_late_calls=st.integers(0, 3),
    completion=st.lists(_messages, max_size=3).map(tuple),
    training_step=st.integers(0, 10_000),
    is_evaluation=st.booleans(),
    rank=st.just(0),
    group=st.none() | st.integers(0, 100),
    reward=rewards,
    num_completion_tokens=st.integers(0, 10_000),
)

_own_names = st.text(min_size=1, max_size=4) | st.integers(0, 9)
_identities = st.dictionaries(
    st.sampled_from(["id", "task_id", "instance_id", "name", "target"]), _own_names, max_size=3
)


@st.composite
def catalogues(draw: st.DrawFn) -> list[Task]:
    """The chosen tasks of a split, in any order, some more than once; most with names of their own."""
    indices = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True))
    specs = {index: draw(_identities | json_scalars) for index in indices}
    chosen = indices + draw(st.lists(st.sampled_from(indices), max_size=2))
    return [Task(index, specs[index]) for index in chosen]


contents = st.dictionaries(
    st.integers(0, 9).map(lambda index: f"train/{index}"), st.sampled_from("abcdefgh"), max_size=8
)
"""From places to contents, some of which are there more than once."""


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """What may be written down of a run."""

    def tasks(name: str) -> PinnedTasks | None:
        split, indices = draw(st.text(min_size=1, max_size=5)), draw(st.none() | st.lists(st.integers(0), max_size=3))
        if indices is None:
            return None
        pinned = (
            PinnedTask(index=i, task_id=task_id(name, split, i), sha256=draw(st.text(max_size=3))) for i in indices
        )
        return PinnedTasks(split=split, tasks=tuple(pinned))

    return Manifest(
        environments={
            name: PinnedEnvironment(target=draw(st.text(max_size=5)), training=tasks(name), evaluation=tasks(name))
            for name in draw(mixtures)
        }
    )


positive_weights = st.sampled_from([1e-9, 0.001, 0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 7.0, 100.0]) | st.floats(1e-3, 1e3)
extreme_weights = positive_weights | st.floats(5e-324, 1.7e308) | st.sampled_from([5e-324, 1e-300, 1e300, 1.7e308])


@st.composite
def shares(
    draw: st.DrawFn, max_size: int = 40, weights: st.SearchStrategy[float] = positive_weights
) -> dict[str, float]:
    """Weights of environments, none of them 0."""
    drawn = draw(st.lists(weights, min_size=1, max_size=max_size))
    return {f"e{place}": weight for place, weight in enumerate(drawn)}


def _some_weights(names: Sequence[str]) -> st.SearchStrategy[dict[str, float]]:
    """Weights of some environments, not all 0."""
    weights = st.just(0.0) | positive_weights
    return st.dictionaries(st.sampled_from(names), weights, min_size=1).filter(lambda drawn: any(drawn.values()))


@st.composite
def _stages(draw: st.DrawFn, names: Sequence[str]) -> tuple[Stage, ...]:
    """Up to three stages that end soon where their environments succeed."""
    num = draw(st.integers(1, 3))
    goals = st.floats(0.01, 1)
    horizons = st.dictionaries(st.sampled_from(names), st.integers(1, 9))
    made = []
    for place in range(num):
        weights = draw(st.just({}) | _some_weights(names))
        can_end = [name for name in names if not weights or weights.get(name)]
        until = draw(st.dictionaries(st.sampled_from(can_end), goals, min_size=1)) if place < num - 1 else {}
        groups = draw(st.integers(1, 3))
        made.append(Stage(weights=weights, until=until, min_groups=groups, max_tool_calls=draw(horizons)))
    return tuple(made)


adaptives = st.builds(
    Adaptive,
    smoothing=st.floats(0.01, 1),
    temperature=st.floats(0.01, 10),
    floor=st.floats(0.01, 0.99),
    max_change=st.floats(0.001, 1),
    max_compensation=st.floats(1, 5),
)


@st.composite
def curriculum_specs(draw: st.DrawFn, names: Sequence[str]) -> CurriculumSpec:
    """Any declaration that the curriculum itself follows."""
    points = st.dictionaries(st.integers(0, 12), _some_weights(names), min_size=1, max_size=4)
    schedules = st.builds(Schedule, points=points, interpolation=st.sampled_from(["piecewise", "linear"]))
    over_time: dict[str, Any] = draw(
        st.just({}) | schedules.map(lambda made: {"schedule": made}) | _stages(names).map(lambda made: {"stages": made})
    )
    return CurriculumSpec(
        mixture=draw(st.sampled_from(["weights", "uniform", "proportional", "temperature"])),
        alpha=draw(st.floats(0, 1)),
        adaptive=draw(st.none() | adaptives),
        seed=draw(st.none() | st.integers(0, 9)),
        **over_time,
    )


task_rules = st.just(TaskRules()) | st.builds(
    TaskRules,
    solved_at=st.none() | st.floats(0.6, 1),
    hopeless_at=st.none() | st.floats(0, 0.5),
    gate_after=st.none() | st.integers(1, 3),
    gate_passes=st.integers(1, 3),
    set_aside_after=st.none() | st.integers(2, 3),
)


@st.composite
def entries(draw: st.DrawFn, names: Sequence[str]) -> list[Entry]:
    """What a curriculum knows of environments of these names; their caps hold any batch of up to eight groups."""
    made = []
    for name in names:
        num = draw(st.integers(1, 6))
        ids = draw(st.just(()) | st.just(tuple(f"{name}/train/{place}" for place in range(num))))
        made.append(
            Entry(
                name,
                num,
                draw(positive_weights),
                draw(task_rules),
                draw(st.just(()) | st.lists(st.none() | st.floats(0, 1), min_size=num, max_size=num)),
                ids,
                draw(st.none() | st.integers(8, 12) | st.integers(1, 4)) if name != names[0] else None,
            )
        )
    return made


@st.composite
def group_outcomes(draw: st.DrawFn, pick: Pick) -> Outcome:
    """Any outcome of a group of four."""
    num_scored = draw(st.sampled_from([4, 4, 4, 0, 2]))
    num_refused = draw(st.integers(0, 4 - num_scored)) if num_scored < 4 else 0
    sizes = st.floats(0, 8) | st.sampled_from([float("nan"), float("inf")])
    return Outcome(
        pick.environment,
        pick.task,
        num_rollouts=4,
        num_finished=num_scored,
        num_failed=4 - num_scored - num_refused,
        num_refused=num_refused,
        num_scored=num_scored,
        num_successes=draw(st.integers(0, num_scored)),
        num_nonzero=draw(st.sampled_from([0, num_scored])),
        sum_abs_advantage=draw(sizes),
        num_tokens=draw(st.integers(0, 99)),
    )
