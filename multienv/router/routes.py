"""Decides what the router knows of an environment: its name, its split, its tools, and how to open a session.

Flow: `meta` builds one `Route` per environment; `factory` and `dispatch` make adapters from them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from multienv.errors import RoutingError, nearest
from multienv.router.presentation import Presentation
from multienv.specs import Limits
from multienv.types import Column, JSONObject, Prompt, TaskKey, ToolListing, ToolOutput, task_id


class RoutedSession(Protocol):
    """An open session whose prompt is there, driven on the session loop; see `sessions.LiveSession`."""

    @property
    def id(self) -> str:
        """The session id, as the server logs it."""

    @property
    def prompt(self) -> Prompt:
        """The prompt."""

    @property
    def listing(self) -> ToolListing | None:
        """The tools of its task; None where they are those of the environment."""

    @property
    def num_tries(self) -> int:
        """How often opening it was tried, the last time included."""

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        """Call a tool, at most once; raises `ToolRefused` or a `ServerError`."""

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        """Return one score per candidate, in order; raises a `ServerError`."""

    @property
    def is_closing(self) -> bool:
        """True once the session is of no more use."""

    async def close(self) -> None:
        """Close the session and wait for it; never raises, safe to call twice."""

    def start_closing(self) -> object:
        """Close the session in the background."""


@dataclass(frozen=True, slots=True)
class Route:
    """One environment, from the router's side.

    Attributes:
        name: Name of the environment in the mixture.
        split: The split of rows that name none.
        listing: Its tools as published: those that all tasks share, and those that some are known to have.
        open: Makes the coroutine that opens a session for a task; called from the trainer's thread.
        limits: What an episode may take.
        presentation: How what it sends is shown to the policy.
        scores_groups: True where whole groups are scored: sessions then stay open after their episode.
        horizon: Gives the most tool calls of an episode that begins now; None for no limit.
        warned: Environments whose first failed episode was told.
    """

    name: str
    split: str
    listing: ToolListing
    open: Callable[[TaskKey], Coroutine[Any, Any, RoutedSession]]
    limits: Limits = field(default_factory=Limits)
    presentation: Presentation = field(default_factory=Presentation)
    scores_groups: bool = False
    horizon: Callable[[], int | None] | None = None
    warned: set[str] = field(default_factory=set)

    @property
    def max_tool_calls(self) -> int | None:
        """Most tool calls of an episode that begins now; None for no limit."""
        return self.limits.max_tool_calls if self.horizon is None else self.horizon()

    def task_id(self, key: TaskKey) -> str:
        """Return the identity of a task, as the dataset's `task_id` column has it."""
        return task_id(self.name, key.split, key.index)


def task_key(row: Mapping[str, Any], name: str, split: str) -> TaskKey:
    """Return the task of a row: the index in its column `task_index`, the split in its `task_id`.

    Args:
        row: The row's columns.
        name: The environment that the row has reached.
        split: The split of a row without a `task_id`.

    Raises:
        RoutingError: The row has no task index, belongs to another environment, or contradicts itself.

    Example:
        >>> task_key({"task_index": 3, "task_id": "a/test/3"}, "a", "train")
        TaskKey(split='test', index=3)
    """
    named = row.get(Column.ENVIRONMENT, name)
    if named != name:
        raise RoutingError(
            f"a row of environment {named!r} reached the adapter of {name!r}; let TRL route, or the meta environment",
            environment=name,
        )
    index: Any = row.get(Column.TASK_INDEX)
    advice = "Train on the spec's own train_dataset, or give your rows its columns"
    if isinstance(index, bool) or not hasattr(index, "__index__") or int(index) < 0:
        raise RoutingError(
            f"a row of environment {name!r} has task_index={index!r}; accepted: an int from 0. {advice}",
            environment=name,
        )
    identity = row.get(Column.TASK_ID)
    if identity is None:
        return TaskKey(split, int(index))
    head, tail = f"{name}/", f"/{int(index)}"
    its_split = identity[len(head) : -len(tail)] if isinstance(identity, str) else ""
    if not its_split or identity != task_id(name, its_split, int(index)):
        raise RoutingError(
            f"a row of environment {name!r} has task_id={identity!r} beside task_index={int(index)}; accepted: "
            f"'{head}SPLIT{tail}', or no task_id for split {split!r}. {advice}",
            environment=name,
        )
    return TaskKey(its_split, int(index))


def unknown_environment(name: object, known: Iterable[str]) -> RoutingError:
    """Return the error for a row that names no environment of the mixture."""
    names = list(known)
    hint = nearest(name, names) if isinstance(name, str) else ""
    return RoutingError(
        f"unknown environment {name!r} in column 'environment'{hint}; known: {', '.join(names)}; "
        "train on the spec's own train_dataset, or correct the column"
    )
