"""Decides what the demo trains on: three small Open Reward Standard environments of different temper.

`EchoEnvironment` answers every call with a reward and may be tried again, `VaultEnvironment` is silent until the one
call that ends it, `ClimbEnvironment` pays for every step. Each has two tasks, so that no environment outweighs another.

Flow: `serve` hosts one class per process; nothing else imports this module.
"""

from typing import Final, Literal

from openreward.environments import Environment, JSONObject, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field


def _blocks(text: str) -> list[TextBlock]:
    return [TextBlock(type="text", text=text)]


class _TrainSplitOnly(Environment):
    """An environment with one split, whose tasks are written down in the class."""

    tasks: tuple[JSONObject, ...]

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits: `train` is the only one."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split."""
        return list(cls.tasks) if split == "train" else []


class EchoTask(BaseModel):
    """A word to send back."""

    target: str


class EchoParams(BaseModel):
    """Arguments of `echo`."""

    text: str = Field(description="The string to echo back.")


class EchoEnvironment(_TrainSplitOnly):
    """Say the word of the task. A wrong word scores 0.0 and may be followed by another."""

    tasks = ({"target": "hello"}, {"target": "world"})

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.task = EchoTask.model_validate(self.task_spec)

    def get_prompt(self) -> list[TextBlock]:
        """Name the word."""
        return _blocks(f"Echo '{self.task.target}' to win.")

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Submit a string. Reward 1.0 + finished if it matches the target."""
        is_match = params.text == self.task.target
        return ToolOutput(
            blocks=_blocks("match" if is_match else "no match"),
            reward=float(is_match),
            finished=is_match,
        )


class VaultTask(BaseModel):
    """A vault in some room."""

    room: str


class VaultEnvironment(_TrainSplitOnly):
    """Look for the key, then unlock. Only unlocking is scored, and it ends the episode either way."""

    tasks = ({"room": "attic"}, {"room": "cellar"})

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.task = VaultTask.model_validate(self.task_spec)
        self.has_key = False

    def get_prompt(self) -> list[TextBlock]:
        """Name the room."""
        return _blocks(f"Open the vault in the {self.task.room}.")

    @tool
    async def look(self) -> ToolOutput:
        """Look for the key."""
        self.has_key = True
        return ToolOutput(blocks=_blocks("key found"))

    @tool
    async def unlock(self) -> ToolOutput:
        """Try the vault once. Reward 1.0 with the key, 0.0 without."""
        return ToolOutput(
            blocks=_blocks("open" if self.has_key else "still locked"),
            reward=float(self.has_key),
            finished=True,
        )


class ClimbTask(BaseModel):
    """A ladder of some number of rungs."""

    num_rungs: int = Field(gt=0)


class ClimbParams(BaseModel):
    """Arguments of `step`."""

    direction: Literal["up", "down"] = Field(description="Where to go.")


_GROUND: Final = 0


class ClimbEnvironment(_TrainSplitOnly):
    """Climb a ladder. Every rung gained or lost is paid at once; the step rewards add up to the height reached."""

    tasks = ({"num_rungs": 2}, {"num_rungs": 3})

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.task = ClimbTask.model_validate(self.task_spec)
        self.rung = _GROUND

    def get_prompt(self) -> list[TextBlock]:
        """Give the height."""
        return _blocks(f"Climb {self.task.num_rungs} rungs.")

    @tool
    async def step(self, params: ClimbParams) -> ToolOutput:
        """Go one rung up or down. Finished at the top."""
        before = self.rung
        self.rung = max(_GROUND, before + (1 if params.direction == "up" else -1))
        is_top = self.rung == self.task.num_rungs
        return ToolOutput(
            blocks=_blocks("top" if is_top else f"rung {self.rung}"),
            reward=(self.rung - before) / self.task.num_rungs,
            finished=is_top,
        )


ENVIRONMENTS: Final[dict[str, type[Environment]]] = {
    "echo": EchoEnvironment,
    "vault": VaultEnvironment,
    "climb": ClimbEnvironment,
}
"""Every environment of the demo by the name it has in the mixture."""
