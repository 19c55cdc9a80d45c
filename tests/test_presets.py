"""Presets say of three real environments what their published facts say, and the caller has the last word."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import EnvSpec, Episode, EpisodeStatus, Limits, RewardSpec, Step, errors, preset
from multienv.rewards import episode_reward, episode_status, is_success
from multienv.specs import PRESETS
from multienv.specs.presets import reports_infrastructure_failure
from multienv.types import JSONObject

FIXTURES = {"seta": "seta", "endless-terminals": "endlessterminals", "swe-rebench-v2": "swe_rebench_v2"}
DOCS = Path(__file__).parents[1] / "docs" / "presets.md"


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / f"{FIXTURES[name]}.json").read_text())
    return found


def played(
    rewards: Sequence[float | None], status: EpisodeStatus, *, end: int = -1, metadata: JSONObject | None = None
) -> Episode:
    """An episode with these step rewards; a finished one ends with the step `end`."""
    steps = [Step("bash", {}, "ok", reward, metadata) for reward in rewards]
    if status is EpisodeStatus.FINISHED:
        steps[end] = replace(steps[end], finished=True)
    return Episode("a", "a/train/0", "session", tuple(steps), status)


# The facts


def test_there_is_a_preset_for_each_and_its_name_is_its_key() -> None:
    assert {name: found.name for name, found in PRESETS.items()} == {name: name for name in FIXTURES}


@pytest.mark.parametrize("name", FIXTURES)
def test_a_preset_names_the_catalogue_entry_and_the_number_of_tasks(name: str) -> None:
    published = facts(name)
    assert preset(name).target == PRESETS[name].target == published["catalog"].split(" ")[0]
    assert preset(name).split in published["splits"]
    assert f"{published['splits']['train']:,}" in PRESETS[name].notes


EXAMPLES = [(name, example) for name in FIXTURES for example in facts(name)["reward_examples"]]


@pytest.mark.parametrize(("name", "example"), [pair for pair in EXAMPLES if pair[1]["return"] is not None])
def test_what_was_scored_is_worth_what_the_environment_says(name: str, example: dict[str, Any]) -> None:
    rewards, expected = example["rewards"], example["return"]
    end = rewards.index(expected)  # a second submission comes after the end
    rule = preset(name).reward
    assert episode_reward(played(rewards, EpisodeStatus.FINISHED, end=end), rule) == expected
    for status in (EpisodeStatus.UNFINISHED, EpisodeStatus.TRUNCATED):
        assert episode_reward(played(rewards[: end + 1], status), rule) == expected


@pytest.mark.parametrize(("name", "example"), [pair for pair in EXAMPLES if pair[1]["return"] is None])
def test_what_never_submitted_counts_nothing_earned_unless_it_is_declared_unscored(
    name: str, example: dict[str, Any]
) -> None:
    never = played(example["rewards"], EpisodeStatus.UNFINISHED)
    assert episode_reward(never, preset(name).reward) == 0.0
    assert episode_reward(never, preset(name, reward={"unscored": None}).reward) is None
    assert episode_reward(played(example["rewards"], EpisodeStatus.FAILED), preset(name).reward) is None
    assert episode_reward(played(example["rewards"], EpisodeStatus.FINISHED), preset(name).reward) is None


def test_setas_success_is_that_all_tests_passed_however_their_weights_add_up() -> None:
    rule = preset("seta").reward
    summed = sum([0.1] * 10)
    assert summed != 1.0
    outcomes = [is_success(played([reward], EpisodeStatus.FINISHED), rule) for reward in (0.0, 0.65, summed, 1.0)]
    assert outcomes == [False, False, True, True]


def test_an_outage_that_a_fork_of_swe_rebench_reports_in_metadata_is_no_verdict() -> None:
    rule = preset("swe-rebench-v2").reward
    for metadata, status, reward in (
        ({"invalid": True, "failure_class": "infrastructure"}, EpisodeStatus.FAILED, None),
        ({"ok": False, "exit_code": 1}, EpisodeStatus.FINISHED, 0.0),
        ({"invalid": True, "failure_class": "timeout"}, EpisodeStatus.FINISHED, 0.0),
    ):
        episode = played([0.0], EpisodeStatus.FINISHED, metadata=metadata)
        assert (episode_status(episode, rule), episode_reward(episode, rule)) == (status, reward)


@pytest.mark.parametrize("name", FIXTURES)
def test_limits_leave_time_for_what_the_environment_allows_itself(name: str) -> None:
    limits = preset(name).limits
    start = facts(name)["session_start"]
    assert limits.prompt_timeout_s > start.get("setup_timeout_s", 30)
    assert limits.tool_timeout_s > max(start.get("grader_timeout_s", 0), start.get("test_timeout_s", 0))
    assert limits.episode_timeout_s is not None
    assert limits.episode_timeout_s > 2 * limits.tool_timeout_s
    created_within = re.search(r"create timeout (\d+)", start["sandbox_s"])
    assert limits.open_timeout_s > float(created_within[1] if created_within else 30)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_horizon_is_one_that_the_facts_name(name: str) -> None:
    assert str(preset(name).limits.max_tool_calls) in re.findall(r"\d+", str(facts(name)["horizon"]))


# The caller


def test_the_callers_options_win_and_mappings_change_only_what_they_name() -> None:
    declared = preset(
        "swe-rebench-v2",
        target="http://127.0.0.1:1",
        num_tasks=8,
        limits={"max_tool_calls": 9, "max_sessions": 4},
        reward={"scale": 2.0},
    )
    base = preset("swe-rebench-v2")
    assert (declared.target, declared.num_tasks) == ("http://127.0.0.1:1", 8)
    assert declared.limits == base.limits.model_copy(update={"max_tool_calls": 9, "max_sessions": 4})
    assert declared.reward == base.reward.model_copy(update={"scale": 2.0})
    assert declared.reward.is_failure is reports_infrastructure_failure


def test_whole_declarations_replace_those_of_the_preset() -> None:
    declared = preset("seta", limits=Limits(max_sessions=2), reward=RewardSpec(scale=2.0))
    assert (declared.limits, declared.reward) == (Limits(max_sessions=2), RewardSpec(scale=2.0))


@given(
    st.sampled_from(sorted(FIXTURES)),
    st.dictionaries(
        st.sampled_from(sorted(set(Limits.model_fields) - {"failure_threshold", "max_observation_chars"})),
        st.integers(1, 5000),
    ),
)
def test_each_limit_is_the_callers_else_the_presets_else_the_default(name: str, given: dict[str, Any]) -> None:
    made, base = preset(name, limits=given).limits, preset(name).limits
    assert {option: getattr(made, option) for option in given} == given
    assert all(getattr(made, option) == getattr(base, option) for option in set(Limits.model_fields) - set(given))


def test_presets_are_as_good_as_written_out_and_cannot_be_changed() -> None:
    for name, found in PRESETS.items():
        assert preset(name) == EnvSpec(found.target, **found.options)
        assert pickle.loads(pickle.dumps(preset(name))) == preset(name)
        with pytest.raises(FrozenInstanceError):
            found.target = "a/b"  # type: ignore[misc]
        with pytest.raises(TypeError):
            found.options["split"] = "test"  # type: ignore[index]
    with pytest.raises(TypeError):
        PRESETS["mine"] = PRESETS["seta"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SETA", "there is no preset 'SETA' (did you mean 'seta'?); known: seta, endless-terminals, swe-rebench-v2"),
        ("endless_terminals", "(did you mean 'endless-terminals'?)"),
        ("swerebench-v2", "(did you mean 'swe-rebench-v2'?)"),
        ([], "there is no preset []; known: seta, "),
    ],
)
def test_an_unknown_preset_is_answered_with_the_nearest(name: Any, message: str) -> None:
    with pytest.raises(errors.SpecError, match=re.escape(message)):
        preset(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"max_toolcalls": 1}}, "unknown option 'max_toolcalls' (did you mean 'max_tool_calls'?)"),
        ({"limits": {3: 1}}, "Limits is given as a mapping with the key 3"),
        ({"reward": {"reduction": "sum"}}, "reduction='sum' (did you mean 'total'?)"),
        ({"limits": None}, "limits=None"),
        ({"num_task": 3}, "unknown option 'num_task' (did you mean 'num_tasks'?)"),
    ],
)
def test_an_option_that_cannot_be_right_is_said_as_for_any_environment(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.SpecError, match=re.escape(message)):
        preset("seta", **options)


# The page


def test_the_code_of_the_page_on_presets_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCS.read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    expected = re.findall(r"^ *print\(.*\) +# (.*)$", text, re.MULTILINE)
    assert len(expected) == 4
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("name", FIXTURES)
def test_the_table_of_the_page_shows_what_each_preset_sets(name: str) -> None:
    table = DOCS.read_text().partition("## Replicas")[0]
    (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", table, re.MULTILINE)
    declared = preset(name)
    limits = declared.limits
    assert [cell.strip() for cell in row.split("|")] == [
        f"`{declared.target}`",
        f"{facts(name)['splits']['train']:,}",
        str(limits.max_tool_calls),
        *(
            f"{seconds:,.0f} s"
            for seconds in (
                limits.open_timeout_s,
                limits.prompt_timeout_s,
                limits.tool_timeout_s,
                limits.episode_timeout_s or 0,
            )
        ),
    ]
