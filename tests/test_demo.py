"""The demo, cut short; its full length is `make demo`."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

from openreward.environments import Server

ROOT = Path(__file__).parent.parent


def test_the_demo_trains_on_three_servers_and_leaves_nothing_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "multienv.cli", "demo", "--max-steps", "2", "--output-dir", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    for word in ("echo", "vault", "climb", "rollouts", "scored", str(tmp_path / "out")):
        assert word in done.stdout
    rollouts = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert {rollout["environment"] for rollout in rollouts} == {"echo", "vault", "climb"}
    assert (tmp_path / "out" / "model" / "config.json").exists()
    assert "sessions still open: 0" in done.stdout


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


def test_a_server_keeps_its_sessions_where_the_demo_counts_them() -> None:
    assert "_active_envs" in inspect.getsource(Server.__init__)
