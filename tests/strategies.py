"""The interesting inputs, generated in one place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from multienv.errors import SessionError
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

_long_texts = st.integers(1_900, 2_100).map(lambda length: "ab\n" * (length // 3) + "c" * (length % 3))
texts = st.text(max_size=20) | _long_texts | st.text(st.characters(), max_size=4)  # lone surrogates included
rewards = st.none() | st.floats(allow_nan=False)
metadata = st.none() | st.dictionaries(st.text(max_size=6), json_values, max_size=3)
_seconds = st.floats(0, 1e6)

steps = st.builds(
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
episodes = st.builds(
    Episode,
    environment=environment_names,
    task_id=texts,
    session_id=st.none() | st.text(max_size=8),
    steps=st.lists(steps, max_size=3).map(tuple),
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
