"""The page of a report, in a real browser: it asks nobody for anything, and what environments say stays text."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from multienv import Episode, EpisodeStatus, Step, errors
from multienv.commands.report import run_report
from multienv.reporting import EpisodeRecord, page, write_report
from multienv.reporting.page import make_report, write
from multienv.reporting.record import file_of
from tests.support.records import MIXTURE, write_evaluation, write_training
from tests.support.tab import Tab

HOSTILE = (
    '</script><img src=x onerror="window.pwned=1"><script>window.pwned=1</script>',
    "<!-- <script> \u2028\u2029 ]]> &lt;b&gt; {{style}} ${1} \\u003c",
    "\x00\x07\x1b[31m\u202egnp\u202c \ud800 \udfff \U0001f642",
    "javascript:window.pwned=1",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no chromium, so nothing has looked at the page of a report")
        pytest.skip("no chromium on the PATH to look at the page with")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    opened = Tab(browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce"))
    yield opened
    opened.tab.close()
    assert opened.said == []
    assert len(opened.asked) == 1


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("training")
    write_training(directory, num_steps=12, evaluates_every=6)
    return write_report(directory)


def record(directory: Path, episodes: Sequence[Episode]) -> Path:
    EpisodeRecord(directory).add(episodes)
    return write_report(directory)


def test_the_page_of_a_training_shows_its_figures_and_asks_for_nothing(tab: Tab, training: Path) -> None:
    shown = tab.show(training)
    titles = ["Environments", "Learning", "Mixture", "How rollouts ended", "Tasks", "Latencies", "Failures", "Episodes"]
    assert shown.locator("h2").all_inner_texts() == titles
    described = (Path(__file__).parents[1] / "docs" / "report.md").read_text()
    assert re.findall(r"^\| (\w[^|]*) \|", described, re.MULTILINE)[2:] == titles
    assert shown.locator("#environments tbody th").all_inner_texts() == sorted(MIXTURE)
    shown.locator("#curves svg[role=img]").nth(3).wait_for()
    shown.locator("#mixture .line.asked").nth(2).wait_for()
    assert "log.jsonl" in shown.locator("#mixture .note").first.inner_text()
    assert shown.locator("#head dd").all_inner_texts()[:3] == ["12", "576", "3"]
    shown.locator("#curves svg[role=img]").first.hover()
    assert shown.locator("#tip .tip-row").count() == 3
    shown.locator(".legend .chip").first.click()
    assert shown.locator("#curves figure").first.locator(".line").count() == 2
    shown.locator("#curves svg[role=img]").first.focus()
    shown.keyboard.press("End")
    assert shown.locator("#tip strong").inner_text() == "step 11"
    shown.locator("#curves summary").first.click()
    shown.locator("#curves figure").first.locator("tbody tr").nth(11).wait_for()
    shown.get_by_role("button", name="evaluation", exact=True).click()
    assert shown.locator("#head dd").nth(1).inner_text() == "144"
    assert shown.locator("#mixture").count() == 0


def test_filters_keys_and_pages_of_the_reader_work(tab: Tab, training: Path) -> None:
    shown = tab.show(training)
    episodes = json.loads(shown.locator("#record").inner_text())
    said = shown.locator(".count")

    def count(**fits: Any) -> int:
        return sum(all(each[key] == value for key, value in fits.items()) for each in episodes)

    assert said.inner_text() == f"{len(episodes):,} episodes."
    assert tab.rows() == 40
    shown.locator("select[name=environment]").select_option("seta")
    assert said.inner_text().startswith(f"{count(environment='seta'):,} of ")
    shown.locator("select[name=status]").select_option("failed")
    assert tab.rows() == count(environment="seta", status="failed") > 0
    assert set(shown.locator(".list .pill").all_inner_texts()) == {"failed"}
    shown.get_by_role("button", name="Reset").click()
    shown.locator("input[name=low]").fill("1")
    ones = count(reward=1.0)
    assert tab.counts(ones)
    shown.get_by_role("button", name="Reset").click()
    shown.keyboard.press("/")
    shown.keyboard.type("Nobody ANSWERS at the server of seta")
    wanted = [each for each in episodes if each["reason"].startswith("nobody answers at the server of seta")]
    assert tab.counts(len(wanted))
    shown.get_by_role("button", name="Reset").click()
    shown.locator("select[name=phase]").select_option("evaluation")
    assert said.inner_text().startswith("144 of ")
    title = shown.locator(".detail h3")
    shown.locator(".list").focus()
    shown.keyboard.press("ArrowDown")
    assert shown.locator(".list [aria-selected=true]").get_attribute("id") == f"episode-{wanted_place(episodes, 1)}"
    shown.keyboard.press("ArrowRight")
    assert shown.locator(".finder .pager span").inner_text() == "41\N{EN DASH}80 of 144"
    shown.get_by_role("button", name="All of this task").click()
    assert set(shown.locator(".list .task").all_inner_texts()) == {title.inner_text()}
    shown.locator("#failures tbody button").first.click()
    assert shown.locator("select[name=status]").input_value() in {"failed", "truncated"}
    shown.locator(".tab", has_text="message").click()
    assert shown.locator(".message .role").first.inner_text() == "assistant"


def wanted_place(episodes: list[Any], at: int) -> int:
    return int([each["place"] for each in episodes if each["phase"] == "evaluation"][at])


def test_an_evaluation_shows_environments_and_tasks_instead_of_curves(tab: Tab, tmp_path: Path) -> None:
    write_evaluation(tmp_path, 1)
    shown = tab.show(write_report(tmp_path))
    assert shown.locator("h2").all_inner_texts() == ["Environments", "Tasks", "Latencies", "Failures", "Episodes"]
    assert shown.locator("#head dt").first.inner_text() == "Tasks"
    rates = shown.locator("#tasks tbody .share").all_inner_texts()
    assert [float(rate.strip("%\n")) for rate in rates] == sorted(float(rate.strip("%\n")) for rate in rates)
    shown.get_by_role("button", name="Success").nth(1).click()
    assert shown.locator("#tasks tbody .share").first.inner_text().strip() == "100%"
    shown.locator("#tasks tbody button").first.click()
    assert tab.rows() >= 1


def hostile(text: str, place: int) -> Episode:
    step = Step(text, {text: text, "n": [text]}, text, reward=float("nan"), metadata={text: text}, duration_s=0.1)
    talk = (
        {"role": text, "content": text, text: text},
        {"role": "assistant", "content": [{"type": "text", "text": text}], "reasoning_content": text},
        {"role": "assistant", "tool_calls": [{"function": {"name": text, "arguments": text}}, text]},
    )
    fields: dict[str, Any] = {"reason": text, "error": text, "completion": talk, "training_step": place % 2}
    status = list(EpisodeStatus)[place % len(EpisodeStatus)]
    return Episode(text, f"{text}/train/0", text, (step, step), status, reward=float("inf"), **fields)


def test_what_environments_say_changes_nothing_but_its_own_text(tab: Tab, tmp_path: Path) -> None:
    texts = [*HOSTILE, "long " * 200_000]
    shown = tab.show(record(tmp_path, [hostile(text, place) for place, text in enumerate(texts)]))
    assert tab.rows() == len(texts)
    for place in range(len(texts)):
        shown.locator(".list li").nth(place).click()
        shown.locator(".tab").nth(place % 2).click()
        assert shown.locator(".message").count() == 3
        shown.locator(".detail summary:visible").first.click()
    assert shown.evaluate("window.pwned") is None
    assert shown.locator("img, iframe, object, embed, link, svg a, [onerror]").count() == 0
    assert shown.locator("script").count() == 3
    shown.locator(".list li").first.click()
    assert shown.locator(".step pre:visible").count() == 4
    assert shown.locator(".step pre").nth(1).inner_text() == HOSTILE[0]
    assert shown.locator(".end b").first.inner_text() == "reward nan"
    assert shown.locator(".list b").first.inner_text() == "inf"
    shown.locator("input[name=search]").fill(HOSTILE[0])
    assert tab.counts(1)


@pytest.mark.parametrize(
    "episodes", [[], [Episode("a", "a/t/0", None, (), EpisodeStatus.REFUSED)]], ids=["none", "one"]
)
def test_a_record_with_next_to_nothing_has_a_page(tab: Tab, tmp_path: Path, episodes: list[Episode]) -> None:
    file_of(tmp_path, 0).touch()
    shown = tab.show(record(tmp_path, episodes))
    assert tab.rows() == len(episodes)
    assert ("no episode yet" in shown.locator("#head").inner_text()) == (not episodes)


def test_thirty_environments_and_a_single_step_can_be_shown(tab: Tab, tmp_path: Path) -> None:
    def played(n: int) -> Episode:
        return Episode(
            f"environment-{n:02}", f"e/t/{n}", None, (), EpisodeStatus.FINISHED, training_step=0, reward=n * 1e307
        )

    shown = tab.show(
        record(tmp_path, [played(n) for n in range(18) for _ in range(n + 1)] + [played(n) for n in range(18, 30)])
    )
    assert shown.locator("#environments tbody tr").count() == 30
    assert shown.locator(".legend .chip").count() == 30
    assert shown.locator(".legend .chip[aria-pressed=true]").count() == 8
    shown.get_by_role("button", name="All", exact=True).click()
    assert shown.locator("#curves figure").first.locator(".line").count() == 30
    assert "NaN" not in shown.content().split("<script type")[0]
    shown.locator("#endings svg[role=img]").nth(29).wait_for()


def test_the_dark_and_the_narrow_page_fit(browser: Any, training: Path) -> None:
    for width, scheme in ((1280, "dark"), (1024, "light"), (420, "light")):
        opened = Tab(browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme))
        shown = opened.show(training)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        shown.close()
        assert opened.said == []


def test_the_policy_of_the_page_forbids_every_load_and_every_other_program(browser: Any, training: Path) -> None:
    opened = Tab(browser.new_page())
    shown = opened.show(training)
    shown.evaluate("""() => {
        const add = (tag, fields) => document.body.append(Object.assign(document.createElement(tag), fields));
        add("img", { src: "https://example.org/picture" });
        add("iframe", { src: "https://example.org/frame" });
        add("script", { textContent: "window.pwned = 1" });
        fetch("https://example.org/").catch(() => 0);
    }""")
    shown.wait_for_timeout(50)
    assert shown.evaluate("window.pwned") is None
    shown.close()
    assert opened.sent == []
    assert len(opened.said) >= 4
    assert all("Content Security Policy" in said for said in opened.said)


def test_the_program_of_the_page_never_makes_markup_of_a_text() -> None:
    scripts = [each for each in resources.files(page).iterdir() if each.name.endswith(".js")]
    assert sorted(each.name for each in scripts) == sorted(write.SCRIPTS)
    for each in scripts:
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|https?:(?!//www\.w3\.org/2000/svg)",
            each.read_text(),
        )
        assert found == [], each.name


def test_a_large_record_is_written_in_seconds_and_leaves_out_evenly(tmp_path: Path) -> None:
    num_lines = write_training(tmp_path, num_steps=10, evaluates_every=0)
    lines = [json.loads(line) for line in file_of(tmp_path, 0).read_text().splitlines()]
    with file_of(tmp_path, 0).open("a") as file:
        for step in range(10, 420):
            batch = lines[step % 10 * 48 :][:48]
            file.writelines(json.dumps(line | {"training_step": step}) + "\n" for line in batch)
    started = time.monotonic()
    report = make_report(tmp_path, max_episodes=300)
    assert time.monotonic() - started < 30
    assert (num_lines, report.num_episodes, report.num_in_page) == (480, 20_160, 300)
    assert report.figures[0].totals.rollouts == 20_160
    episodes = json.loads(re.findall(r'id="record">(.*?)</script>', report.html)[0])
    assert {each["environment"] for each in episodes} == set(MIXTURE)
    assert {each["status"] for each in episodes} == {line["status"] for line in lines}
    played = [each["step"] for each in episodes]
    assert played == sorted(played)
    assert max(after - before for before, after in itertools.pairwise(played)) < 30


def test_a_page_that_would_be_too_large_holds_fewer_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_evaluation(tmp_path, 1)
    monkeypatch.setattr(write, "MAX_EPISODE_CHARS", 40_000)
    report = make_report(tmp_path)
    assert 5 < report.num_in_page < report.num_episodes
    assert "are left out" in report.html


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file_of(tmp_path, 0).touch()
    assert write_report(tmp_path, tmp_path / "new" / "page.html").parent == tmp_path / "new"
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "taken", tmp_path / "file" / "page.html", tmp_path / "a\0b", tmp_path / ("n" * 999)):
        with pytest.raises(errors.RecordError, match="cannot be written: .*; give a path"):
            write_report(tmp_path, path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["episodes.jsonl", "file", "new", "taken"]
    assert (tmp_path / "file").read_text() == "kept"


def test_what_cannot_be_reported_says_why(tmp_path: Path) -> None:
    with pytest.raises(errors.RecordError, match="holds no episodes.jsonl"):
        write_report(tmp_path)
    file_of(tmp_path, 0).mkdir()
    with pytest.raises(errors.RecordError, match="episodes.jsonl cannot be read: Is a directory"):
        write_report(tmp_path)
    with pytest.raises(errors.SpecError, match="max_episodes=-1; accepted: 0 or more"):
        write_report(tmp_path, max_episodes=-1)
    assert [each.name for each in tmp_path.iterdir()] == ["episodes.jsonl"]


def test_the_newest_run_is_reported_unless_another_is_named(tmp_path: Path) -> None:
    first, second = EpisodeRecord(tmp_path), EpisodeRecord(tmp_path)
    played = Episode("a", "a/t/0", None, (), EpisodeStatus.FINISHED, training_step=0)
    first.add([played])
    second.add([replace(played, environment="b"), played])
    assert make_report(tmp_path).run == second.run
    assert [each.name for each in make_report(tmp_path).figures[0].environments] == ["a", "b"]
    assert make_report(tmp_path, run=first.run).num_episodes == 1


def test_the_command_says_where_the_page_is(tmp_path: Path) -> None:
    write_evaluation(tmp_path, 1)
    out = io.StringIO()
    console = Console(file=out, width=40)
    assert run_report(tmp_path, output=None, max_episodes=10, console=console) == 0
    assert out.getvalue() == f"report: {tmp_path / 'report.html'}\n72 episodes, 62 of them in the figures only\n"
    out.truncate(out.seek(0))
    assert run_report(tmp_path, output=tmp_path / "x.html", max_episodes=10, console=console, is_json=True) == 0
    document = json.loads(out.getvalue())
    assert (document["path"], document["num_episodes"], document["num_in_page"]) == (str(tmp_path / "x.html"), 72, 10)
    assert document["phases"][0]["environments"][0]["totals"]["rollouts"] == 24
