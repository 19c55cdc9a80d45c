"""The figures of a report: laws of counting, whatever a record holds, and what the log adds to them."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import Episode, EpisodeStatus, Step
from multienv.reporting.page import Log, figures_of, read_log
from multienv.reporting.page.causes import general
from multienv.reporting.page.choice import in_order_of_choice, spread_out
from multienv.reporting.page.curves import MAX_POINTS, STATUSES, bins_of
from multienv.reporting.page.figures import phase_of
from multienv.reporting.page.reader import MAX_PARTS, pretty, shown
from multienv.reporting.page.spread import latency_of, quantile, spread_of
from multienv.reporting.page.write import embedded
from tests import strategies

numbers = st.none() | st.floats()
steps = st.builds(
    Step,
    st.sampled_from(["look", "</script>"]),
    st.dictionaries(st.text(max_size=3), strategies.json_values, max_size=2),
    st.text(max_size=5),
    reward=numbers,
    refused=st.booleans(),
    duration_s=st.floats(),
    terminal=st.booleans(),
)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    name, status = draw(st.sampled_from("abc")), draw(st.sampled_from(EpisodeStatus))
    is_broken = status in (EpisodeStatus.FAILED, EpisodeStatus.REFUSED)
    return Episode(
        name,
        f"{name}/train/{draw(st.integers(0, 3))}",
        None,
        tuple(draw(st.lists(steps, max_size=2))),
        status,
        reason=draw(st.sampled_from(["", "lost after 3 s", "lost after 4 s"])),
        open_s=draw(st.floats()),
        started_at=draw(st.floats(0, 2e9)),
        training_step=draw(st.none() | st.integers(0, 300)),
        is_evaluation=draw(st.booleans()),
        reward=None if is_broken else draw(numbers),
        num_completion_tokens=draw(st.integers(0, 1000)),
    )


records = st.lists(episodes(), max_size=25)


@given(records)
def test_every_rollout_is_counted_once_in_each_figure(played: list[Episode]) -> None:
    phases = figures_of(played)
    assert {phase.name: phase.totals.rollouts for phase in phases} == Counter(map(phase_of, played))
    for phase in phases:
        own = [episode for episode in played if phase_of(episode) == phase.name]
        stepped = Counter(episode.environment for episode in own if episode.training_step is not None)
        for each in phase.environments:
            assert sum(each.totals.statuses) == each.totals.rollouts
            assert sum(point.rollouts for point in each.curve) == stepped[each.name]
            assert all(sum(point.statuses) == point.rollouts for point in each.curve)
        for totals in ("rollouts", "tasks", "scored", "tokens", "tool_calls", "tool_failures"):
            assert sum(getattr(each.totals, totals) for each in phase.environments) == getattr(phase.totals, totals)
        by_status = Counter(episode.status for episode in own)
        assert phase.totals.statuses == tuple(by_status[status] for status in STATUSES)
        assert sum(task.rollouts for task in phase.tasks) == len(own)
        bad = sum(by_status[status] for status in EpisodeStatus if status not in ("finished", "unfinished"))
        assert sum(cause.count for cause in phase.causes) == bad


@given(records)
def test_shares_add_up_to_one(played: list[Episode]) -> None:
    for phase in figures_of(played):
        assert math.fsum(each.share for each in phase.environments) == pytest.approx(1)
        assert math.fsum(each.token_share for each in phase.environments) == pytest.approx(min(1, phase.totals.tokens))
        by_bin: dict[int, float] = defaultdict(float)
        for each in phase.environments:
            for point in each.curve:
                by_bin[point.place] += point.share
        assert list(by_bin.values()) == pytest.approx([1] * len(phase.bins))


@given(records)
def test_all_that_is_said_fits_into_json_and_no_part_of_it_is_html(played: list[Episode]) -> None:
    said = [shown(episode, place) for place, episode in enumerate(played)]
    written = embedded(said)
    assert json.loads(written) == said
    assert written.isascii()
    assert not {"<", ">", "&", "\n"} & set(written)


@given(st.lists(st.none() | st.floats()))
def test_a_mean_lies_in_its_band_and_the_band_within_the_numbers(values: list[float | None]) -> None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    spread = spread_of(values)
    if spread is None:
        assert not known
        return
    assert spread.count == len(known)
    assert (spread.least, spread.greatest) == (min(known), max(known))
    assert spread.least <= spread.low <= spread.mean <= spread.high <= spread.greatest


@given(st.lists(st.floats(1e-6, 1e6), min_size=1))
def test_a_median_has_as_many_below_as_above(values: list[float]) -> None:
    latency = latency_of(values)
    assert latency is not None
    assert min(values) <= latency.median <= latency.p95 <= latency.longest == max(values)
    assert sum(value <= latency.median * (1 + 1e-9) for value in values) >= len(values) / 2
    assert sum(value >= latency.median * (1 - 1e-9) for value in values) >= len(values) / 2
    assert quantile(sorted(values), 0) == min(values)


@given(st.lists(st.integers(0, 10_000)), st.integers(1, 50))
def test_bins_are_few_in_order_and_hold_every_step(values: list[int], most: int) -> None:
    bins = bins_of(values, most)
    assert len(bins) <= most
    assert [each.first for each in bins] == sorted(each.first for each in bins)
    assert all(before.last < after.first for before, after in itertools.pairwise(bins))
    assert all(sum(each.first <= value <= each.last for each in bins) == 1 for value in values)


@given(records, st.integers(0, 30))
def test_those_chosen_first_stand_for_all(played: list[Episode], count: int) -> None:
    order = in_order_of_choice(played)
    assert sorted(order) == list(range(len(played)))

    def kinds(places: list[int]) -> set[Any]:
        return {(phase_of(played[p]), played[p].environment, played[p].status) for p in places}

    every = kinds(order)
    assert len(kinds(order[:count])) >= min(count, len(every))


@given(st.integers(1, 400), st.data())
def test_those_chosen_lie_evenly_over_the_run(count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(1, count))
    places = sorted(spread_out(count)[:chosen])
    assert (
        max(after - before for before, after in zip([-1, *places], [*places, count], strict=True)) <= 4 * count / chosen
    )


def test_a_long_run_has_no_more_points_than_can_be_drawn() -> None:
    played = [Episode("a", "a/train/0", None, (), EpisodeStatus.FINISHED, training_step=n) for n in range(1234)]
    (phase,) = figures_of(played)
    assert len(phase.bins) == 95
    assert len(phase.environments[0].curve) <= MAX_POINTS
    assert {point.rollouts for point in phase.environments[0].curve} == {13, 12}


def test_an_episode_without_a_training_step_belongs_to_an_evaluation() -> None:
    played = Episode("a", "a/test/0", None, (), EpisodeStatus.FINISHED, training_step=None)
    (phase,) = figures_of([played])
    assert (phase.name, phase.bins, phase.environments[0].curve) == ("evaluation", (), ())


def test_failures_that_differ_in_ids_and_numbers_are_one() -> None:
    def failed(step: int, reason: str, error: str = "SessionError") -> Episode:
        status = EpisodeStatus.FAILED
        return Episode("a", "a/t/0", None, (), status, reason=reason, error=error, training_step=step)

    (phase,) = figures_of(
        [
            failed(4, "session 1f3a9cc02b7e4d55 was lost after 12.5 s"),
            failed(2, "session 99dac882-2158-424e-a1e7-c7a7d55481b2 was lost after 3 s"),
            failed(3, "the disk is full"),
        ]
    )
    lost, full = phase.causes
    assert (lost.count, lost.first, lost.last, lost.error) == (2, 2, 4, "SessionError")
    assert lost.reason == "session 1f3a9cc02b7e4d55 was lost after 12.5 s"
    assert (full.count, full.reason) == (1, "the disk is full")
    assert general("a deadbeef facade, feed 0x1f") == "a deadbeef facade, feed #"


def write_log(path: Path, entries: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    path.write_text(text if path.suffix == ".jsonl" else json.dumps({"log_history": entries}))


def asked(step: int, **groups: Any) -> dict[str, Any]:
    return {"step": step, "loss": 0.1} | {f"env/{name}/groups_asked": number for name, number in groups.items()}


def test_the_log_says_which_shares_were_asked_for(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [asked(1, a=3, b=1), "half", asked(2, a=1, b="nan"), {"step": 3, "loss": 1}])
    log = read_log(tmp_path)
    assert (log.source, log.has_asked) == ("log.jsonl", True)
    assert [(entry.step, entry.asked) for entry in log.entries] == [(1, {"a": 0.75, "b": 0.25}), (2, {"a": 1.0})]
    played = [Episode(n, f"{n}/t/0", None, (), EpisodeStatus.FINISHED, training_step=s) for n in "ab" for s in (0, 1)]
    (phase,) = figures_of(played, log)
    assert {each.name: each.asked for each in phase.environments} == {"a": 0.875, "b": 0.125}
    assert [point.asked for point in phase.environments[1].curve] == [0.25, 0.0]
    assert [each.share for each in phase.environments] == [0.5, 0.5]


def test_without_a_log_the_newest_checkpoint_says_it(tmp_path: Path) -> None:
    for step in (9, 80, 10):
        write_log(tmp_path / f"checkpoint-{step}" / "trainer_state.json", [asked(step, a=1)])
    (tmp_path / "checkpoint-99").mkdir()
    log = read_log(tmp_path)
    assert (log.source, log.entries[0].step) == ("checkpoint-80/trainer_state.json", 80)
    (tmp_path / "checkpoint-80" / "trainer_state.json").write_text("{half")
    assert read_log(tmp_path).source == "checkpoint-10/trainer_state.json"
    assert read_log(tmp_path / "checkpoint-99") == Log()


def test_a_log_from_before_the_run_is_another_runs(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [asked(1, a=1)])
    os.utime(tmp_path / "log.jsonl", (1000, 1000))
    assert read_log(tmp_path, since=999).has_asked
    assert not read_log(tmp_path, since=1001).has_asked


def test_successes_are_the_logs_where_it_speaks_of_the_whole_run(tmp_path: Path) -> None:
    def entry(step: int, success: float, failed: float) -> dict[str, Any]:
        figures = {"rollouts": 4.0, "success": success, "status/failed": failed}
        return {"step": step} | {f"env/a/{what}": value for what, value in figures.items()}

    played = [
        Episode("a", "a/t/0", None, (), EpisodeStatus.FINISHED, training_step=s, reward=1.0)
        for s in (0, 1)
        for _ in "1234"
    ]
    write_log(tmp_path / "log.jsonl", [entry(1, 0.5, 0.0), entry(2, 0.0, 0.5)])
    (phase,) = figures_of(played, read_log(tmp_path))
    assert phase.is_success_logged
    assert phase.totals.success == phase.environments[0].totals.success == pytest.approx(2 / 6)
    assert [point.success for point in phase.environments[0].curve] == [0.5, 0.0]
    write_log(tmp_path / "log.jsonl", [entry(1, 0.5, 0.0)])
    (phase,) = figures_of(played, read_log(tmp_path))
    assert not phase.is_success_logged
    assert phase.totals.success == 1.0


def test_arguments_are_shown_digit_by_digit_and_json_in_a_text_is_laid_out() -> None:
    assert pretty({"n": 12345678901234567890, "x": 1.0}) == '{\n  "n": 12345678901234567890,\n  "x": 1.0\n}'
    assert pretty('{"n":1}') == '{\n  "n": 1\n}'
    assert pretty("{half") == "{half"


def test_an_endless_episode_is_shown_from_both_ends() -> None:
    played = tuple(Step("look", {}, str(number)) for number in range(1, 1001))
    read = shown(Episode("a", "a/t/0", None, played, EpisodeStatus.FINISHED), 0)
    assert (len(read["steps"]), read["steps_left_out"], read["calls"]) == (MAX_PARTS, 800, 1000)
    assert [read["steps"][place]["number"] for place in (0, 99, 100, 199)] == [1, 100, 901, 1000]
