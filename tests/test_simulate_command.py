"""`multienv simulate`: what it shows and writes, and how it says what is wrong."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from multienv import cli
from multienv.curriculum.simulation import Simulation
from multienv.errors import MultiEnvError, SpecError
from multienv.simulate import read_simulation
from multienv.simulate.command import run_simulate
from multienv.simulate.show import sparkline

EXAMPLE = Path(__file__).parents[1] / "examples" / "mixture.yaml"

MINIMAL = """\
environments:
  seta:
    num_tasks: 9
    learner:
      start: 0.2
  swe:
    num_tasks: 9
batch: {num_batches: 12}
"""


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    path = tmp_path / "mixture.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Call the command line, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["multienv", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code if isinstance(left.value.code, int) else int(left.value.code is not None)


def shown(file: Path, width: int = 120, **options: Any) -> str:
    out = io.StringIO()
    run_simulate(file, console=Console(file=out, width=width), **options)
    return out.getvalue()


def test_the_example_is_short_and_goes_well() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 80
    simulation = read_simulation(EXAMPLE).run()
    assert simulation.batches_until(0.8) is not None
    assert {moment.dispatched.get("vault", 0) for moment in simulation.moments[42:60]} == {0, 1}


def test_one_curriculum_is_shown_with_its_course_its_account_and_plots() -> None:
    text = shown(EXAMPLE)
    simulation = read_simulation(EXAMPLE).run()
    assert f"the worst environment reaches 80% at batch {simulation.batches_until(0.8)}" in text
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows if len(row) == 7 and row[0].isdecimal()] == [str(20 * row) for row in range(10)]
    for name, line in simulation.account.lines.items():
        (row,) = (row for row in rows if row[:2] == [name, f"{line.asked:,.0f}"])
        assert [row[3], row[5], row[6]] == [f"{line.dispatched:,}", f"{line.finished:,}", f"{line.scored:,}"]
        assert [name, sparkline([each[name] for each in simulation.successes])] in [row[:2] for row in rows]


def test_the_whole_command_shows_and_writes_what_was_asked_for(
    mixture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, figures = mixture.with_name("plot.svg"), mixture.with_name("figures.json")
    options: list[str | Path] = [
        "--seed",
        "5",
        "--num-batches",
        "4",
        "--goal",
        "0.1",
        "--plot",
        plot,
        "--json-file",
        figures,
    ]
    assert called(monkeypatch, "simulate", mixture, *options) == 0
    printed = capsys.readouterr()
    assert "the worst environment reaches 10% at batch 0" in printed.out
    assert printed.err == ""
    assert ET.parse(plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    written = json.loads(figures.read_text(encoding="utf-8"))
    simulation = read_simulation(mixture).run(seed=5, num_batches=4)
    assert written == {"file": simulation.to_dict()}
    assert Simulation.from_dict(written["file"]).to_dict() == simulation.to_dict()


def test_all_figures_are_one_json_document_and_nothing_else(
    mixture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "simulate", mixture, "--num-batches", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"file": read_simulation(mixture).run(num_batches=4).to_dict()}


def test_several_curricula_are_compared_in_one_table(mixture: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.PNG"
    text = shown(mixture, curricula=["file", "uniform", "adaptive"], num_batches=60, plot=plot)
    spec = read_simulation(mixture)
    for name, curriculum in {"file": None, "uniform": "uniform", "adaptive": "adaptive"}.items():
        until = spec.run(curriculum, num_batches=60).batches_until(0.8)
        assert until is not None
        assert [name, str(until)] in [line.split()[:2] for line in text.splitlines()]
        assert f"{name}: the worst environment reaches 80% at batch {until}" in text
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_same_simulation_is_drawn_to_the_same_svg(mixture: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        shown(mixture, plot=tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_goal_that_is_not_reached_is_said_with_the_reason(mixture: Path) -> None:
    assert re.search(r"does not reach 80% in 1 batches: '(seta|swe)' is at 2\d%", shown(mixture, num_batches=1))
    mixture.write_text(MINIMAL.replace("start: 0.2", "ceiling: 0.7"), encoding="utf-8")
    assert "cannot reach 80%: the ceiling of 'seta' is 70%" in shown(mixture)


def test_many_environments_and_a_narrow_terminal_keep_every_name(mixture: Path) -> None:
    names = [f"environment{number}" for number in range(10)]
    rows = "\n".join(f"  {name}: {{num_tasks: 5}}" for name in names)
    mixture.write_text(f"environments:\n{rows}\n", encoding="utf-8")
    text = shown(mixture, width=60, num_batches=3)
    assert all(text.count(name) >= 3 for name in names)
    assert max(map(len, text.splitlines())) <= 60


def test_many_environments_are_drawn_with_their_names_beside_the_axes(mixture: Path) -> None:
    names = [f"environment-with-a-long-name-{number}" for number in range(40)]
    rows = "\n".join(f"  {name}: {{num_tasks: 5}}" for name in names)
    mixture.write_text(f"environments:\n{rows}\n", encoding="utf-8")
    plot = mixture.with_name("plot.svg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown(mixture, num_batches=2, plot=plot)
    assert all(name in plot.read_text(encoding="utf-8") for name in names)


def test_the_name_of_a_file_is_shown_on_a_terminal_that_has_not_its_letters(mixture: Path) -> None:
    figures = mixture.with_name("zürich.json")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "multienv.cli",
        "simulate",
        mixture,
        "--num-batches",
        "1",
        "--json-file",
        figures,
    ]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("z\\xfcrich.json")
    assert figures.is_file()


def test_a_terminal_without_unicode_is_shown_ascii() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    run_simulate(EXAMPLE, num_batches=30, console=Console(file=out, width=80))


def test_a_sparkline_holds_its_extremes_and_the_means_of_long_series() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([0.0] * 50 + [1.0] * 50) == "▁" * 20 + "█" * 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MINIMAL.replace("start", "strt"),
            "5: environments.seta.learner: unknown option 'strt' (did you mean 'start'?",
        ),
        (MINIMAL.replace("0.2", "x"), "5: environments.seta.learner: start='x'; accepted: a number from 0 to 1"),
        (
            MINIMAL.replace("0.2", "0.2\n      ceiling: 1e-3"),
            "5: environments.seta.learner: start=0.2; accepted: above 0",
        ),
        (MINIMAL.replace("num_tasks", "tasks", 1), "2: environments.seta: num_tasks is missing"),
        (MINIMAL.replace("9", "0", 1), "3: environments.seta: num_tasks=0: input should be greater than or equal to 1"),
        (MINIMAL.replace("batch", "bach"), "8: unknown option 'bach' (did you mean 'batch'?)"),
        (MINIMAL.replace("num_batches", "batches"), "8: batch: unknown option 'batches' (did you mean 'num_batches'?)"),
        (MINIMAL.replace("{num_batches: 12}", "3"), "8: batch=3: accepted are its options, as in batch: {...}"),
        (MINIMAL + "curriculum: adaptve", "9: curriculum='adaptve' (did you mean 'adaptive'?); accepted: 'weights', "),
        (MINIMAL + "curriculum:", "9: curriculum is empty; accepted: one of weights"),
        (MINIMAL + "curriculum:\n  mixture: unifrom", "10: curriculum: mixture='unifrom' (did you mean 'uniform'?)"),
        (
            MINIMAL + "curriculum:\n  stages:\n  - untill: {seta: 1.0}\n  - {}",
            "11: curriculum.stages.0: unknown option 'untill' (did you mean 'until'?)",
        ),
        (
            MINIMAL + "curriculum:\n  schedule:\n    points: {0: {sweb: 1}}",
            "9: curriculum: the curriculum names 'sweb' (did you mean 'swe'?), which the mixture does not have",
        ),
        (
            MINIMAL.replace("start: 0.2", "transfer: {sweb: 0.2}"),
            "5: environments.seta.learner.transfer names 'sweb' (did you mean 'swe'?)",
        ),
        (
            MINIMAL.replace("  swe", "    task_rules: {solved_at: 0.4, hopeless_at: 0.5}\n  swe"),
            "6: environments.seta.task_rules: hopeless_at=0.5 is not below solved_at=0.4",
        ),
        (MINIMAL.replace("swe", "sw e"), "6: environments: environment name 'sw e' is malformed"),
        (MINIMAL.replace("swe", "seta"), "6: 'seta' stands in line 2 already; keep one"),
        (MINIMAL.replace("swe", "yes"), "6: the key 'yes' is no text; write it in quotes"),
        (MINIMAL.replace("swe", "? [a]"), "6: the key before this colon is no text"),
        (MINIMAL.replace("batch", "self"), "8: unknown option 'self'; accepted: batch, curriculum, environments"),
        (MINIMAL.replace("num_batches", "self"), "8: batch: unknown option 'self'; accepted: num_batches"),
        (MINIMAL + "curriculum:\n  stages:\n  - {self: 1}", "11: curriculum.stages.0: unknown option 'self'"),
        (MINIMAL.replace("swe:\n", "swe:\n    task_rules: {self: 1}\n"), "7: environments.swe.task_rules: unknown "),
        (MINIMAL.replace("12", "2020-13-45"), "8: this is no YAML: '2020-13-45' is no timestamp; write text in quotes"),
        (MINIMAL.replace("12", "9" * 5000), "8: this is no YAML: '99999"),
        (MINIMAL.replace("12", "0x_"), "8: this is no YAML: '0x_' is no int"),
        (MINIMAL.replace("12", "!!bool maybe"), "8: this is no YAML: 'maybe' is no bool"),
        (MINIMAL + "? !!timestamp soon\n", "9: this is no YAML: 'soon' is no timestamp"),
        ("environments: {}", "1: environments is empty; name at least one"),
        ("batch: {}", "1: environments is missing"),
        ("a: &a\n  b: *a", "1: this value contains itself"),
        ("a: [", "1: this is no YAML"),
    ],
)
def test_a_file_that_cannot_be_right_is_answered_with_its_line_and_what_is_accepted(
    mixture: Path, text: str, message: str
) -> None:
    mixture.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        read_simulation(mixture)
    assert str(refused.value).startswith(f"{mixture}, line {message}")


def test_everything_that_is_wrong_is_said_at_once_a_line_each(mixture: Path) -> None:
    mixture.write_text(MINIMAL.replace("start", "strt").replace("12", "0") + "curriculum: x", encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        read_simulation(mixture)
    assert [line.split(": ")[0] for line in str(refused.value).splitlines()] == [
        f"{mixture}, line {line}" for line in (8, 5, 9)
    ]


def test_what_several_environments_share_is_written_once(mixture: Path) -> None:
    shared = "environments:\n  a: &shared\n    num_tasks: 5\n  b:\n    <<: *shared\n    num_tasks: 7\n"
    mixture.write_text(shared, encoding="utf-8")
    assert read_simulation(mixture).environments["b"].num_tasks == 7
    mixture.write_text(shared + "    tasks: 1\n", encoding="utf-8")
    with pytest.raises(SpecError, match="line 7: environments.b: unknown option 'tasks'"):
        read_simulation(mixture)


@pytest.mark.parametrize(("content", "message"), [(b"", "the file is empty"), (b"\xff", "YAML"), (b"a: \0", "YAML")])
def test_what_is_no_mixture_at_all_is_refused(mixture: Path, content: bytes, message: str) -> None:
    mixture.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read_simulation(mixture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "error: nowhere.yaml cannot be read: No such file or directory"),
        ([EXAMPLE.parent], "cannot be read: Is a directory"),
        (
            [EXAMPLE, "--curriculum", "adaptve"],
            "error: curriculum='adaptve' (did you mean 'adaptive'?); accepted: weights",
        ),
        (
            [EXAMPLE, "--curriculum", "dataset"],
            "accepted: weights, uniform, proportional, temperature, adaptive, or 'file'",
        ),
        ([EXAMPLE, "--plot", "plot.pdf"], "error: plot='plot.pdf' ends in '.pdf'; accepted: .svg, .png"),
        ([EXAMPLE, "--plot", "nowhere/plot.svg"], "error: there is no folder 'nowhere' to write 'plot.svg' to"),
        ([EXAMPLE, "--json-file", "."], "cannot be written: Is a directory"),
        ([EXAMPLE, "--json-file", "/dev/full"], "error: /dev/full cannot be written: No space left on device"),
        ([EXAMPLE, "--plot", "a.svg", "--json-file", "./a.svg"], "json_file='a.svg' is the plot itself"),
        ([EXAMPLE, "--num-batches", "0"], "greater than or equal to 1"),
    ],
)
def test_a_wrong_option_leaves_with_status_2_and_one_message(
    arguments: list[str | Path],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    assert called(monkeypatch, "simulate", *arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())


def test_the_figures_do_not_replace_the_mixture(mixture: Path) -> None:
    with pytest.raises(SpecError, match="is the mixture itself, and would replace it; choose another file"):
        run_simulate(mixture, json_file=mixture.parent / "." / mixture.name, console=Console(file=io.StringIO()))
    assert mixture.read_text(encoding="utf-8") == MINIMAL


def test_without_matplotlib_a_plot_is_refused_before_anything_is_played(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    out = io.StringIO()
    with pytest.raises(MultiEnvError, match=r"needs matplotlib, .*; install it with: pip install 'multienv\[plots\]'"):
        run_simulate(mixture, plot=mixture.with_name("plot.svg"), console=Console(file=out))
    assert out.getvalue() == ""
    run_simulate(mixture, console=Console(file=out))  # the tables need none


def test_a_broken_matplotlib_is_told_before_anything_is_played(mixture: Path) -> None:
    (mixture.parent / "matplotlib").mkdir()
    (mixture.parent / "matplotlib" / "__init__.py").write_text("raise ImportError('a library is missing')\n")
    command: list[str | Path] = [sys.executable, "-m", "multienv.cli", "simulate", mixture, "--plot", "plot.svg"]
    environment = os.environ | {"PYTHONPATH": f"{mixture.parent}{os.pathsep}{EXAMPLE.parents[1]}", "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "which cannot be imported: a library is missing; mend it" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_of_the_command_line_imports_nothing_of_it() -> None:
    program = (
        "import sys\nfrom multienv import cli\nsys.argv = ['multienv', 'simulate', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'yaml', 'matplotlib', 'torch', 'multienv.simulate'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--curriculum" in done.stdout
