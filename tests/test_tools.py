from __future__ import annotations

import inspect
import keyword
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from multienv.router import Route, make_factory
from multienv.router.adapter import RESERVED_MEMBERS, EnvironmentAdapter
from multienv.router.arguments import ArgumentCheck
from multienv.router.naming import python_names
from multienv.router.schema import python_type
from multienv.router.tools import bind_tools
from multienv.types import ToolListing, ToolOutput, ToolSpec
from tests.strategies import json_scalars, nasty_names, toolsets
from tests.support.fakes import ScriptedSession, ready, said


def trl_tools(adapter: EnvironmentAdapter) -> dict[str, Any]:
    """The tools TRL collects from an environment."""
    members = inspect.getmembers(type(adapter), predicate=inspect.isfunction)
    return {
        name: getattr(adapter, name)
        for name, _ in members
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }


@settings(max_examples=150)
@given(toolsets, st.data())
def test_every_tool_is_bound_with_its_parameters_and_sends_exactly_what_is_given(
    tools: list[ToolSpec], data: st.DataObject
) -> None:
    session = ScriptedSession(iter(()))
    factory = make_factory(Route("env", "train", ToolListing(tuple(tools)), lambda _: ready(session)))
    adapter = factory()
    adapter.reset(task_index=0)
    methods = trl_tools(adapter)
    bound = bind_tools(tools, taken=RESERVED_MEMBERS)
    assert sorted(methods) == sorted(tool.name for tool in bound), "no tool is lost, no other method is public"
    for name, member in vars(EnvironmentAdapter).items():
        if inspect.isfunction(member) or isinstance(member, property):
            assert getattr(factory, name) is member, "no adapter member is overridden"
    for tool in bound:
        schema = get_json_schema(methods[tool.name])["function"]
        properties = tool.spec.input_schema.get("properties", {})
        assert schema["name"] == tool.name == methods[tool.name].__name__
        assert list(schema["parameters"]["properties"]) == [tool.parameters[name] for name in properties]
        required = [tool.parameters[name] for name in properties if name in tool.spec.input_schema["required"]]
        assert schema["parameters"].get("required", []) == required
        given_names = [name for name in properties if data.draw(st.booleans())]
        arguments = {name: data.draw(json_scalars) for name in given_names}
        num_sent = len(session.calls)
        text = said(methods[tool.name], **{tool.parameters[name]: value for name, value in arguments.items()})
        check = ArgumentCheck(tool.spec.input_schema)
        arguments = check.without_empty(arguments)
        if complaint := check.complaint(arguments):
            assert (text, len(session.calls)) == (complaint, num_sent)
        else:
            assert session.calls[num_sent:] == [(tool.spec.name, arguments)]


_NULLABLE: dict[str, Any] = {"anyOf": [{"type": "number"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("radius", "required", "expected"),
    [
        ({"type": "number"}, [], {"x": 1}),
        ({"$ref": "#/$defs/Length"}, [], {"x": 1}),
        (_NULLABLE, [], {"x": 1, "radius": None}),
        ({}, [], {"x": 1, "radius": None}),
        ({"type": "number"}, ["radius"], "argument 'radius': null is not accepted; accepted: a number"),
    ],
)
def test_a_method_leaves_out_a_null_that_only_stands_for_nothing(
    radius: dict[str, Any], required: list[str], expected: Any
) -> None:
    schema = {
        "properties": {"x": {"type": "integer"}, "radius": radius},
        "required": ["x", *required],
        "$defs": {"Length": {"type": "number"}},
    }
    session = ScriptedSession(iter(()))
    listing = ToolListing((ToolSpec("draw", "Draw.", schema),))
    adapter: Any = make_factory(Route("env", "train", listing, lambda _: ready(session)))()
    adapter.reset(task_index=0)
    text = said(adapter.draw, x=1, radius=None)
    if isinstance(expected, str):
        assert (text, session.calls) == (expected, [])
    else:
        assert session.calls == [("draw", expected)]
    if not required:
        adapter.draw(x=2, radius=0.5)
        assert session.calls[-1] == ("draw", {"x": 2, "radius": 0.5})


@pytest.mark.parametrize("name", ["Args", "Returns", "Raises", "myArgs"])
def test_a_parameter_named_as_a_section_of_docstrings_is_shown_under_another_name(name: str) -> None:
    tool = ToolSpec("t", "d", {"properties": {"a": {"type": "integer"}, name: {"type": "integer"}}, "required": []})
    shown = get_json_schema(bind_tools([tool], taken=())[0].method)["function"]
    assert list(shown["parameters"]["properties"]) == ["a", f"{name}_"]


def test_what_a_call_lacks_besides_is_still_told_where_a_null_is_left_out() -> None:
    schema = {"properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x"], "minProperties": 2}
    session = ScriptedSession(iter(()))
    listing = ToolListing((ToolSpec("draw", "Draw.", schema),))
    adapter: Any = make_factory(Route("env", "train", listing, lambda _: ready(session)))()
    adapter.reset(task_index=0)
    assert "argument 'x': null is not accepted" in said(adapter.draw, x=None, y=None)
    assert "at least 2 entries" in said(adapter.draw, x=1, y=None)


@given(st.lists(nasty_names, unique=True, max_size=8), st.sets(st.sampled_from(["reset", "self", "reward"])))
def test_names_are_distinct_identifiers_and_free_ones_stay(published: list[str], taken: set[str]) -> None:
    names = python_names(published, taken=taken, suffix="_tool")
    assert list(names) == published
    assert len(set(names.values())) == len(published)
    for name, shown in names.items():
        assert shown.isidentifier()
        assert not keyword.iskeyword(shown)
        assert not shown.startswith("_")
        assert shown not in taken
        if name.isidentifier() and not keyword.iskeyword(name) and name not in taken and not name.startswith("_"):
            assert shown == name


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, str),
        ({"type": "integer", "minimum": 1}, int),
        ({"enum": ["a", "b"]}, Literal["a", "b"]),
        ({"const": 3}, Literal[3]),
        ({"type": "array", "items": {"type": "number"}}, list[float]),
        ({"type": "array"}, list),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, dict[str, int]),
        ({"type": "object", "properties": {"x": {}}}, dict),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, str | None),
        ({"type": ["integer", "string"]}, int | str),
        ({"allOf": [{"$ref": "#/$defs/Color"}]}, Literal["red"]),
        ({"$ref": "#/$defs/Color"}, Literal["red"]),
        ({}, Any),
        (True, Any),
    ],
)
def test_a_schema_becomes_the_type_that_carries_most_of_it(schema: Any, expected: Any) -> None:
    assert python_type(schema, {"$defs": {"Color": {"enum": ["red"]}}}) == expected


def test_a_recursive_schema_ends() -> None:
    root = {"$defs": {"Node": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
    get_json_schema(
        bind_tools([ToolSpec("t", "d", {**root, "properties": {"n": {"$ref": "#/$defs/Node"}}})], taken=())[0].method
    )


def test_descriptions_reach_the_policy() -> None:
    tool = ToolSpec(
        "say",
        "Say a word.\n\nArgs:\n    text: The word.\n\nReturns:\n    Nothing.",
        {"properties": {"text": {"type": "string", "description": "The word:\n  any (choices: one, two)"}}},
    )
    shown = get_json_schema(bind_tools([tool], taken=())[0].method)["function"]
    assert shown["description"] == "Say a word.\n\nArguments:\n    text: The word.\n\nResult:\n    Nothing."
    assert shown["parameters"]["properties"]["text"]["description"] == "The word: any (options: one, two)"


def test_the_policys_own_mistakes_come_back_as_text() -> None:
    session = ScriptedSession(iter([ToolOutput("ok", 0.5)]))
    tool = ToolSpec("say", "Say.", {"properties": {"x": {"type": "number"}}})
    adapter = make_factory(Route("env", "train", ToolListing((tool,)), lambda _: ready(session)))()
    adapter.reset(task_index=0)
    assert said(adapter.say, x=float("nan")).startswith("the arguments are not valid JSON")  # type: ignore[attr-defined]  # the tool
    assert session.calls == []
    assert adapter.say(x=1.0) == "ok"  # type: ignore[attr-defined]  # the tool
    assert (adapter.rewards, adapter.reward) == ([None, 0.5], 0.5)
    assert [step.refused for step in adapter.episode.steps] == [True, False]
