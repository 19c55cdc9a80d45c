"""A complete environment server: one tool, two tasks, nothing to install beyond this library.

Start it once per environment, each on a port of its own, and train on them with `quickstart.py`:

    python examples/echo_server.py 8000
    python examples/echo_server.py 8001
"""

from __future__ import annotations

import argparse

from openreward.environments import Environment, JSONObject, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field


class EchoTask(BaseModel):
    """What the server knows of a task."""

    target: str


class EchoParams(BaseModel):
    """Arguments of `echo`."""

    text: str = Field(description="The word to say back.")


class EchoEnvironment(Environment):
    """Say the word of the task. A wrong word scores 0.0 and may be followed by another."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self.task = EchoTask.model_validate(self.task_spec)

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split."""
        return [{"target": "hello"}, {"target": "world"}] if split == "train" else []

    def get_prompt(self) -> list[TextBlock]:
        """Say what is wanted."""
        return [TextBlock(text=f"Echo '{self.task.target}' to win.")]

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Say a word back. The right one scores 1.0 and ends the episode."""
        is_right = params.text == self.task.target
        return ToolOutput(
            blocks=[TextBlock(text="match" if is_right else "no match")],
            reward=1.0 if is_right else 0.0,
            finished=is_right,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the echo environment on this machine.")
    parser.add_argument("port", nargs="?", type=int, default=8000)
    Server([EchoEnvironment]).run(host="127.0.0.1", port=parser.parse_args().port)


if __name__ == "__main__":
    main()
