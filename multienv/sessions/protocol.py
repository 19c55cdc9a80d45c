"""Decides what a source of environments must offer: the seam behind which a server and a class look the same.

Flow: `connect` makes a `Source` from an `EnvSpec`; `EnvironmentClient` drives it for `dataset` and `router`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from multienv.types import JSONObject, Prompt, ToolListing, ToolOutput


class Session(Protocol):
    """The live state of one episode. Never shared between episodes, never used after it broke."""

    @property
    def id(self) -> str:
        """The session id, as the server logs it."""

    async def prompt(self) -> Prompt:
        """Return the prompt as one user message, waiting for the environment's `setup()`."""

    async def messages(self) -> Prompt:
        """Return the prompt as a conversation; one user message where the environment has none."""

    async def list_tools(self) -> ToolListing:
        """Return the tools of this session's task."""

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        """Call a tool, at most once.

        Raises:
            ToolRefused: The environment refused; the policy's own mistake, the session lives.
        """

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        """Return one score per candidate, in order; the session goes on."""

    async def close(self) -> None:
        """Tear the session down."""


class Catalogue(Protocol):
    """The stateless side of an environment: its splits and its tasks."""

    async def list_splits(self) -> Sequence[str]:
        """Return the names of the splits."""

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""

    async def task_range(self, split: str, start: int, stop: int) -> list[Any]:
        """Return the task specs with `start <= index < stop`, all of which exist."""


class Source(Protocol):
    """One environment, wherever it lives."""

    @property
    def environment(self) -> str:
        """The environment on its server, folded; empty for the server's default."""

    async def connect(self) -> None:
        """Reach the environment or say why not. Everything else comes after."""

    def catalogue(self) -> AbstractAsyncContextManager[Catalogue]:
        """Give access to splits and tasks, for as long as the context lasts."""

    async def list_tools(self) -> ToolListing:
        """Return the tools that all tasks share."""

    async def open(self, split: str, index: int) -> Session:
        """Open a session for one task. A failed opening leaves nothing behind."""

    async def aclose(self) -> None:
        """Let go of everything but the sessions."""

    async def list_required_secrets(self) -> Sequence[str]:
        """Return the names of the secrets a session needs, where that is published anywhere."""
