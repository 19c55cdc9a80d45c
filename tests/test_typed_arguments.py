"""Arguments that a template writes as bare text, where the schema says their type in a roundabout way."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
import trl.chat_template_utils as templates
from hypothesis import given
from hypothesis import strategies as st

from multienv.router.arguments import ArgumentCheck
from multienv.router.spelling import Spelling
from multienv.router.toolbox import Toolbox
from multienv.router.typed import typed_arguments
from multienv.types import ToolSpec
from tests.support.training import tokenizer

EDIT = {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]}
ROUNDABOUT: dict[str, tuple[Any, Any]] = {
    "reference": ({"$ref": "#/$defs/Edit"}, {"line": 4}),
    "optional": ({"anyOf": [{"$ref": "#/$defs/Edit"}, {"type": "null"}]}, {"line": 4}),
    "left_out": ({"anyOf": [{"$ref": "#/$defs/Edit"}, {"type": "null"}]}, None),
    "one_of": ({"oneOf": [{"$ref": "#/$defs/Edit"}, {"$ref": "#/$defs/Lines"}]}, [1, 2]),
    "all_of": ({"allOf": [{"$ref": "#/$defs/Edit"}], "description": "An edit."}, {"line": 4}),
    "twice": ({"$ref": "#/$defs/Again"}, {"line": 4}),
    "choice": ({"enum": [1, 2]}, 2),
    "constant": ({"const": True}, True),
    "number": ({"$ref": "#/$defs/Number"}, 2),
}
SCHEMA = {
    "type": "object",
    "properties": {name: parameter for name, (parameter, _) in ROUNDABOUT.items()},
    "$defs": {
        "Edit": EDIT,
        "Lines": {"type": "array", "items": {"type": "integer"}},
        "Again": {"$ref": "#/$defs/Edit"},
        "Number": {"type": "number"},
    },
}
VALUES = {name: value for name, (_, value) in ROUNDABOUT.items()}


def written(template: str, arguments: dict[str, Any]) -> str:
    """A call as the template's policies write it."""
    texts = {name: json.dumps(value) for name, value in arguments.items()}
    if template == "glm4moe":
        body = "".join(f"<arg_key>{name}</arg_key>\n<arg_value>{text}</arg_value>\n" for name, text in texts.items())
        return f"<tool_call>edit\n{body}</tool_call>"
    body = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in texts.items())
    return f"<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize("template", ["qwen3_5_nothink", "glm4moe", "nemotron_3_nano"])
def test_a_call_written_as_bare_text_arrives_as_its_schema_types_it(template: str) -> None:
    policy = copy.deepcopy(tokenizer())
    policy.response_template = None
    policy.chat_template = getattr(templates, f"{template}_chat_template")
    policy = templates.add_response_schema(policy)
    toolbox = Toolbox([ToolSpec("edit", "Edit.", SCHEMA)], Spelling())
    prompt = policy.apply_chat_template(
        [{"role": "user", "content": "Edit."}],
        tools=toolbox.functions,
        add_generation_prompt=True,
        return_dict=False,
        enable_thinking=False,
    )
    ids = policy(written(template, VALUES), add_special_tokens=False)["input_ids"]
    message = templates.parse_response(policy, ids, prefix=prompt, tools=toolbox.functions)
    tool = toolbox.shown["edit"]
    restored = tool.restored(message["tool_calls"][0]["function"]["arguments"])
    assert restored == VALUES
    assert tool.arguments.complaint(restored) is None


@pytest.mark.parametrize(
    "parameter",
    [
        {},
        {"$ref": "#/$defs/Nowhere"},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "#/properties/p"},
        {"enum": ["1", 1]},
        {"const": "1"},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "integer"}, {}]},
        {"allOf": [{"description": "Anything."}]},
        {"type": "integer"},
    ],
)
def test_a_text_stays_where_the_schema_may_mean_it_or_transformers_has_read_it(parameter: Any) -> None:
    assert typed_arguments({"p": "1"}, {"properties": {"p": parameter}}) == {"p": "1"}


@given(name=st.sampled_from(sorted(ROUNDABOUT)), text=st.text(max_size=20))
def test_what_is_read_is_what_the_text_says_or_the_text(name: str, text: str) -> None:
    value = typed_arguments({name: text}, SCHEMA)[name]
    if value != text or not isinstance(value, str):
        assert value is None or str(value).lower() == text.strip().lower() or value == json.loads(text)


def test_a_text_that_does_not_read_as_what_is_accepted_is_refused_as_a_text() -> None:
    arguments = typed_arguments({"reference": "line 4", "choice": "[1]"}, SCHEMA)
    assert arguments == {"reference": "line 4", "choice": "[1]"}
    assert '"line 4" is not accepted' in str(ArgumentCheck(SCHEMA).complaint({"reference": "line 4"}))


def test_pythons_names_of_the_constants_are_read() -> None:
    assert typed_arguments({"constant": "True", "left_out": "None"}, SCHEMA) == {"constant": True, "left_out": None}


def test_a_schema_made_to_be_slow_is_given_up_at_once() -> None:
    doors = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 50} for n in range(20)}
    schema = {"properties": {"p": {"$ref": "#/$defs/D0"}}, "$defs": {**doors, "D20": {"type": "integer"}}}
    started = time.monotonic()
    assert typed_arguments({"p": "1"}, schema) == {"p": "1"}
    assert time.monotonic() - started < 1
