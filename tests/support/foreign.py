"""Environments that know nothing of ORS: TRL's own kind, an object with TRL's three attributes, and Harbor's."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from datasets import Dataset
from trl.experimental.harbor import HarborBashEnv, HarborSpec

from multienv import ForeignSpec


class GuessEnvironment:
    """A TRL environment that owns its reward."""

    made: ClassVar[list[GuessEnvironment]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.rows: list[dict[str, Any]] = []
        self.number = 0
        self.finished = False
        self.num_closed = 0

    def reset(self, **row: Any) -> str:
        self.rows.append(row)
        self.number, self.finished = row.get("number", 7), False
        return "Guess it."

    def guess(self, number: int, how: Literal["loud", "low"] = "low", more: dict[str, Any] | None = None) -> str:
        """Guess the number.

        Args:
            number: The guess.
            how: In which voice.
            more: Anything else.
        """
        self.finished = number == self.number
        return "right" if self.finished else "wrong"

    async def wait(self) -> list[dict[str, str]]:
        """Wait a little."""
        return [{"type": "text", "text": "waited"}]

    @staticmethod
    def hint(level: int) -> str:
        """Get a hint.

        Args:
            level: How much of one.
        """
        return "odd" * level

    async def get_reward(self) -> float:
        return 1.0 if self.finished else 0.25

    def close(self) -> None:
        self.num_closed += 1


class RatioEnvironment:
    """Its reward is an attribute that a reward function of its own reads; it cannot do anything with other columns."""

    made: ClassVar[list[RatioEnvironment]] = []

    def __init__(self, scale: float) -> None:
        self.made.append(self)
        self.scale = scale
        self.reward: float | None = None
        self.num_closed = 0

    def reset(self, prompt: str, task_index: int, answer: float) -> None:
        if answer < 0:
            raise ConnectionError("the sandbox is gone")
        assert (prompt, task_index) == (f"Reach {answer}.", int(answer * 10))
        self.reward = None

    def divide(self, by: float) -> str:
        """Divide one by something.

        Args:
            by: By what.
        """
        self.reward = self.scale / by
        return str(self.reward)

    async def _close(self) -> None:
        self.num_closed += 1


class StubHarbor(HarborBashEnv):
    """Harbor's environment without Harbor: a directory instead of a sandbox."""

    stopped: ClassVar[list[str]] = []
    loops: ClassVar[set[bool]] = set()

    def __del__(self) -> None:
        super().__del__()
        self._loop_thread.join()
        self._loop.close()  # Harbor leaves it open

    async def _start(self, task_dir: str) -> str:
        self._env, self._task_dir = object(), task_dir
        self._commands: list[str] = []
        return (Path(task_dir) / "instruction.md").read_text()

    def _exec(self, command: str, timeout: int = 180) -> str:
        self._commands.append(command)
        return "ran"

    async def _verify(self) -> float:
        return 0.75 if self._commands else 0.0

    async def _stop(self) -> None:
        self.loops.add(asyncio.get_running_loop() is self._loop)
        if self._env is not None:
            self.stopped.append(self._task_dir)
            self._env = None


def outcome(environments: list[Any], answer: list[float], **columns: Any) -> list[float]:
    """Score every environment it is given, as Harbor's function does, and demand its own columns only."""
    assert set(columns) == {
        "prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "task_index"
    }  # fmt: skip
    assert all(isinstance(environment, RatioEnvironment) for environment in environments)
    columns["log_metric"]("seen", len(environments))
    return [float(environment.reward) for environment in environments]


def ratio_rows(*answers: float) -> Dataset:
    rows = [{"prompt": f"Reach {answer}.", "task_index": int(answer * 10), "answer": answer} for answer in answers]
    return Dataset.from_list(rows)


def ratios(*answers: float) -> Any:
    """An object with TRL's three attributes."""
    return SimpleNamespace(
        train_dataset=ratio_rows(*answers),
        environment_factory=partial(RatioEnvironment, 1.0),
        reward_funcs=[outcome],
    )


def guesses() -> ForeignSpec:
    return ForeignSpec(GuessEnvironment, train_dataset=Dataset.from_list([{"number": 3}, {"number": 4}]))


def partial_factory(cls: Any) -> ForeignSpec:
    """A factory that must be called to learn what it makes."""
    return ForeignSpec(lambda: cls(1.0), train_dataset=ratio_rows(0.5))


def harbor_suite(root: Path) -> HarborSpec:
    """A Harbor task tree of two, in the other order."""
    for name, level in (("one", "easy"), ("two", "hard")):
        task = root / "tasks" / name
        task.mkdir(parents=True)
        (task / "instruction.md").write_text(f"Do {name}.")
        (task / "task.toml").write_text(f'[metadata]\ndifficulty_level = "{level}"\n')
    return HarborSpec(str(root), agent=StubHarbor, indices=[1, 0])


def forget_instances() -> None:
    for made in (GuessEnvironment.made, RatioEnvironment.made, StubHarbor.stopped, StubHarbor.loops):
        made.clear()
