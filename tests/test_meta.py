from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from multienv import EnvSpec, MultiEnvSpec, RewardSpec, errors
from multienv.router import make_meta_factory
from multienv.types import ToolOutput, ToolSpec
from tests.strategies import outcomes
from tests.support.fakes import batch, played, said, scripted_factory
from tests.support.servers import ORSServer
from tests.test_tools import trl_tools


def judge(**_: Any) -> list[float]:
    return []


def shared(**_: Any) -> list[float]:
    return []


def test_reward_functions_come_in_fixed_order_with_fixed_names() -> None:
    spec = MultiEnvSpec(
        {
            "a": EnvSpec("x/a", reward_funcs=[judge], reward_weight=2.0),
            "b": EnvSpec("x/b", use_environment_reward=False, reward_funcs=judge),
            "c": "x/c",
        },
        reward_funcs=shared,
    )
    assert [function.__name__ for function in spec.reward_funcs] == ["a", "a/judge", "b/judge", "c", "shared"]
    assert spec.reward_weights == [2.0, 2.0, 1.0, 1.0, 1.0]
    assert spec.reward_funcs is not spec.reward_funcs, "TRL writes into the list it is given"


def test_what_trls_own_trainer_does_to_a_weight_is_told_once_and_by_no_other_trainer() -> None:
    adapters = [played("a", [ToolOutput("ok", 1.0)])]
    rows = batch(adapters)
    for is_ours in (False, True):
        spec = MultiEnvSpec({"a": EnvSpec("x/a", reward_weight=2.0), "b": "x/b"})
        if is_ours:
            spec.hand_over(())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for function in spec.reward_funcs * 2:
                function(**rows)
        told = [warning for warning in caught if "next to no effect" in str(warning.message)]
        assert len(told) == (0 if is_ours else 1)


def test_two_reward_functions_of_one_name_are_refused() -> None:
    with pytest.raises(errors.SpecError, match="several reward functions are named 'a/judge'"):
        MultiEnvSpec({"a": EnvSpec("x/a", reward_funcs=[judge, judge])})
    with pytest.raises(errors.SpecError, match="several reward functions are named 'judge'"):
        MultiEnvSpec({"judge": "x/a"}, reward_funcs=[judge])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reward_funcs": 5}, "holds 5 of type int"),
        ({"reward_funcs": [judge, 5]}, "holds 5 of type int"),
        ({"system_prompt": 5}, "system_prompt is of type int"),
        ({"max_sessions": "8"}, "max_sessions='8'; accepted: an int from 1"),
        ({"max_concurrent_starts": 0}, "max_concurrent_starts=0; accepted: an int from 1"),
    ],
)
def test_a_wrong_option_of_the_mixture_is_explained(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.SpecError, match=words):
        MultiEnvSpec({"a": "x/a"}, **options)


def test_a_closed_mixture_is_not_entered_again() -> None:
    with MultiEnvSpec({"a": "x/a"}) as spec:
        pass
    with pytest.raises(errors.OrderError, match="make a new MultiEnvSpec"), spec:
        pass


def test_reward_models_pass_through_as_they_are() -> None:
    spec = MultiEnvSpec({"a": "x/a"}, reward_funcs="org/reward-model")
    assert spec.reward_funcs[1] == "org/reward-model"
    two = MultiEnvSpec({"a": "x/a"}, reward_funcs=["org/one", "org/two"])
    assert two.reward_funcs[1:] == ["org/one", "org/two"]


def test_the_guides_custom_reward_reads_the_same() -> None:
    spec = MultiEnvSpec({"a": EnvSpec("x/a", reward=RewardSpec(unscored=None)), "b": "x/b"})

    def my_reward(environments: list[Any], **_: Any) -> list[float | None]:
        rewards = spec.reward_func(environments=environments)
        return [2.0 * reward if reward is not None else None for reward in rewards]

    from multienv.types import ToolOutput
    from tests.support.fakes import played

    adapters = [played("b", [ToolOutput("x", 0.5)]), played("a", []), played("a", [ToolOutput("x", 0.0)])]
    assert my_reward(**batch(adapters)) == [1.0, None, 0.0]


def test_a_system_prompt_is_the_environments_own_or_the_mixtures(
    echo_server: ORSServer, climb_server: ORSServer
) -> None:
    environments = {"echo": EnvSpec(echo_server.url, system_prompt="Echo."), "climb": climb_server.url}
    with MultiEnvSpec(environments, system_prompt="Play.") as spec:
        systems = {row["environment"]: row["prompt"][0] for row in spec.train_dataset}
    assert systems == {
        "echo": {"role": "system", "content": "Echo."},
        "climb": {"role": "system", "content": "Play."},
    }


_ROWS = st.lists(st.tuples(st.sampled_from(["a", "b-1"]), st.lists(st.booleans(), max_size=4)), min_size=1, max_size=6)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(_ROWS, outcomes, outcomes, st.randoms(use_true_random=False))
def test_dict_and_meta_factory_give_the_same_rewards(
    rows: list[tuple[str, list[bool]]], one: list[Any], other: list[Any], rng: random.Random
) -> None:
    factories = {"a": scripted_factory("a", one), "b-1": scripted_factory("b-1", other)}
    meta_factory = make_meta_factory(factories)
    metas = [meta_factory() for _ in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for (name, moves), meta in zip(rows, rng.sample(metas, len(metas)), strict=True):
            adapter: Any = factories[name]()
            row = {"environment": name, "task_index": 3}
            assert meta.reset(**row) == adapter.reset(**row)
            shown = {"a": "a__answer", "b-1": "b_1__answer"}
            for is_own in moves:
                if is_own:
                    assert said(getattr(meta, shown[name]), n=1) == said(adapter.answer, n=1)
                else:
                    foreign = shown["b-1" if name == "a" else "a"]
                    assert f"its tools are: {shown[name]}" in said(getattr(meta, foreign), n=1)
            seen = (meta.environment, meta.reward, meta.rewards, meta.metadata, meta.finished, meta.last_output)
            assert seen == (
                name, adapter.reward, adapter.rewards, adapter.metadata, adapter.finished, adapter.last_output
            )  # fmt: skip


def test_only_colliding_tools_carry_their_environments_name() -> None:
    tools = {"a": [ToolSpec("bash"), ToolSpec("look")], "b": [ToolSpec("bash"), ToolSpec("a__bash")]}
    factories = {name: scripted_factory(name, tools=specs) for name, specs in tools.items()}
    meta = make_meta_factory(factories)()
    assert sorted(trl_tools(meta)) == ["a__bash", "a__bash_", "b__bash", "look"]  # type: ignore[arg-type]  # only its class is read
    assert get_json_schema(trl_tools(meta)["look"])["function"]["name"] == "look"  # type: ignore[arg-type]  # see above


def test_the_meta_environment_routes_and_says_when_it_cannot() -> None:
    meta = make_meta_factory({"seta": scripted_factory("seta")})()
    assert repr(meta) == "<meta before reset>"
    with pytest.raises(errors.OrderError, match="before reset"):
        _ = meta.reward
    with pytest.raises(
        errors.RoutingError, match=r"unknown environment 'sta' .* \(did you mean 'seta'\?\); known: seta"
    ):
        meta.reset(environment="sta", task_index=0)
    with pytest.raises(errors.RoutingError, match="unknown environment None"):
        meta.reset(task_index=0)
    meta.reset(environment="seta", task_index=0)
    assert repr(meta) == "<meta <seta/train/0 unfinished steps=0 reward=None>>"


def test_a_trl_spec_is_taken_over(echo_server: ORSServer) -> None:
    from trl.experimental.openreward import OpenRewardSpec

    trl_spec = OpenRewardSpec(echo_server.url, env_name="echoenvironment", indices=[1])
    with MultiEnvSpec({"echo": trl_spec}) as spec:
        assert spec.train_dataset["target"] == ["world"]
        adapter: Any = spec.environment_factory["echo"]()
        adapter.reset(**spec.train_dataset[0])
        assert (adapter.echo(text="world"), adapter.reward) == ("match", 1.0)
