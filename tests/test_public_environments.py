"""The script that plays checkouts of public environments, on checkouts made here."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PATIENCE_S = 120.0

HARBOUR = """
from typing import Literal
from pydantic import BaseModel, Field, field_validator

class Leg(BaseModel, extra="forbid"):
    port: Literal["north", "south"]
    hours: int = Field(ge=3, le=5)

class Plan(BaseModel, extra="forbid"):
    ship: str = Field(min_length=2, max_length=6, description="One of ship_a and ship_b")
    legs: list[Leg] = Field(min_length=1, max_length=3)
    speed: float | None = Field(default=None, gt=0, lt=1)

class Closed(BaseModel):
    door: str

    @field_validator("door")
    @classmethod
    def refuse(cls, door: str) -> str:
        raise ValueError("no door is open")
"""
SERVER = """
from harbour import Closed, Plan  # the checkout's own module
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool

class TinyEnvironment(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"id": index} for index in range(5)]

    def setup(self):
        self.num_plans = 0

    def get_prompt(self):
        return [TextBlock(text="Plan.")]

    @tool
    def plan(self, params: Plan) -> ToolOutput:
        self.num_plans += 1
        assert params.ship in ("ship_a", "ship_b")
        return ToolOutput(blocks=[TextBlock(text="ok")], reward=self.num_plans / 2, finished=self.num_plans == 3)

    @tool
    def open_door(self, params: Closed) -> ToolOutput:
        raise AssertionError("nobody comes here")

if __name__ == "__main__":
    Server([TinyEnvironment]).run(host="0.0.0.0", port=1)  # neither is what the script uses
"""


def checkout(path: Path, server: str) -> Path:
    path.mkdir()
    (path / "server.py").write_text(server)
    (path / "harbour.py").write_text(HARBOUR)
    return path


def played(*arguments: Path | str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "public_environments.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def cells(output: str, name: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.strip().startswith(name))
    return re.split(r"\s{2,}", line.strip())


def test_a_checkout_is_played_with_arguments_its_schemas_allow_and_everything_is_counted(tmp_path: Path) -> None:
    status, output = played(checkout(tmp_path / "tiny", SERVER), "--calls", "3", "--tasks", "2")
    # Published in the order open_door, plan, and called in turn: the third plan, the sixth call, ends each episode.
    num_tasks, num_calls, num_doors, num_plans = "2", "12", "6", "6"
    assert cells(output, "tiny")[:-1] == [
        *("tiny", num_tasks, "2/2", num_calls, num_doors, "0", num_plans, "1.5, 1.5", "2 finished")
    ]
    assert (status, "skipped" in output) == (0, False)


def test_checkouts_that_cannot_be_served_are_skipped_with_the_reason(tmp_path: Path) -> None:
    status, output = played(
        checkout(tmp_path / "lacking", "import a_package_nobody_has"),
        checkout(tmp_path / "splitless", SERVER.replace('["train"]', '["exam"]')),
        tmp_path / "empty",
    )
    assert "skipped lacking: the server ended with status 1; last said: ModuleNotFoundError: No module named" in output
    assert re.search("skipped splitless: .*train.*exam", output)
    assert f"skipped empty: {tmp_path / 'empty'} holds no server.py" in output
    assert status == 1


def test_an_episode_that_fails_is_told_and_makes_the_exit_status_1(tmp_path: Path) -> None:
    crashing = SERVER.replace("self.num_plans += 1", "raise RuntimeError('the crane fell')")
    status, output = played(
        checkout(tmp_path / "crashing", crashing), checkout(tmp_path / "tiny", SERVER), "--tasks", "1"
    )
    assert cells(output, "crashing")[3:-1] == ["2", "1", "0", "0", "none", "1 failed"]
    assert re.search("^crashing/train/0 failed: .*the crane fell", output, re.MULTILINE)
    assert cells(output, "tiny")[-2] == "1 finished"
    assert status == 1


class Node(BaseModel, extra="forbid"):
    kind: Literal["a", 2] | None
    label: str = Field(pattern="^[A-Z]{2}-[0-9]{3}$")
    code: str = Field(min_length=7, max_length=9)
    at_least: int = Field(ge=10**6)
    below: int = Field(lt=-3)
    share: float = Field(gt=0.25, lt=0.5)
    names: Annotated[list[str], Field(min_length=2, max_length=2)]
    children: list[Node] = []
    other: Node | bool | None = None


class Tree(BaseModel, extra="forbid"):
    root: Node


@pytest.mark.parametrize("said", ["", "AB-123 and F0001, a_longer_name"])
def test_arguments_are_what_the_schema_allows_and_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    script: Any = importlib.import_module("arguments")
    schema = Tree.model_json_schema()
    made = [script.Arguments(schema, str(seed), said).value(schema) for seed in range(20)]
    for value in made:
        Tree.model_validate(value, strict=True)
    assert made == [script.Arguments(schema, str(seed), said).value(schema) for seed in range(20)]
    assert len({str(value) for value in made}) > 1
    labels = {value["root"]["label"] for value in made}
    assert labels == {"AB-123"} if said else len(labels) == 1  # a name that was said, or else the simplest that matches
