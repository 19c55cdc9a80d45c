"""The interesting inputs, generated in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from multienv import discounted
from multienv.errors import SessionError
from multienv.specs import RewardSpec
from multienv.types import RESERVED_NAMES, Episode, EpisodeStatus, Step, ToolOutput, ToolRefused, ToolSpec

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
