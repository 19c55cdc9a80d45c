"""From an episode to a number: the rule is pure, and these are its laws."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multienv import EnvSpec, Episode, EpisodeStatus, MultiEnvSpec, RewardSpec, Step, discounted, errors
from multienv.reporting import EpisodeRecord
from multienv.rewards import environment_reward, episode_reward, episode_status, is_success, mixture_reward
from multienv.rewards.notices import NUM_FIRST_EPISODES, NUM_SILENT_GROUPS
from multienv.rewards.reduce import counted_steps
from multienv.types import ToolOutput
from tests.strategies import episodes, reports_failure, reward_specs
from tests.support.fakes import played
from tests.support.servers import ORSServer

FINISHED, UNFINISHED, TRUNCATED = EpisodeStatus.FINISHED, EpisodeStatus.UNFINISHED, EpisodeStatus.TRUNCATED
FAILED, REFUSED = EpisodeStatus.FAILED, EpisodeStatus.REFUSED
law = settings(max_examples=200)
DOCS = Path(__file__).parents[1] / "docs" / "rewards.md"


def episode(
    rewards: Sequence[float | None], status: EpisodeStatus = FINISHED, *, end: int = -1, index: int = 0
) -> Episode:
    """An episode with these step rewards; a finished one ends with the step `end`."""
    steps = [Step("answer", {}, "ok", reward) for reward in rewards]
    if status is FINISHED:
        steps[end] = replace(steps[end], finished=True)
    return Episode("a", f"a/train/{index}", "session", tuple(steps), status)


@dataclass
class Recorded:
    """What a reward function reads of an adapter."""

    episode: Episode
    environment: str = "a"
    reward: float | None = None


# The rule

EXAMPLES = [
    ("airlinerm", [0.1, -0.05, 0.2, 0.25], "last", 0.25),
    ("endlessterminals", [None, 1.0], "last", 1.0),
    ("icucoord", [0.9, 0.8, 0.7, 0.62], "last", 0.62),
    ("portmanager", [0.01, 0.02, None, 0.1], "total", 0.13),
    ("seta", [None, None, None, 0.65], "last", 0.65),
    ("seta", [0.0, 0.0, None, 0.4], "last", 0.4),
    ("swe_gym", [0.0, 0.0, 1.0], "last", 1.0),
    ("swe_rebench_v2", [None, None, None, 1.0], "last", 1.0),
]


@pytest.mark.parametrize(("environment", "rewards", "reduction", "expected"), EXAMPLES)
def test_real_environments_step_rewards_reduce_to_what_they_mean(
    environment: str, rewards: list[float | None], reduction: str, expected: float
) -> None:
    for status in (FINISHED, UNFINISHED, TRUNCATED):
        assert episode_reward(episode(rewards, status), RewardSpec(reduction=reduction)) == pytest.approx(expected)


@pytest.mark.parametrize("environment", ["seta", "swe_rebench_v2"])
def test_an_episode_that_never_submitted_counts_what_the_rule_says(environment: str) -> None:
    never = episode([None, None], UNFINISHED)
    assert episode_reward(never, RewardSpec()) == 0.0
    assert episode_reward(never, RewardSpec(unscored=None)) is None


def test_setas_second_submit_costs_nothing_because_the_first_finished_the_episode() -> None:
    twice = episode([None, 1.0, -0.1], end=1)
    assert [episode_reward(twice, RewardSpec(reduction=name)) for name in ("last", "total", "best", "mean")] == [
        1.0
    ] * 4


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("last", 0.0),
        ("total", 1.5),
        ("best", 1.0),
        ("mean", 0.5),
        (discounted(0.5), 1.25),
        (discounted(0), 1.0),
        (min, 0.0),
        (lambda rewards: rewards[0] - rewards[1], 0.5),
    ],
)
def test_the_reductions_are_over_the_scored_steps_in_order(reduction: Any, expected: float) -> None:
    assert episode_reward(episode([None, 1.0, None, 0.5, 0.0]), RewardSpec(reduction=reduction)) == expected


@pytest.mark.parametrize(
    ("status", "rewards", "options", "expected"),
    [
        (FINISHED, [None], {"unscored": 0.5}, None),
        (FINISHED, [None], {"unfinished": 0.5, "truncated": 0.5}, None),
        (UNFINISHED, [], {}, 0.0),
        (UNFINISHED, [], {"unscored": -1}, -1.0),
        (UNFINISHED, [0.25], {"unscored": -1}, 0.25),
        (UNFINISHED, [0.25], {"unfinished": None}, None),
        (UNFINISHED, [0.25], {"unfinished": -1}, -1.0),
        (UNFINISHED, [], {"unfinished": None, "unscored": -1}, None),
        (UNFINISHED, [], {"unfinished": 0.5, "unscored": -1}, 0.5),
        (UNFINISHED, [0.25], {"truncated": None}, 0.25),
        (TRUNCATED, [], {}, 0.0),
        (TRUNCATED, [0.25], {"truncated": None}, None),
        (TRUNCATED, [0.25], {"truncated": 0}, 0.0),
        (TRUNCATED, [0.25], {"unfinished": None}, 0.25),
        (FAILED, [1.0], {"unscored": 0}, None),
        (REFUSED, [], {"unscored": 0}, None),
    ],
)
def test_each_status_counts_what_the_rule_says_of_it(
    status: EpisodeStatus, rewards: list[float | None], options: dict[str, Any], expected: float | None
) -> None:
    assert episode_reward(episode(rewards, status), RewardSpec(**options)) == expected


def test_a_number_that_stands_for_the_reduced_reward_is_shaped_like_one() -> None:
    shaping: dict[str, Any] = {"step_penalty": 0.1, "scale": 2.0, "offset": 1.0}
    for options in ({"unfinished": 0.5}, {"unscored": 0.5}):
        silent = episode([None, None], UNFINISHED)
        assert episode_reward(silent, RewardSpec(**options, **shaping)) == pytest.approx(1.6)


def test_shaping_is_penalty_then_scale_then_offset_then_clip() -> None:
    spec = RewardSpec(step_penalty=0.25, scale=4.0, offset=1.0)
    assert episode_reward(episode([None, 1.0]), spec) == 3.0
    assert episode_reward(episode([None, 1.0]), RewardSpec(**spec.model_dump() | {"clip": (0, 2)})) == 2.0
    late = episode([None, 1.0, None, None], end=1)
    assert episode_reward(late, spec) == 3.0, "calls after the end cost nothing"


def test_success_is_judged_before_shaping() -> None:
    half = episode([0.5])
    assert is_success(half, RewardSpec(offset=-1, scale=-1, clip=(-9, -1))) is True
    assert is_success(episode([0.0]), RewardSpec(offset=1)) is False
    assert [is_success(half, RewardSpec(success_threshold=bound)) for bound in (0.25, 0.5, 0.75)] == [True, True, False]
    assert is_success(episode([], UNFINISHED), RewardSpec()) is False
    assert is_success(episode([1.0], FAILED), RewardSpec()) is None


def test_a_failure_that_the_environment_reports_in_its_metadata_makes_the_episode_failed() -> None:
    spec = RewardSpec(is_failure=reports_failure)
    broken = replace(episode([None, 1.0]).steps[0], metadata={"is_broken": True})
    first, last = replace(episode([1.0]), steps=(broken, *episode([1.0]).steps)), episode([1.0, None], end=0)
    assert (episode_status(first, spec), episode_reward(first, spec), is_success(first, spec)) == (FAILED, None, None)
    assert episode_reward(first, RewardSpec()) == 1.0
    late = replace(last, steps=(last.steps[0], broken))
    assert (episode_status(late, spec), episode_reward(late, spec)) == (FINISHED, 1.0), "nothing after the end counts"


def test_discounted_pickles_compares_and_shows_itself() -> None:
    one = discounted(0.9)
    assert pickle.loads(pickle.dumps(one)) == one == discounted(0.9) != discounted(0.8)
    assert (hash(one), repr(one)) == (hash(discounted(0.9)), "discounted(0.9)")
    for gamma in (-0.1, 1.1, "0.9", True, float("nan")):
        with pytest.raises(errors.SpecError, match=r"gamma=.*; accepted: a number from 0 to 1"):
            discounted(gamma)  # type: ignore[arg-type]  # what is refused


def test_the_docs_declare_what_can_be_declared_and_name_the_reductions_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DOCS.read_text(encoding="utf-8")
    block, recipe = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(block, DOCS.name, "exec"), namespace)
    assert [spec.reward.reduction for spec in namespace["spec"].environments.values()] == [
        "last", "total", discounted(0.95)
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    steps = (Step("up", {}, "1", 0.25), Step("up", {}, "2", 0.5))
    EpisodeRecord("output").add([Episode("a", "a/train/0", "s", steps, EpisodeStatus.UNFINISHED)])
    exec(compile(recipe, DOCS.name, "exec"), {})
    assert capsys.readouterr().out == "0.75\n"
    rows = re.findall(r'^\| (.+?) \| ([-\d., nul]+) \| `"(\w+)"` \| ([\d.]+) \|$', text, re.MULTILINE)
    shown = [(json.loads(f"[{rewards}]"), reduction, float(reward)) for _, rewards, reduction, reward in rows]
    assert len(shown) == 7
    assert all(row in [example[1:] for example in map(list, EXAMPLES)] for row in map(list, shown))


# Laws


@law
@given(episodes(), reward_specs, reward_specs)
def test_an_episode_is_judged_by_the_options_of_its_own_status_and_by_no_others(
    case: Episode, spec: RewardSpec, other: RewardSpec
) -> None:
    status = episode_status(case, spec)
    assert [status is one for one in EpisodeStatus].count(True) == 1
    assert status is case.status or (status is FAILED and spec.is_failure is not None)
    foreign: dict[EpisodeStatus, set[str]] = {
        FINISHED: {"unfinished", "truncated", "unscored"},
        UNFINISHED: {"truncated"},
        TRUNCATED: {"unfinished"},
        FAILED: set(RewardSpec.model_fields) - {"is_failure"},
        REFUSED: set(RewardSpec.model_fields),
    }
    changed = spec.model_dump() | other.model_dump(include=foreign[status])
    assert episode_reward(case, RewardSpec(**changed)) == episode_reward(case, spec)


@law
@given(episodes(), reward_specs)
def test_infrastructure_never_yields_a_number(case: Episode, spec: RewardSpec) -> None:
    for status in (FAILED, REFUSED):
        broken = replace(case, status=status)
        assert (episode_reward(broken, spec), is_success(broken, spec)) == (None, None)
    reported = Step("answer", {}, "ok", 1.0, {"is_broken": True})
    told = RewardSpec(**spec.model_dump() | {"is_failure": reports_failure})
    assert episode_reward(replace(case, steps=(reported, *case.steps)), told) is None


@law
@given(episodes(), reward_specs, st.data())
def test_an_unscored_step_never_changes_a_reduction(case: Episode, spec: RewardSpec, data: st.DataObject) -> None:
    free = RewardSpec(**spec.model_dump() | {"step_penalty": 0.0})
    place = data.draw(st.integers(0, len(case.steps)))
    more = (*case.steps[:place], Step("look", {}, "nothing"), *case.steps[place:])
    assert episode_reward(replace(case, steps=more), free) == episode_reward(case, free)


@law
@given(episodes(), reward_specs)
def test_nothing_after_the_end_counts(case: Episode, spec: RewardSpec) -> None:
    assert episode_reward(case, spec) == episode_reward(replace(case, steps=counted_steps(case)), spec)


@law
@given(episodes([FINISHED, UNFINISHED, TRUNCATED]), reward_specs)
def test_penalty_scale_offset_and_clip_compose_in_this_order(case: Episode, spec: RewardSpec) -> None:
    plain = spec.model_dump(exclude={"step_penalty", "scale", "offset", "clip"})
    reduced, shaped = episode_reward(case, RewardSpec(**plain)), episode_reward(case, spec)
    assert (reduced is None) == (shaped is None)
    if reduced is None or shaped is None:
        return
    expected = reduced - spec.step_penalty * len(counted_steps(case))
    expected = expected * spec.scale + spec.offset
    if spec.clip is not None:
        expected = sorted((spec.clip[0], expected, spec.clip[1]))[1]
    assert shaped == pytest.approx(expected)
    assert is_success(case, spec) is is_success(case, RewardSpec(**plain)), "success knows nothing of shaping"


@law
@given(st.lists(episodes(), max_size=8), reward_specs, st.randoms(use_true_random=False))
def test_permuting_a_batch_permutes_the_rewards(cases: list[Episode], spec: RewardSpec, rng: random.Random) -> None:
    order = rng.sample(range(len(cases)), len(cases))
    adapters = [Recorded(case) for case in cases]
    for function in (environment_reward("a", ["a"], spec), mixture_reward(["a"], {"a": spec})):
        rewards = function(environments=adapters)
        assert rewards == [episode_reward(case, spec) for case in cases]
        assert function(environments=[adapters[i] for i in order]) == [rewards[i] for i in order]


@law
@given(reward_specs)
def test_a_rule_round_trips(spec: RewardSpec) -> None:
    assert RewardSpec.model_validate(spec.model_dump()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    declared = EnvSpec("x/a", reward=spec)
    assert EnvSpec("x/a", reward=spec.model_dump()) == pickle.loads(pickle.dumps(declared)) == declared


# The declaration


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "lst"}, r"reduction='lst' \(did you mean 'last'\?\); accepted: 'last', 'total', 'best', 'mean'"),
        ({"reduction": 0.9}, r"reduction=0.9; accepted: .*discounted\(gamma\)"),
        ({"unfinished": "none"}, "accept 'reduce' .*; found 'none'"),
        ({"truncated": True}, "accept 'reduce' .*; found True"),
        ({"unscored": "reduce"}, "unscored='reduce'; accepted: a finite number, or None"),
        ({"unscored": float("nan")}, "unscored=nan; accepted"),
        ({"scale": 0}, "scale=0 makes all episodes equal; accepted: .*use_environment_reward=False"),
        ({"scale": float("inf")}, "scale=inf: input should be a finite number"),
        ({"offset": "1"}, "offset='1': input should be a valid number"),
        ({"clip": (1, 0)}, r"clip=\(1, 0\); accepted: \(low, high\) with low < high"),
        ({"clip": 1.0}, "clip=1.0; accepted"),
        ({"step_penalty": -1}, "step_penalty=-1: input should be greater than or equal to 0"),
        ({"is_failure": True}, "is_failure=True; accepted: a function from a step's metadata"),
        ({"reducton": "last"}, r"unknown option 'reducton' \(did you mean 'reduction'\?\); accepted: clip, "),
    ],
)
def test_a_rule_that_cannot_be_right_is_refused_with_what_is_accepted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.SpecError, match="^RewardSpec: .*" + message):
        RewardSpec(**options)
    with pytest.raises(errors.SpecError, match="^EnvSpec: .*" + message):
        EnvSpec("x/a", reward=options)


def test_a_rule_shows_what_it_changes() -> None:
    assert repr(EnvSpec("x/a")) == "EnvSpec(target='x/a')"
    declared = EnvSpec("x/a", reward=RewardSpec(reduction=discounted(0.9), unscored=None))
    assert repr(declared) == "EnvSpec(target='x/a', reward=RewardSpec(reduction=discounted(0.9), unscored=None))"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": lambda rewards: rewards[7]}, r"reduction .*\(1.0,\) raised IndexError"),
        ({"reduction": lambda _: None}, "raised TypeError"),
        ({"reduction": lambda _: float("nan")}, "gave nan; expected a finite number"),
        (
            {"is_failure": lambda metadata: metadata["code"] > 1},
            r"is_failure raised KeyError\('code'\) for the metadata",
        ),
    ],
)
def test_a_function_that_breaks_its_contract_names_the_environment(options: dict[str, Any], message: str) -> None:
    step = Step("answer", {}, "ok", 1.0, metadata={"level": 1})
    with pytest.raises(errors.RewardFunctionError, match="^environment 'a': .*" + message) as caught:
        episode_reward(replace(episode([1.0], UNFINISHED), steps=(step,)), RewardSpec(**options))
    assert caught.value.environment == "a"


def test_a_mixtures_functions_follow_each_environments_own_rule() -> None:
    rules = {"a": RewardSpec(reduction="total"), "b": RewardSpec(unscored=None, scale=2.0)}
    spec = MultiEnvSpec({name: EnvSpec(f"x/{name}", reward=rule) for name, rule in rules.items()})
    paid = [ToolOutput("x", 0.5), ToolOutput("x", 0.25)]
    adapters = [played("a", paid), played("b", paid), played("a", []), played("b", [])]
    a, b = spec.reward_funcs
    assert a(environments=adapters) == [0.75, None, 0.0, None]
    assert b(environments=adapters) == [None, 0.5, None, None]
    assert spec.reward_func(environments=adapters) == [0.75, 0.5, 0.0, None]
    assert [adapter.reward for adapter in adapters] == [0.25, 0.25, None, None], "TRL's attribute stays TRL's"


def test_an_adapter_of_another_making_gives_its_attribute() -> None:
    class Plain:
        environment = "a"
        reward = 0.5
        episode = "not a record"

    assert mixture_reward(["a"], {})(environments=[Plain()]) == [0.5]
    assert environment_reward("a", ["a"], RewardSpec(scale=2))(environments=[Plain()]) == [0.5]
    assert mixture_reward(["a"], {})(environments=[Recorded(episode([1.0]), reward=0.5)]) == [0.5]


def test_asyncgrpos_adapters_follow_the_rule_in_the_process_they_travel_to(climb_server: ORSServer) -> None:
    rule = RewardSpec(reduction=discounted(0.5), unscored=None)
    with MultiEnvSpec({"climb": EnvSpec(climb_server.url, reward=rule)}) as spec:
        factory = spec.async_trainer_kwargs()["environment_factory"]["climb"]
        travelled = pickle.loads(pickle.dumps(factory))
        with travelled.spec:
            adapter = travelled()
            adapter.reset(task_index=0)
            assert asyncio.run(adapter.get_reward()) is None
            adapter.reset(task_index=0)
            for _ in range(2):
                adapter.up(n=1)
            assert (asyncio.run(adapter.get_reward()), adapter.reward) == (0.25 + 0.5 * 0.5, 0.5)


# Warnings

WARNING = "environment 'a' pays several step rewards in one episode"


def told(batches: Sequence[Sequence[Episode]], spec: RewardSpec) -> list[str]:
    """The warnings of one environment's reward function, batch after batch."""
    function = environment_reward("a", ["a"], spec)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            function(environments=[Recorded(case) for case in batch])
    return [str(warning.message) for warning in caught]


def test_several_step_rewards_under_last_are_told_once_unless_last_was_said() -> None:
    dense = [episode([0.5, None, 0.25]), episode([0.1, 0.2])]
    (message,) = told([dense, dense], RewardSpec())
    assert message.startswith(f"{WARNING} (such as 0.5, 0.25)")
    assert 'RewardSpec(reduction="total")' in message
    assert told([dense], RewardSpec(reduction="last")) == told([dense], RewardSpec(reduction="total")) == []


@pytest.mark.parametrize("rewards", [[0.0, 1.0], [1.0, 1.0], [None, 1.0]])
def test_one_reward_among_zeros_is_no_cause_for_a_warning(rewards: list[float | None]) -> None:
    assert told([[episode(rewards)]], RewardSpec()) == []


def test_only_the_first_scored_episodes_are_looked_at() -> None:
    dense, sparse = episode([0.5, 0.25]), episode([1.0])
    silent = [episode([], UNFINISHED)] * NUM_FIRST_EPISODES
    assert told([[sparse] * NUM_FIRST_EPISODES, [dense]], RewardSpec()) == []
    assert len(told([[sparse] * (NUM_FIRST_EPISODES - 1), silent, [dense]], RewardSpec())) == 1
    assert told([[episode([0.5, 0.25], FAILED)]], RewardSpec()) == []


def groups(num_groups: int, make: Callable[[int], list[Episode]]) -> list[list[Episode]]:
    return [make(number) for number in range(num_groups)]


def test_groups_that_go_unscored_one_after_another_are_told_once_with_their_statuses() -> None:
    def silent(number: int) -> list[Episode]:
        return [episode([], status, index=number) for status in (UNFINISHED, UNFINISHED, FAILED)]

    spec = RewardSpec(unscored=None)
    run = groups(NUM_SILENT_GROUPS, silent)
    (message,) = told([*run, [episode([1.0])], *run], spec)
    assert f"{NUM_SILENT_GROUPS} groups in a row went unscored (20 unfinished, 10 failed)" in message
    assert "RewardSpec(unscored=0.0)" in message
    assert told(groups(3 * NUM_SILENT_GROUPS, silent), RewardSpec()) == []
    one_batch = [case for group in groups(NUM_SILENT_GROUPS, silent) for case in group]
    assert len(told([one_batch], spec)) == 1


def test_finished_groups_that_go_unscored_are_told_to_look_at_the_environment() -> None:
    run = groups(NUM_SILENT_GROUPS, lambda number: [episode([None], EpisodeStatus.FINISHED, index=number)])
    (message,) = told(run, RewardSpec())
    assert "look at what the environment pays" in message
    assert "unscored=0.0" not in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduction": "sum"}, r"did you mean 'total'\?"),
        ({"reduction": discounted}, r"did you mean discounted\(0.99\)\?"),
        ({"failed": 0.0}, "failed is no option: a failed episode is always None"),
    ],
)
def test_what_is_nearly_right_is_told_what_was_meant(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.SpecError, match=words):
        RewardSpec(**options)


def test_a_scored_group_between_and_an_outage_are_no_cause_for_a_warning() -> None:
    spec = RewardSpec(unscored=None)
    silent = groups(NUM_SILENT_GROUPS - 1, lambda number: [episode([], UNFINISHED, index=number)])
    assert told([*silent, [episode([1.0])], *silent], spec) == []
    assert told(groups(3 * NUM_SILENT_GROUPS, lambda _: [episode([], FAILED), episode([], REFUSED)]), spec) == []


@pytest.mark.parametrize(("reward", "scale"), [(1.0, 1e300), (1e30, -1e30), (3.5e38, 1.0)])
def test_a_reward_that_trl_could_not_hold_is_an_error_and_no_infinity(reward: float, scale: float) -> None:
    case = Episode("a", "a/train/0", "s", (Step("up", {}, "1", reward),), EpisodeStatus.UNFINISHED)
    with pytest.raises(errors.RewardFunctionError, match="the largest TRL can hold. Choose a smaller scale, or clip"):
        episode_reward(case, RewardSpec(scale=scale))
    assert episode_reward(case, RewardSpec(scale=scale, clip=(-1.0, 1.0))) in (-1.0, 1.0)
