from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import EnvSpec, Limits, MultiEnvSpec, errors
from multienv.specs import TaskSet, check_disjoint, declare, server_identity
from multienv.types import RESERVED_NAMES
from tests.strategies import environment_names
from tests.support.environments import EchoEnvironment

SECRET = "sk-very-secret"


class Guess:
    """A TRL environment class."""

    def reset(self, **row: Any) -> str:
        return "Guess."


class Clueless:
    """A class of neither kind."""


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("localhost:8000", ["'localhost:8000'", "has no scheme", "write 'http://localhost:8000'"]),
        ("SETA", ["'SETA'", "no catalogue name", "'owner/name'"]),
        ("ftp://host", ["'ftp://host'", "http(s)://host"]),
        ("http://", ["http(s)://host"]),
        ("http://host/prefix?key=sk-very-secret", ["http://host/prefix' has a path", "env_name"]),
        ("user:sk-very-secret@host:80", ["credentials"]),
        ("http://host\x00a", ["control characters"]),
        ("http://host:99999", ["malformed"]),
        (f"https://user:{SECRET}@host", ["credentials", "api_key"]),
        (7, ["of type int", "catalogue name"]),
        (int, ["type", "Environment"]),
        (Guess, ["class Guess is a TRL environment class", "to the mapping directly, or as ForeignSpec(Guess)"]),
        (EchoEnvironment(), ["instance of EchoEnvironment; give the class EchoEnvironment, not an instance"]),
    ],
)
def test_a_target_that_is_none_is_explained(target: Any, words: list[str]) -> None:
    with pytest.raises(errors.SpecError) as caught:
        EnvSpec(target)
    for word in words:
        assert word in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"numtasks": 3}, ["unknown option 'numtasks'", "did you mean 'num_tasks'?", "accepted: "]),
        ({"num_tasks": 0}, ["num_tasks=0"]),
        ({"num_tasks": "5"}, ["num_tasks='5'"]),
        ({"num_tasks": True}, ["num_tasks=True"]),
        ({"include_metadata": "no"}, ["include_metadata='no'"]),
        ({"reward_funcs": 5}, ["reward_funcs holds 5"]),
        ({"api_key": SECRET + "\n"}, ["api_key", "strip it"]),
        ({"api_key": "schlüssel"}, ["api_key", "cannot be sent"]),
        (
            {"limits": {"tool_timeouts": 1}},
            ["Limits: unknown option 'tool_timeouts' (did you mean 'tool_timeout_s'?)"],
        ),
        ({"num_tasks": 3, "indices": [1]}, ["exclude each other"]),
        ({"indices": []}, ["indices is empty"]),
        ({"indices": [3, -1]}, ["holds -1"]),
        ({"indices": [True]}, ["holds True"]),
        ({"indices": "0-5"}, ["'0-5'", "range(50, 100)"]),
        ({"exclude": "task"}, ["exclude='task' is no sequence; accepted: task indices and task ids"]),
        ({"exclude": [1, True]}, ["exclude holds True, which is neither"]),
        ({"exclude": [1.5]}, ["exclude holds 1.5, which is neither an int nor a string"]),
        ({"exclude": [-1]}, ["exclude holds -1; a task index starts at 0"]),
        ({"exclude": ["a", 3, "a"]}, ["exclude holds 'a' twice"]),
        ({"exclude": [""]}, ["exclude holds an empty string"]),
        ({"exclude": [1], "evaluation_only": True}, ["with evaluation_only=True there is none", "eval_indices"]),
        ({"eval_num_tasks": 3}, ["eval_num_tasks=3 without eval_split", "with eval_split, or", "eval_indices"]),
        ({"eval_num_tasks": 3, "eval_split": "t", "eval_indices": [1]}, ["eval_num_tasks=3 and eval_indices exclude"]),
        ({"eval_num_tasks": 0, "eval_split": "t"}, ["eval_num_tasks=0"]),
        ({"eval_indices": []}, ["eval_indices is empty"]),
        ({"eval_indices": [2, -3]}, ["eval_indices holds -3"]),
        ({"eval_split": ""}, ["eval_split=''"]),
        ({"evaluation_only": 1}, ["evaluation_only=1"]),
        ({"reward_weight": float("inf")}, ["reward_weight=inf"]),
        (
            {"reward_funcs": ["my/reward-model"]},
            ["'my/reward-model'", "not callable", "MultiEnvSpec(reward_funcs=...)"],
        ),
        ({"secrets": SECRET}, ["secrets has the wrong form", "mapping"]),
        ({"secrets": {"K": {SECRET: 1}}}, ["secrets has the wrong form"]),
        ({"api_key": [SECRET]}, ["api_key has the wrong form"]),
        ({"split": ""}, ["split=''"]),
        ({"limits": {"tool_timeout_s": 0}}, ["Limits: tool_timeout_s=0"]),
    ],
)
def test_a_wrong_option_is_explained_and_no_secret_is_shown(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(errors.SpecError) as caught:
        EnvSpec("Eigent/SETA", **options)
    for word in words:
        assert word in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_session": 3}, "unknown option 'max_session' (did you mean 'max_sessions'?)"),
        ({"max_sessions": 0}, "max_sessions=0"),
        ({"failure_threshold": 2}, "failure_threshold=2"),
    ],
)
def test_a_wrong_limit_is_explained(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        Limits(**options)
    assert words in str(caught.value)


def test_secrets_are_masked_wherever_a_spec_is_shown() -> None:
    spec = EnvSpec("Eigent/SETA", api_key=SECRET, secrets={"A": SECRET, "B": (SECRET, ["example.org"])})
    mixture = MultiEnvSpec({"seta": spec})
    for text in (repr(spec), str(spec), f"{spec!r}", spec.model_dump_json(), str(spec.model_dump()), repr(mixture)):
        assert SECRET not in text


@pytest.mark.parametrize("indices", [range(3, 6), [3, 4, 5], (3, 4, 5), np.array([3, 4, 5]), iter([3, 4, 5])])
def test_indices_takes_any_sequence_of_ints(indices: Any) -> None:
    assert EnvSpec("Eigent/SETA", indices=indices).indices == (3, 4, 5)


def test_exclude_takes_any_sequence_of_indices_and_names() -> None:
    spec = EnvSpec("Eigent/SETA", exclude=[np.int64(3), "seta/train/4"])
    assert spec.exclude == (3, "seta/train/4")
    assert repr(spec) == "EnvSpec(target='Eigent/SETA', exclude=(3, 'seta/train/4'))"
    assert EnvSpec("Eigent/SETA", exclude=range(2)).exclude == (0, 1)


def test_a_spec_is_frozen_compares_by_value_and_pickles() -> None:
    spec = EnvSpec("http://LOCALHOST:8000/", num_tasks=3, secrets={"A": "b"})
    assert spec.target == "http://localhost:8000"
    assert (
        pickle.loads(pickle.dumps(spec))
        == spec
        == EnvSpec(target="http://localhost:8000", num_tasks=3, secrets={"A": "b"})
    )
    with pytest.raises(ValueError, match="frozen"):
        spec.num_tasks = 4  # type: ignore[misc]


def test_an_environment_class_is_a_target_and_takes_no_server_options() -> None:
    assert EnvSpec(EchoEnvironment).target is EchoEnvironment
    with pytest.raises(errors.SpecError, match="api_key is for servers"):
        EnvSpec(EchoEnvironment, api_key="k")


@given(environment_names)
def test_every_name_of_the_right_form_is_accepted(name: str) -> None:
    assert list(declare({name: "owner/name"})) == [name]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", 3, None, *sorted(RESERVED_NAMES), "PROMPT"])
def test_a_malformed_or_reserved_name_is_refused(name: Any) -> None:
    with pytest.raises(errors.SpecError, match="environment name"):
        declare({name: "owner/name"})


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(errors.SpecError, match="'Seta' and 'SETA' differ only in case"):
        declare({"Seta": "a/b", "SETA": "a/c"})


@pytest.mark.parametrize("environments", [{}, [], "Eigent/SETA", None])
def test_a_mapping_with_nothing_in_it_or_no_mapping_is_refused(environments: Any) -> None:
    with pytest.raises(errors.SpecError, match="environments"):
        MultiEnvSpec(environments)


def test_a_value_of_another_kind_is_refused_with_the_kinds_that_are_not() -> None:
    with pytest.raises(errors.SpecError, match="environment 'x' is of type int; accepted: EnvSpec, a target"):
        declare({"x": 3})
    with pytest.raises(errors.SpecError, match="environment 'x': EnvSpec: target 'nonsense'"):
        declare({"x": "nonsense"})
    with pytest.raises(errors.SpecError, match="environment 'x' is class Clueless, which is neither .* 'reset'; acc"):
        declare({"x": Clueless})


@pytest.mark.parametrize("cls", [EchoEnvironment, Guess])
def test_an_instance_in_the_place_of_its_class_is_refused(cls: type) -> None:
    declare({"x": cls})
    with pytest.raises(errors.SpecError, match=f"'x' is an instance of {cls.__name__}; give the class {cls.__name__}"):
        declare({"x": cls()})


@pytest.mark.parametrize("policy", ["Qwen/Qwen3-4B", None, object()])
def test_the_policy_is_named_by_what_renders_its_prompts(policy: Any) -> None:
    with MultiEnvSpec({"x": EchoEnvironment}) as spec, pytest.raises(errors.SpecError) as caught:
        spec.present_to(policy)
    assert (repr(policy) if isinstance(policy, str) else type(policy).__name__) in str(caught.value)
    assert "apply_chat_template; accepted: the policy's tokenizer or processor. Load it first" in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EnvSpec("a/b"), EnvSpec("A/B", num_tasks=3)),
        (EnvSpec("http://localhost:80", indices=[1, 2]), EnvSpec("http://127.0.0.1", indices=[2, 3])),
        (EnvSpec("http://h", env_name="X", num_tasks=3), EnvSpec("http://h", env_name="x", indices=[2])),
        (EnvSpec(EchoEnvironment), EnvSpec(EchoEnvironment)),
    ],
)
def test_overlapping_task_sets_are_refused_before_any_network(one: EnvSpec, other: EnvSpec) -> None:
    with pytest.raises(errors.OverlappingTasksError, match="'one' and 'other' both hold task"):
        MultiEnvSpec({"one": one, "other": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EnvSpec("a/b", split="train"), EnvSpec("a/b", split="test")),
        (EnvSpec("a/b", indices=range(5)), EnvSpec("a/b", indices=range(5, 9))),
        (EnvSpec("http://h:1"), EnvSpec("http://h:2")),
        (EnvSpec("http://h", env_name="x"), EnvSpec("http://h", env_name="y")),
    ],
)
def test_disjoint_task_sets_are_fine(one: EnvSpec, other: EnvSpec) -> None:
    assert list(declare({"one": one, "other": other})) == ["one", "other"]


_ranges = st.builds(lambda start, length: range(start, start + length), st.integers(0, 9), st.integers(0, 9))
_selections = _ranges | st.frozensets(st.integers(0, 20), max_size=6)


@given(_selections, _selections)
def test_overlap_is_found_exactly_when_there_is_one(one: range | frozenset[int], other: range | frozenset[int]) -> None:
    sets = [TaskSet(name, "s", "e", "train", indices) for name, indices in (("one", one), ("other", other))]
    shared = set(one) & set(other)
    if not shared:
        check_disjoint(sets)
        return
    with pytest.raises(errors.OverlappingTasksError, match=f"both hold task {min(shared)} "):
        check_disjoint(sets)


def test_server_identity_ignores_how_a_url_is_written() -> None:
    assert server_identity("https://example.org") == server_identity("https://example.org:443")
    assert server_identity("http://localhost:8000") == server_identity("http://127.0.0.1:8000")
    assert server_identity("http://localhost:8000") != server_identity("http://localhost:8001")
