"""Decides the values that cross rooms, and the names of the dataset columns.

Flow: `sessions` produces `Message`, `ToolListing` and `ToolOutput`; `router` turns them into an `Episode`; `rewards`
reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

JSONObject: TypeAlias = dict[str, Any]
"""A JSON object as Python data: `dict`, `list`, `str`, `int`, `float`, `bool`, `None`."""


class Column(StrEnum):
    """The columns every row of the training dataset has."""

    PROMPT = "prompt"
    """Chat messages, `[{"role": ..., "content": ...}]`; TRL appends the environment's prompt to the last one."""
    ENVIRONMENT = "environment"
    """Name of the environment; what TRL routes on."""
    TASK_INDEX = "task_index"
    """Index of the task within its split."""
    TASK_ID = "task_id"
    """`environment/split/index`: the identity of the task, equal for repeated rows."""
    TASK = "task"
    """The full task spec as one JSON string."""


RESERVED_NAMES: Final[frozenset[str]] = frozenset(Column) | {
    # Keywords TRL itself passes to reward functions, and columns that change what TRL does with a row.
    "prompts",
    "completion",
    "completions",
    "completion_ids",
    "environments",
    "trainer_state",
    "log_extra",
    "log_metric",
    "image",
    "images",
}
"""Names no environment and no metadata column may have."""


def task_id(environment: str, split: str, index: int) -> str:
    """Return `environment/split/index`, the identity of a task."""
    return f"{environment}/{split}/{index}"


@dataclass(frozen=True, slots=True)
class TaskKey:
    """Where a task is found in its environment.

    Attributes:
        split: Name of the split.
        index: Position within the split, from 0.
    """

    split: str
    index: int


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of an environment.

    Attributes:
        index: Position within the split, from 0.
        spec: The task spec as the environment published it.
    """

    index: int
    spec: Any


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the environment published it.

    Attributes:
        name: Published name.
        description: Published description, may be empty.
        input_schema: JSON Schema of the arguments; an empty mapping for a tool without arguments.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TerminalTool:
    """The tool that grades the policy's last plain message; the policy itself never sees it.

    Attributes:
        name: Published name.
        argument: The argument that takes the message; None for a tool that grades from the environment's state alone.
    """

    name: str
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class ToolListing:
    """What an environment, or one of its sessions, says about its tools and prompts.

    Attributes:
        tools: The tools the policy may call, in the published order.
        terminal_tool: The tool that grades the policy's last plain message, or None.
        supports_score_group: True when the environment scores whole groups.
        has_messages: True when prompts can be had as conversations.
    """

    tools: tuple[ToolSpec, ...] = ()
    terminal_tool: TerminalTool | None = None
    supports_score_group: bool = False
    has_messages: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, as the environment sent it.

    Attributes:
        data: The file, base64.
        mime_type: Its kind, such as `image/png`.
    """

    data: str
    mime_type: str

    @property
    def num_bytes(self) -> int:
        """Size of the file, in bytes."""
        return len(self.data) * 3 // 4


Parts: TypeAlias = tuple[str | Image, ...]
"""Content blocks in order: texts and pictures."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        parts: Its content.
        reasoning: What an assistant thought first; empty for none.
        tool_calls: Published name and arguments of the tools an assistant called.
        tool: Published name of the tool whose result this is; empty for other roles.
    """

    role: str
    parts: Parts = ()
    reasoning: str = ""
    tool_calls: tuple[tuple[str, JSONObject], ...] = ()
    tool: str = ""


Prompt: TypeAlias = tuple[Message, ...]
"""What an environment says before the first tool call: one user message, or a whole conversation."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What one tool call returned.

    Attributes:
        text: The text blocks, joined by newlines.
        reward: Step reward, or None when the call carried none.
        finished: True when the environment declared the episode over.
        metadata: The environment's own remarks, or None.
        parts: All blocks in order, where there are pictures among them; else empty.
    """

    text: str
    reward: float | None = None
    finished: bool = False
    metadata: JSONObject | None = None
    parts: Parts = ()


class ToolCallError(Exception):
    """A tool call came to nothing; its one argument is the text that TRL shows to the policy, as a tool failure."""


class ToolRefused(Exception):  # noqa: N818 - a word of the protocol: the call was refused, nothing broke
    """The environment refused a tool call for a reason that is the policy's own; the session lives.

    Args:
        reason: The protocol's word: `not_found`, `name_collision`, `input_validation`, `bad_input_shape` or
            `episode_finished`.
        detail: The environment's sentence, meant for the policy.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class EpisodeStatus(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    """The environment said so."""
    UNFINISHED = "unfinished"
    """The policy stopped without finishing."""
    TRUNCATED = "truncated"
    """A limit ended it."""
    FAILED = "failed"
    """Infrastructure broke; the episode carries no signal."""
    REFUSED = "refused"
    """The environment was known to be down, the episode was not started."""


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call with its output.

    Attributes:
        tool: Published name of the tool.
        arguments: The arguments the policy gave.
        text: What the policy was shown.
        reward: Step reward, or None.
        metadata: The environment's remarks, or None.
        finished: True on the step that ended the episode.
        refused: True when the environment refused the call as the policy's own mistake.
        duration_s: Seconds the call took.
        lost: True when no result came.
        terminal: True for the call that graded the policy's last message; the policy itself did not make it.
    """

    tool: str
    arguments: JSONObject
    text: str
    reward: float | None = None
    metadata: JSONObject | None = None
    finished: bool = False
    refused: bool = False
    duration_s: float = 0.0
    lost: bool = False
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Episode:
    """The environment side of one rollout, from `reset` to its end.

    Attributes:
        environment: Name of the environment.
        task_id: `environment/split/index`.
        session_id: The server's session id; None when none could be opened.
        steps: The tool calls in order.
        status: How the episode ended, or stands.
        reason: Why, in words; empty while nothing needs saying.
        open_s: Seconds from `reset` until the prompt was there.
        error: Class name of the error that failed or refused it; empty without one.
        started_at: When `reset` began, in Unix seconds; 0.0 where nobody noted it.
        num_retries: How often opening its session was tried again.
        num_late_calls: Tool calls that came after the end; they are no steps.
        completion: What the policy wrote and was shown: chat messages as plain JSON, `[image]` for each picture. This
            and what follows is the trainer's to say.
        training_step: Optimiser steps done when it was played; None outside training.
        is_evaluation: True for a rollout of an evaluation.
        rank: The process that played it.
        group: Its group's place in the batch, counted over all ranks; None outside training.
        reward: What the run took for the environment's own reward; None for unscored.
        num_completion_tokens: The policy's own tokens, those that are trained on.
    """

    environment: str
    task_id: str
    session_id: str | None
    steps: tuple[Step, ...]
    status: EpisodeStatus
    reason: str = ""
    open_s: float = 0.0
    error: str = ""
    started_at: float = 0.0
    num_retries: int = 0
    num_late_calls: int = 0
    completion: tuple[JSONObject, ...] = ()
    training_step: int | None = None
    is_evaluation: bool = False
    rank: int = 0
    group: int | None = None
    reward: float | None = None
    num_completion_tokens: int = 0

    @property
    def is_scorable(self) -> bool:
        """False for a failed or refused episode: infrastructure never teaches the policy anything."""
        return self.status not in (EpisodeStatus.FAILED, EpisodeStatus.REFUSED)

    @property
    def num_tool_calls(self) -> int:
        """Number of tool calls the policy made, late ones included; the grading of a last message is none."""
        return sum(not step.terminal for step in self.steps) + self.num_late_calls

    @property
    def num_tool_failures(self) -> int:
        """How many of them came to nothing: refused, lost, or made after the end."""
        return sum(not step.terminal and (step.refused or step.lost) for step in self.steps) + self.num_late_calls


class Adapter(Protocol):
    """What a reward function may read off one element of TRL's `environments`."""

    @property
    def environment(self) -> str | None:
        """Name of the environment this rollout belongs to, or None before the first `reset`."""

    @property
    def episode(self) -> Episode:
        """The record of the episode so far."""

    @property
    def reward(self) -> float | None:
        """The episode reward, None while nothing was scored and for a failed episode."""

    @property
    def rewards(self) -> Sequence[float | None]:
        """The step rewards, one entry per tool call."""

    @property
    def metadata(self) -> Sequence[JSONObject | None]:
        """The metadata of the results, one entry per tool call."""

    @property
    def finished(self) -> bool:
        """True once the environment declared the episode over."""

    @property
    def last_output(self) -> str:
        """Text of the most recent tool result."""
