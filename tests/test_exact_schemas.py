"""Tools are shown exactly as published, and a call with valid arguments goes out exactly as it was written."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openreward.toolsets
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openreward.environments import Toolset
from openreward.environments.session import _toolset_specs

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.router import Route, make_factory
from multienv.router.adapter import RESERVED_MEMBERS
from multienv.router.presentation import Presentation
from multienv.router.rollout_tools import RolloutTools
from multienv.router.spelling import reserved_texts
from multienv.router.tools import bind_tools
from multienv.tiny.model import build_model, build_tokenizer
from multienv.types import Episode, ToolListing, ToolSpec
from tests.strategies import published_tools
from tests.support.fakes import ScriptedSession, ready
from tests.support.published import FIXTURES, Published, fixture_tools, published
from tests.support.servers import ORSServer
from tests.support.training import Scripted, call, config

NO_ARGUMENTS = {"type": "object", "properties": {}}
NUM_ROUNDS = 3
MOST_CALLS_AT_ONCE = 12
CONTEXT = 100_000


def sdk_toolsets() -> dict[str, list[dict[str, Any]]]:
    """The tools of every toolset class of the SDK, as a server publishes them."""

    class Owner:
        sandbox = object()

    exported = [value for value in vars(openreward.toolsets).values() if inspect.isclass(value)]
    classes: set[Any] = {cls for cls in exported if issubclass(cls, Toolset) and cls is not Toolset}
    classes |= set(openreward.toolsets.BUILTIN_TOOLSETS.values())
    ordered = sorted(classes, key=lambda cls: str(cls.__name__))
    return {cls.__name__: [tool.model_dump(mode="json") for tool in _toolset_specs(cls(Owner()))] for cls in ordered}


CORPORA: dict[str, list[dict[str, Any]]] = {
    **{path.stem: fixture_tools(path) for path in sorted(FIXTURES.glob("*.json"))},
    **sdk_toolsets(),
    # None of them has a tool without a schema.
    "bare": [{"name": "look", "description": "Look around.", "input_schema": None}],
}


@functools.cache
def tokenizer() -> Any:
    """A tokenizer that knows the published tools, so that prompts are short."""
    tools = [tool for tools in CORPORA.values() for tool in tools]
    made = build_tokenizer([json.dumps(tool) for tool in tools], vocab_size=3_000)
    made.model_max_length = CONTEXT
    return made


def shown_tools(prompt: str) -> list[Any]:
    """The tools in a prompt of Qwen3's template, which prints one on each line."""
    lines = prompt.split("<tools>\n", 1)[1].split("\n</tools>", 1)[0].split("\n")
    return [json.loads(line) for line in lines]


def as_published(tool: Mapping[str, Any]) -> Any:
    schema = NO_ARGUMENTS if tool["input_schema"] is None else tool["input_schema"]
    return {
        "type": "function",
        "function": {"name": tool["name"], "description": tool["description"], "parameters": schema},
    }


@functools.cache
def valid_calls(environment: str) -> list[tuple[str, Any]]:
    """Three calls of each tool, by published names, with arguments that its schema accepts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
        script: Any = importlib.import_module("arguments")
    calls = []
    for number in range(NUM_ROUNDS):
        for tool in CORPORA[environment]:
            schema = NO_ARGUMENTS if tool["input_schema"] is None else tool["input_schema"]
            arguments = script.Arguments(schema, f"{environment} {tool['name']} {number}", "").value(schema)
            Draft202012Validator(schema).validate(arguments)
            calls.append((tool["name"], arguments))
    return calls


def as_methods(environment: str, calls: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The same calls in the names that the adapter's methods have."""
    specs = [ToolSpec(tool["name"], "", tool["input_schema"] or {}) for tool in CORPORA[environment]]
    bound = {tool.spec.name: tool for tool in bind_tools(specs, taken=RESERVED_MEMBERS)}
    return [
        (bound[tool].name, {bound[tool].parameters.get(name, name): value for name, value in arguments.items()})
        for tool, arguments in calls
    ]


@dataclass
class Played:
    """What one step of a scripted trainer has shown, called and recorded."""

    prompts: dict[str, str] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    received: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)


class Untrained(Scripted):
    """A scripted trainer that does everything but optimise: prompts of this length are slow on a processor."""

    def compute_loss(self, model: Any, *_: Any, **__: Any) -> Any:
        return next(model.parameters()).sum() * 0


def play(server: ORSServer, classes: Mapping[str, type[Published]], output_dir: Path, *, is_ours: bool) -> Played:
    """Play every tool of every corpus three times in one batch."""
    played = Played()
    plans = {name: valid_calls(name) for name in classes}
    if not is_ours:
        plans = {name: as_methods(name, calls) for name, calls in plans.items()}

    def policy(text: str, num_results: int) -> str:
        name = text.split("Call every tool of ", 1)[1].split("!", 1)[0]
        played.prompts.setdefault(name, text)
        most = 1 if num_results == 0 else MOST_CALLS_AT_ONCE
        calls = plans[name][num_results : num_results + most]
        return "\n".join(call(tool, **arguments) for tool, arguments in calls) or "done"

    def watch(environments: list[Any], **_: Any) -> list[float]:
        played.episodes += [environment.episode for environment in environments]
        return [0.0 for _ in environments]

    for cls in classes.values():
        cls.received.clear()
    limits = Limits(max_sessions=None)
    environments = {name: EnvSpec(server.url, env_name=cls.__name__, limits=limits) for name, cls in classes.items()}
    with MultiEnvSpec(environments, reward_funcs=watch) as spec:
        options = {
            "per_device_train_batch_size": 2 * len(classes),
            "max_completion_length": CONTEXT,
            "max_tool_calling_iterations": 10,
        }
        model = build_model(tokenizer(), seed=0, hidden_size=8)
        model.config.max_position_embeddings = CONTEXT
        bases = (MultiEnvGRPOTrainer, Untrained) if is_ours else (Untrained,)
        cls = type("Trainer", bases, {"policy": staticmethod(policy)})
        slots: dict[str, Any] = {"spec": spec} if is_ours else spec.trainer_kwargs()
        trainer: Any = cls(model=model, processing_class=tokenizer(), args=config(output_dir, **options), **slots)
        trainer.train()
    played.log = trainer.state.log_history[0]
    played.received = {name: list(cls.received) for name, cls in classes.items()}
    return played


@pytest.fixture(scope="module")
def classes() -> dict[str, type[Published]]:
    return {
        name: published(f"Published{number}", tools, prompt=f"Call every tool of {name}!")
        for number, (name, tools) in enumerate(CORPORA.items())
    }


@pytest.fixture(scope="module")
def server(classes: dict[str, type[Published]]) -> Iterator[ORSServer]:
    with ORSServer(list(classes.values())) as server:
        yield server
        assert server.open_sessions == []


@pytest.fixture(scope="module", params=[True, False], ids=["MultiEnvGRPOTrainer", "GRPOTrainer"])
def played(
    request: pytest.FixtureRequest,
    server: ORSServer,
    classes: dict[str, type[Published]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[bool, Played]:
    return request.param, play(server, classes, tmp_path_factory.mktemp("play"), is_ours=request.param)


def test_the_corpora_are_all_there() -> None:
    assert len(CORPORA) == 10 + 12 + 1
    assert sum(len(CORPORA[name]) for name in sdk_toolsets()) == 85


def test_every_published_tool_is_in_the_prompt_as_published(played: tuple[bool, Played]) -> None:
    is_ours, run = played
    assert run.prompts.keys() == CORPORA.keys()
    for name, tools in CORPORA.items():
        shown = shown_tools(run.prompts[name])
        assert len(shown) == len(tools)
        if is_ours:
            assert [json.dumps(tool) for tool in shown] == [json.dumps(as_published(tool)) for tool in tools], name


def test_no_valid_call_is_refused_and_each_arrives_as_it_was_written(played: tuple[bool, Played]) -> None:
    _, run = played
    for name in CORPORA:
        calls = [json.dumps(call) for call in valid_calls(name)]
        # Two rollouts of each task.
        assert sorted(json.dumps(call) for call in run.received[name]) == sorted(calls * 2), name
        episodes = [episode for episode in run.episodes if episode.environment == name]
        assert len(episodes) == 2
        for episode in episodes:
            assert [step.text for step in episode.steps if step.refused] == []
            assert [json.dumps((step.tool, step.arguments)) for step in episode.steps] == calls
    assert run.log["tools/failure_frequency"] == 0


@functools.cache
def presentation() -> Presentation:
    return Presentation(reserved_texts(tokenizer()))


@settings(max_examples=60)
@given(st.lists(published_tools(), min_size=1, max_size=3, unique_by=lambda tool: tool[0].name))
def test_any_published_schema_is_what_the_prompt_holds(tools: list[tuple[ToolSpec, Any]]) -> None:
    specs = [spec for spec, _ in tools]
    # Special tokens are the one thing that is spelt otherwise; `test_spelling.py` has them.
    assume(not any(text in str(spec) for text in reserved_texts(tokenizer()) for spec in specs))
    functions = presentation().toolbox(specs).functions
    encoded = tokenizer().apply_chat_template([{"role": "user", "content": "Go."}], tools=functions)
    shown = shown_tools(tokenizer().decode(encoded["input_ids"]))
    published = [
        as_published({"name": spec.name, "description": spec.description, "input_schema": spec.input_schema})
        for spec in specs
    ]
    assert [json.dumps(tool) for tool in shown] == [json.dumps(tool) for tool in published]


@settings(max_examples=60)
@given(published_tools(), st.data())
def test_no_valid_call_of_any_published_tool_is_refused(
    tool: tuple[ToolSpec, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    spec, valid = tool
    Draft202012Validator.check_schema(spec.input_schema)
    session = ScriptedSession(iter(()))
    route = Route("env", "train", ToolListing((spec,)), lambda _: ready(session), presentation=presentation())
    adapter = make_factory(route)()
    adapter.reset(task_index=0)
    bound = bind_tools([spec], taken=RESERVED_MEMBERS)[0]
    for _ in range(NUM_ROUNDS):
        arguments = data.draw(valid)
        Draft202012Validator(spec.input_schema).validate(arguments)
        assert RolloutTools(adapter)[spec.name](**arguments) == "ok"
        assert json.dumps(session.calls[-1]) == json.dumps((spec.name, arguments))
        as_method = {bound.parameters[name]: value for name, value in arguments.items()}
        assert getattr(adapter, bound.name)(**as_method) == "ok"
        assert json.dumps(session.calls[-1]) == json.dumps((spec.name, arguments))
    assert len(session.calls) == 2 * NUM_ROUNDS
