"""Arguments that a schema accepts go out; for others the policy is told which one is wrong and what is accepted."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from multienv.router.arguments import ArgumentCheck
from tests.strategies import json_values, tool_specs

# The kinds of schemas that environments publish.
EDIT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "title": "Path"},
        "mode": {"enum": ["a", "b"], "default": "a"},
        "count": {"type": "integer", "minimum": 1, "maximum": 10},
        "share": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.25},
        "edits": {"type": "array", "items": {"$ref": "#/$defs/Edit"}, "minItems": 1, "maxItems": 3},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}], "default": None},
        "lines": {
            "anyOf": [
                {"type": "array", "prefixItems": [{"type": "integer"}] * 2, "minItems": 2, "maxItems": 2},
                {"type": "null"},
            ]
        },
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "labels": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "flags": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {
        "Edit": {
            "type": "object",
            "properties": {"old_string": {"type": "string"}, "new_string": {"type": "string"}},
            "required": ["old_string", "new_string"],
            "additionalProperties": False,
        }
    },
}
SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "shape": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
                    "required": ["kind", "radius"],
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
                    "required": ["kind", "side"],
                },
            ]
        }
    },
    "required": ["shape"],
}
TREE: dict[str, Any] = {
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "$defs": {"Node": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
}
PUBLISHED = [{}, EDIT, SHAPE, {"type": "object", "properties": {}, "additionalProperties": False}]


def instances(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    """Values that a schema accepts, as far as the schemas of these tests go."""
    if "$ref" in schema:
        return instances(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return st.one_of([instances(option, root) for option in schema[union]])
    return _TYPED[schema.get("type", "object")](schema, root)


def _strings(schema: Any, _root: Any) -> st.SearchStrategy[Any]:
    pattern = schema.get("pattern")
    return st.from_regex(pattern, fullmatch=True) if pattern else st.text(max_size=schema.get("maxLength"))


def _lists(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(instances(item, root) for item in schema["prefixItems"])).map(list)
    unique = repr if schema.get("uniqueItems") else None
    sizes = {"min_size": schema.get("minItems", 0), "max_size": schema.get("maxItems", 4)}
    return st.lists(instances(schema["items"], root), **sizes, unique_by=unique)


def _objects(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    known = {name: instances(value, root) for name, value in schema.get("properties", {}).items()}
    required = {name: known.pop(name) for name in schema.get("required", ())}
    others = schema.get("additionalProperties", {})
    values = json_values if others == {} else instances(others, root) if others else st.nothing()
    names = st.text(max_size=4).filter(lambda name: name not in {*known, *required})
    more = st.dictionaries(names, values, max_size=2) if others is not False else st.just({})
    return st.builds(dict.__or__, more, st.fixed_dictionaries(required, optional=known))


_TYPED: dict[str, Callable[[Any, Any], st.SearchStrategy[Any]]] = {
    "string": _strings,
    "integer": lambda schema, _: st.integers(schema.get("minimum"), schema.get("maximum")),
    "number": lambda schema, _: st.integers(1, 99).map(lambda count: count * schema.get("multipleOf", 0.5)),
    "boolean": lambda _schema, _root: st.booleans(),
    "null": lambda _schema, _root: st.none(),
    "array": _lists,
    "object": _objects,
}


def complaint(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    found = ArgumentCheck(schema).complaint(arguments)
    assert found is not None
    return found


@given(st.data(), st.integers(0, len(PUBLISHED) - 1))
def test_valid_arguments_are_never_complained_about(data: st.DataObject, index: int) -> None:
    check = ArgumentCheck(PUBLISHED[index])
    assert check.unusable is None
    assert check.complaint(data.draw(instances(PUBLISHED[index], PUBLISHED[index]))) is None


@given(st.data(), st.dictionaries(st.sampled_from([*EDIT["properties"], "pth"]), json_values, max_size=3))
def test_what_is_complained_about_is_what_the_reference_validator_refuses(data: Any, spoilt: dict[str, Any]) -> None:
    arguments = data.draw(instances(EDIT, EDIT)) | spoilt
    reference = Draft202012Validator(EDIT)
    assert (ArgumentCheck(EDIT).complaint(arguments) is None) == reference.is_valid(arguments)


GOOD: dict[str, Any] = {"path": "x"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "argument 'path' is missing; it must be a string"),
        ({"path": 1}, "argument 'path': 1 is not accepted; accepted: a string"),
        (GOOD | {"mode": "x"}, """argument 'mode': "x" is not accepted; accepted: one of "a", "b\""""),
        (GOOD | {"count": 11}, "argument 'count': 11 is not accepted; accepted: an integer, at least 1, at most 10"),
        (
            GOOD | {"count": True},
            "argument 'count': true is not accepted; accepted: an integer, at least 1, at most 10",
        ),
        (
            GOOD | {"share": 0.3},
            "argument 'share': 0.3 is not accepted; accepted: a number, more than 0, a multiple of 0.25",
        ),
        (GOOD | {"edits": [{"new_string": ""}]}, "argument 'edits[0].old_string' is missing; it must be a string"),
        (
            GOOD | {"edits": [{"old_string": 2, "new_string": ""}]},
            "argument 'edits[0].old_string': 2 is not accepted; accepted: a string",
        ),
        (
            GOOD | {"edits": []},
            (
                "argument 'edits': [] is not accepted; accepted: "
                "a list (each item an object with old_string, new_string), at least 1 items, at most 3 items"
            ),
        ),
        (
            GOOD | {"edits": [{"old_string": "", "new_string": "", "old": ""}]},
            "unknown argument 'edits[0].old'; accepted: old_string, new_string",
        ),
        (GOOD | {"note": 1}, "argument 'note': 1 is not accepted; accepted: (a string, at most 5 characters) or null"),
        (
            GOOD | {"note": "longer"},
            """argument 'note': "longer" is not accepted; accepted: a string, at most 5 characters""",
        ),
        (GOOD | {"lines": [1, "z"]}, """argument 'lines[1]': "z" is not accepted; accepted: an integer"""),
        (GOOD | {"name": "A"}, """argument 'name': "A" is not accepted; accepted: a string, matching "^[a-z]+$\""""),
        (
            GOOD | {"labels": ["a", "a"]},
            """argument 'labels': ["a", "a"] is not accepted; accepted: a list (each item a string), no item twice""",
        ),
        (GOOD | {"flags": {"a b": 1}}, """argument 'flags["a b"]': 1 is not accepted; accepted: true or false"""),
        (
            {"pth": "x"},
            "argument 'path' is missing; it must be a string ('pth' is not a parameter)",
        ),
        (
            {"path": 1, "mode": 2, "count": ""},
            (
                """argument 'path': 1 is not accepted; accepted: a string. Also: argument 'mode': 2 is not accepted; """
                """accepted: one of "a", "b". Also: argument 'count': "" is not accepted; accepted: an integer, """
                "at least 1, at most 10"
            ),
        ),
        (GOOD | {"count": float("nan")}, "argument 'count': NaN is no JSON number; accepted: a finite number"),
        (
            GOOD | {"edits": [{"old_string": -float("inf")}]},
            "argument 'edits[0].old_string': -Infinity is no JSON number; accepted: a finite number",
        ),
    ],
)
def test_a_violation_names_the_parameter_and_what_is_accepted(arguments: dict[str, Any], expected: str) -> None:
    assert complaint(EDIT, arguments) == expected


PAINT: dict[str, Any] = {
    "properties": {"colour": {"enum": ["red", "blue"]}, "size": {"type": "integer"}},
    "required": ["colour", "size"],
}
RED = """argument 'colour' is missing; it must be one of "red", "blue\""""


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"color": "red", "size": 1}, f"{RED} ('color' is not a parameter)"),
        (
            {"color": "red"},
            f"{RED} ('color' is not a parameter). Also: argument 'size' is missing; it must be an integer",
        ),
        ({"size": "big"}, f"{RED}. Also: argument 'size': \"big\" is not accepted; accepted: an integer"),
    ],
)
def test_a_misspelt_name_is_told_with_the_parameter_that_is_missing(
    is_closed: bool, arguments: dict[str, Any], expected: str
) -> None:
    schema = PAINT | ({"additionalProperties": False} if is_closed else {})
    assert complaint(schema, arguments) == expected
    assert complaint({"properties": {"inner": schema}}, {"inner": arguments}) == (
        expected.replace("argument '", "argument 'inner.").replace("not a parameter", "not known there")
    )


def test_a_name_that_may_be_meant_as_it_is_is_not_called_misspelt() -> None:
    names: list[dict[str, Any]] = [{"additionalProperties": {"type": "string"}}, {"patternProperties": {"^col": {}}}]
    for free in names:
        assert complaint(PAINT | free, {"color": "red", "size": 1}) == RED


def test_three_problems_are_told_and_the_others_counted_as_far_as_there_is_room() -> None:
    schema = {"properties": {name: {"type": "integer"} for name in "abcde"}}
    words = [f"argument '{name}': \"x\" is not accepted; accepted: an integer" for name in "abcde"]
    for num_wrong in range(1, 6):
        others = {4: " (and 1 more problem)", 5: " (and 2 more problems)"}.get(num_wrong, "")
        given = dict.fromkeys("abcde"[:num_wrong], "x")
        assert complaint(schema, given) == ". Also: ".join(words[: min(num_wrong, 3)]) + others
    long = {"properties": {name * 50: {"enum": [name * 50] * 3} for name in "abcde"}}
    found = complaint(long, dict.fromkeys((name * 50 for name in "abcde"), 1))
    assert found.startswith(f"argument '{'a' * 50}': 1 is not accepted")
    assert found.endswith(" (and 4 more problems)")
    assert len(found) <= 400


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (
            {"kind": "circle", "radius": "x"},
            """argument 'shape.radius': "x" is not accepted; accepted: a number""",
        ),
        ({"kind": "square"}, "argument 'shape.side' is missing; it must be an integer"),
        (
            {"kind": "c"},
            (
                """argument 'shape': {"kind": "c"} is not accepted; accepted: """
                """(an object with kind "circle", radius) or (an object with kind "square", side)"""
            ),
        ),
    ],
)
def test_the_alternative_that_was_meant_is_spoken_about(shape: Any, expected: str) -> None:
    assert complaint(SHAPE, {"shape": shape}) == expected


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"properties": {"x": False}}, {"x": 1}, "argument 'x': 1 is not accepted; accepted: nothing"),
        ({"required": ["x"]}, {}, "argument 'x' is missing"),
        ({"additionalProperties": False}, {"x": 1}, "unknown argument 'x'; accepted: none"),
        (
            {"patternProperties": {"^a": {}}, "additionalProperties": False},
            {"x": 1},
            """unknown argument 'x'; accepted: names matching "^a\"""",
        ),
        (
            {"propertyNames": {"maxLength": 2}},
            {"long": 1},
            """the name "long" of an argument is not accepted; accepted: at most 2 characters""",
        ),
        (
            {"properties": {"propertyNames": {"const": "a"}}},
            {"propertyNames": "b"},
            """argument 'propertyNames': "b" is not accepted; accepted: exactly "a\"""",
        ),
        (
            {"dependentRequired": {"a": ["b"]}},
            {"a": 1},
            "argument 'b' is missing; another argument that is given needs it",
        ),
        (
            {"minProperties": 2},
            {"a": 1},
            "what is given as the arguments is not accepted; accepted: at least 2 entries",
        ),
        (
            {"properties": {"x": {"not": {"type": "string"}}}},
            {"x": "s"},
            """argument 'x': "s" is not accepted; accepted: anything but a string""",
        ),
        (
            {"properties": {"x": {"contains": {"const": 1}}}},
            {"x": [2]},
            "argument 'x': [2] is not accepted; accepted: with an item that is exactly 1",
        ),
        (
            {"properties": {"x": {"type": ["string", "null"]}}},
            {"x": 5},
            "argument 'x': 5 is not accepted; accepted: a string or null",
        ),
        (
            {"properties": {"x": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
            {"x": 5},
            "argument 'x': 5 is not accepted; accepted: exactly one of: an integer or a number",
        ),
    ],
)
def test_every_kind_of_keyword_has_words(schema: dict[str, Any], arguments: dict[str, Any], expected: str) -> None:
    assert complaint(schema, arguments) == expected


@pytest.mark.parametrize(
    ("dialect", "bound", "words"),
    [
        ("http://json-schema.org/draft-04/schema#", {"minimum": 3, "exclusiveMinimum": True}, "more than 3"),
        ("http://json-schema.org/draft-06/schema#", {"exclusiveMinimum": 3}, "more than 3"),
        ("http://json-schema.org/draft-07/schema#", {"exclusiveMinimum": 3}, "more than 3"),
        ("https://json-schema.org/draft/2019-09/schema", {"exclusiveMinimum": 3}, "more than 3"),
        ("https://json-schema.org/draft/2020-12/schema", {"exclusiveMinimum": 3}, "more than 3"),
        ("https://example.org/of-my-own", {"exclusiveMinimum": 3}, "more than 3"),
    ],
)
def test_the_dialect_is_the_one_that_the_schema_names(dialect: str, bound: dict[str, Any], words: str) -> None:
    check = ArgumentCheck({"$schema": dialect, "properties": {"x": {"type": "integer"} | bound}})
    assert check.unusable is None
    assert check.complaint({"x": 4}) is None
    assert check.complaint({"x": 3}) == f"argument 'x': 3 is not accepted; accepted: an integer, {words}"


def test_nullable_lets_null_pass() -> None:
    check = ArgumentCheck({"properties": {"x": {"type": "string", "nullable": True}}})
    assert check.complaint({"x": None}) is None
    assert check.complaint({"x": 1}) is not None


def test_decimals_are_multiples_as_they_are_written() -> None:
    check = ArgumentCheck({"properties": {"x": {"multipleOf": 0.1}, "y": {"multipleOf": 2}}})
    assert check.complaint({"x": 0.3, "y": 4.0}) is None
    assert check.complaint({"x": 0.35}) is not None
    assert check.complaint({"y": 10**15 + 1}) is not None


def test_one_and_true_are_two_items_and_one_and_one_point_zero_are_not() -> None:
    check = ArgumentCheck({"properties": {"x": {"uniqueItems": True}}})
    assert check.complaint({"x": [1, True, {"a": [0]}, {"a": [False]}]}) is None
    assert check.complaint({"x": [{"a": [1], "b": 2}, {"b": 2, "a": [1.0]}]}) is not None


@given(tool_specs(), st.dictionaries(st.text(max_size=4), json_values, max_size=3))
def test_nothing_is_raised_and_complaints_are_short_whatever_a_tool_publishes(tool: Any, arguments: Any) -> None:
    found = ArgumentCheck(tool.input_schema).complaint(arguments)
    assert found is None or len(found) <= 400


_keywords = st.sampled_from([*Draft202012Validator.VALIDATORS, "$schema", "$id", "$anchor", "then", "else", "nullable"])
_odd_schemas = st.recursive(
    json_values | st.sampled_from(["string", "#", "#/properties/a", "object", "(a", "https://json-schema.org/x"]),
    lambda inner: st.dictionaries(_keywords | st.just("a"), inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_keywords, _odd_schemas, max_size=4), st.dictionaries(st.text("a", max_size=2), json_values))
def test_nothing_is_raised_whatever_the_schema(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    check = ArgumentCheck(schema)
    found = check.complaint(arguments)
    assert found is None or (check.unusable is None and len(found) <= 400)


def test_a_complaint_stays_short_whatever_the_names_and_values() -> None:
    long = "x" * 5_000
    properties = {f"{number}{long}": {"enum": [long] * 5} for number in range(5)}
    check = ArgumentCheck({"properties": properties, "additionalProperties": False, "required": [f"0{long}"]})
    for arguments in ({}, {long: 1}, {f"0{long}": f"{long}{long}"}, {f"0{long}": {long: float("nan")}}):
        found = check.complaint(arguments)
        assert found is not None
        assert len(found) <= 400
        assert "\n" not in found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": 5}, "malformed at type"),
        ({"properties": []}, "malformed at properties"),
        ({"properties": {"a": {"minimum": "1"}}}, "malformed at properties/a/minimum"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#"}]}]}, "leads back to itself"),
        ({"properties": {"a": {"$ref": "#/$defs/Gone"}}}, "the reference '#/$defs/Gone' leads to nothing"),
        ({"properties": {"a": {"$ref": "#/title"}}, "title": "T"}, "no schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "draft 3"),
    ],
)
def test_a_schema_that_cannot_be_used_refuses_nothing_and_says_why(schema: dict[str, Any], reason: str) -> None:
    check = ArgumentCheck(schema)
    assert reason in str(check.unusable)
    assert check.complaint({"a": 1}) is None


def test_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for schema in (
            {"$ref": f"{address}/x"},
            {"$schema": f"{address}/x", "properties": {"a": {"$ref": f"{address}/x"}}},
            {"$id": f"{address}/root", "properties": {"a": {"$ref": "other"}}},
            {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": f"{address}/x"}}},
        ):
            assert ArgumentCheck(schema).complaint({"a": 1}) is None
            assert ArgumentCheck(schema).unusable is not None
        with pytest.raises(TimeoutError):
            server.accept()


def test_references_inside_a_schema_with_an_identity_are_followed() -> None:
    schema = {
        "$id": "https://example.org/tool/root",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#named"}, "c": {"$ref": "part"}},
        "$defs": {
            "A": {"type": "string"},
            "B": {"$anchor": "named", "type": "integer"},
            "C": {"$id": "part", "type": "null"},
        },
    }
    check = ArgumentCheck(schema)
    assert check.unusable is None
    assert check.complaint({"a": "", "b": 1, "c": None}) is None
    assert "'a': 1" in complaint(schema, {"a": 1})
    assert "'b': \"\"" in complaint(schema, {"b": ""})
    assert "'c': 2" in complaint(schema, {"c": 2})


def test_a_recursive_schema_is_checked_to_its_depth() -> None:
    assert ArgumentCheck(TREE).complaint({"root": [[], [[]]]}) is None
    assert complaint(TREE, {"root": [[], [[1]]]}).startswith("argument 'root[1][0][0]': 1 is not accepted")


_CATASTROPHE = {"pattern": "^(a|aa|a?)+$"}
_HARMFUL = "a" * 60 + "b"


def _many_ways(num_levels: int) -> dict[str, Any]:
    levels: dict[str, Any] = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 2} for n in range(num_levels)}
    return {"properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": levels | {f"L{num_levels}": {"type": "string"}}}


def _deep(num_levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(num_levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"a": _CATASTROPHE}}, {"a": _HARMFUL}),
        ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"} | _CATASTROPHE}}, {"a": _HARMFUL}),
        ({"properties": {"a": {"allOf": [_CATASTROPHE] * 500}}}, {"a": _HARMFUL}),
        ({"patternProperties": {_CATASTROPHE["pattern"]: False}, "additionalProperties": False}, {_HARMFUL: 1}),
        ({"properties": {"a": {"not": {"not": _CATASTROPHE}}}}, {"a": _HARMFUL}),
        ({"unevaluatedProperties": False, "patternProperties": {_CATASTROPHE["pattern"]: True}}, {_HARMFUL: 1}),
        ({"properties": {"a": {"pattern": r"\d{99999999}"}}}, {"a": "1"}),
        ({"properties": {"a": {"pattern": "((x{99}){99}){99}"}}}, {"a": "1"}),
        ({"properties": {"a": {"pattern": "(" * 900}}}, {"a": "1"}),
        ({"properties": {"a": {"pattern": "(?i)" + "\u017f" * 1_900}}}, {"a": "aß" * 200_000}),
        (_many_ways(60), {"a": 1}),
        (
            {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/E"}] * 6_000}}, "$defs": {"E": {"enum": ["x" * 9**6]}}},
            {"a": 1},
        ),
        ({"properties": {"a": {"anyOf": [{"type": "null"}] * 3_000}}}, {"a": "x" * 10**6}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[n] for n in range(20_000)]}),
        ({"properties": {"a": {"$ref": "#"}}}, _deep(400)),
        ({"properties": {"a": {"$ref": "#"}}}, _deep(20_000)),
        ({"properties": _deep(20_000)}, {"a": 1}),
        ({"properties": {f"p{n}": {"$ref": "#x"} for n in range(20_000)} | {"a": {"$anchor": "x"}}}, {"a": 1}),
        ({"enum": [[n] for n in range(20_000)], "$schema": "http://json-schema.org/draft-04/schema#"}, {"a": 1}),
    ],
)
def test_a_hostile_schema_is_left_to_the_server_in_little_time(schema: dict[str, Any], arguments: Any) -> None:
    started = time.perf_counter()
    assert ArgumentCheck(schema).complaint(arguments) is None
    assert time.perf_counter() - started < 3


@pytest.mark.parametrize(
    ("pattern", "value"),
    [("^/items/{d}$", "/items/{d}"), ("^[a-z&&[^b]]$", "a"), (r"^\h$", "h"), ("^a{s<=1}$", "a{s<=1}")],
)
def test_a_pattern_that_engines_read_in_different_ways_is_left_to_the_server(pattern: str, value: str) -> None:
    assert ArgumentCheck({"properties": {"a": {"type": "string", "pattern": pattern}}}).complaint({"a": value}) is None


@pytest.mark.parametrize("pattern", [r"^\p{Lu}{2}$", r"^\{a\}$", "^[(|)&-]{1,3}$", r"^\d{4}-\d{2,}$"])
def test_a_pattern_that_engines_read_alike_is_judged(pattern: str) -> None:
    assert ArgumentCheck({"properties": {"a": {"type": "string", "pattern": pattern}}}).complaint({"a": "x"})


def test_a_pattern_that_cannot_be_judged_leaves_the_other_keywords_at_work() -> None:
    schema = {"properties": {"a": _CATASTROPHE, "b": {"type": "integer", "pattern": "(?<="}}}
    assert complaint(schema, {"a": _HARMFUL, "b": "x"}).startswith("argument 'b'")


def test_the_validator_is_made_once() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
    check = ArgumentCheck(schema)
    assert check.complaint({"a": 1}) is not None
    schema["properties"] = []
    assert check.unusable is None


def test_a_check_survives_pickling_after_use() -> None:
    check = ArgumentCheck(EDIT)
    assert check.complaint({}) is not None
    again: ArgumentCheck = pickle.loads(pickle.dumps(check))
    assert again.complaint({}) == check.complaint({})


def test_what_is_no_json_is_left_to_the_sender() -> None:
    assert ArgumentCheck(EDIT).complaint({"path": object()}) is None
