"""The demo, cut short; its full length is `make demo`."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openreward.environments import Server
from rich.console import Console

from multienv import Episode, EpisodeStatus, RewardSpec, Step, errors
from multienv.demo.rewards import REWARDS
from multienv.demo.run import run_demo
from multienv.offline import policy as offline
from multienv.reporting import read_episodes
from multienv.reporting import summary_table as table
from multienv.rewards import episode_reward
from tests.strategies import episodes

ROOT = Path(__file__).parent.parent

RECIPE = dataclasses.replace(offline.RECIPE, num_steps=60)
"""A tenth of the steps that the demo takes: enough for tool calls, some of them good ones."""


def cells(shown: str) -> dict[str, list[str]]:
    """The rows of a table by their labels."""
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in shown.splitlines() if line[:1] == "│"]
    return {label: values for label, *values in rows}


def rendered(played: list[Episode], rewards: dict[str, RewardSpec]) -> dict[str, list[str]]:
    file = io.StringIO()
    Console(width=80, file=file).print(table(played, rewards))
    return cells(file.getvalue())


def test_the_demo_trains_on_three_servers_and_leaves_nothing_open(tmp_path: Path) -> None:
    file = io.StringIO()
    run_demo(
        max_steps=2,
        seed=0,
        output_dir=tmp_path / "out",
        console=Console(width=120, file=file),
        cache_dir=tmp_path / "cache",
        recipe=RECIPE,
    )
    printed = file.getvalue()
    assert str(tmp_path / "out") in printed
    assert "sessions still open: 0" in printed
    assert (tmp_path / "out" / "model" / "config.json").exists()
    played = read_episodes(tmp_path / "out")
    assert {episode.environment for episode in played} == set(REWARDS)
    assert [episode.reward for episode in played] == [
        pytest.approx(episode_reward(episode, REWARDS[episode.environment])) for episode in played
    ]
    shown = cells(printed)
    assert shown["rollouts"] == ["32"] * 3
    assert all(float(num_calls) > 0 for num_calls in shown["tool calls per rollout"])
    assert any(int(num_finished) > 0 for num_finished in shown["finished"])
    logged = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()][:2]
    for metric, label in (
        ("tool_calls", "tool calls per rollout"),
        ("tool_failures", "of them failed"),
        ("turns", "turns per rollout"),
        ("completion_tokens", "completion tokens per rollout"),
    ):
        means = [sum(entry[f"env/{name}/{metric}"] for entry in logged) / len(logged) for name in REWARDS]
        assert [float(value) for value in shown[label]] == pytest.approx(means, abs=0.006)
    dead = [sum(entry[f"env/{name}/zero_signal_groups"] for entry in logged) / 4 for name in REWARDS]
    assert shown["groups without a signal"] == [f"{share:.1%}" for share in dead]
    assert sum(float(share.rstrip("%")) for share in shown["share of all tokens"]) == pytest.approx(100, abs=0.2)
    assert shown["retries to open a session"] == ["0"] * 3


@given(st.lists(episodes(), max_size=8))
def test_the_statuses_in_the_table_are_as_many_as_the_rollouts(played: list[Episode]) -> None:
    shown = rendered(played, {"a": RewardSpec(), "never played": RewardSpec()})
    assert shown["rollouts"] == [str(len(played)), "0"]
    assert sum(int(shown[status.value][0]) for status in EpisodeStatus) == len(played)


def test_the_table_tells_what_infrastructure_ended_from_what_the_policy_did_badly() -> None:
    climbed = (Step("step", {}, "rung 1", reward=0.5), Step("stop", {}, "no such tool", refused=True))
    half = Episode("climb", "climb/train/0", "s", climbed, EpisodeStatus.UNFINISHED, training_step=0, reward=0.5)
    down = [
        Episode("echo", f"echo/train/{index}", None, (), status, training_step=index)
        for index, status in enumerate((EpisodeStatus.FAILED, EpisodeStatus.REFUSED))
    ]
    shown = rendered([half, *down], {"echo": REWARDS["echo"], "climb": REWARDS["climb"]})
    assert shown["tasks"] == ["2", "1"]
    assert shown["scored"] == ["0.0%", "100.0%"]
    assert (shown["failed"], shown["refused"], shown["unfinished"]) == (["1", "0"], ["1", "0"], ["0", "1"])
    assert shown["success"] == ["-", "0.0%"]
    assert shown["mean reward, first fifth of the steps"] == ["-", "0.50"]
    assert (shown["mean reward, last fifth"], shown["change"]) == (["-", "-"], ["-", "-"])
    assert (shown["tool calls per rollout"], shown["of them failed"]) == (["0.00", "2.00"], ["0.00", "1.00"])
    assert shown["ms to open a session"] == ["-", "0.00"]


def test_the_table_counts_groups_that_teach_nothing_and_shares_tokens() -> None:
    def group(number: int, *rewards: float | None) -> list[Episode]:
        one = Episode("echo", "echo/train/0", "s", (), EpisodeStatus.FINISHED, num_completion_tokens=1, num_retries=2)
        return [replace(one, training_step=0, group=number, reward=reward) for reward in rewards]

    played = [*group(0, 1.0, 0.0), *group(1, None, None), *group(2, 1.0, 1.0), *group(3, 1.0, None)]
    long = replace(played[0], environment="climb", num_completion_tokens=24, completion=({"role": "assistant"},) * 3)
    shown = rendered([*played, long], {"echo": REWARDS["echo"], "climb": REWARDS["climb"]})
    assert shown["groups without a signal"] == ["75.0%", "100.0%"]
    assert shown["share of all tokens"] == ["25.0%", "75.0%"]
    assert shown["turns per rollout"] == ["0.00", "3.00"]
    assert shown["retries to open a session"] == ["16", "2"]


def test_the_help_of_the_command_line_loads_nothing_heavy() -> None:
    program = (
        "import sys; from multienv import cli\n"
        "assert not {'torch', 'trl', 'datasets', 'transformers', 'openreward'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=ROOT)


def test_an_error_of_the_library_is_shown_without_a_traceback(tmp_path: Path) -> None:
    program = (
        "from multienv import cli, errors\n"
        "@cli.app.command()\n"
        "def broken() -> None:\n"
        "    raise errors.SpecError('what was wrong; what is accepted')\n"
        "import sys; sys.argv = ['multienv', 'broken']; cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stderr.strip()) == (2, "error: what was wrong; what is accepted")


@pytest.mark.parametrize(
    ("options", "complaint"), [((), "file' cannot be written"), (("--curriculum", "none"), "curriculum='none'")]
)
def test_the_command_line_hands_its_options_to_the_demo(
    options: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "multienv.cli", "demo", "--output-dir", str(tmp_path / "file"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "500"},
    )
    assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr


def test_an_output_folder_that_cannot_be_made_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.SpecError, match="output_dir='.*file' cannot be written: Not a directory; choose"):
        run_demo(max_steps=1, seed=0, output_dir=tmp_path / "file", console=Console(file=io.StringIO()))


def test_a_server_keeps_its_sessions_where_the_demo_counts_them() -> None:
    assert "_active_envs" in inspect.getsource(Server.__init__)
