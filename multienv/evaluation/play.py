"""Decides how one attempt is played: an episode of the environment, with a policy that is asked turn by turn.

Flow: `run` → `play` → `EnvironmentAdapter` and `Policy` in turn → an `Attempt`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from multienv.evaluation.declaration import EvalSpec
from multienv.evaluation.policies import Call, Policy, PolicyFailedError, PromptTooLongError, Reply
from multienv.reporting import plain
from multienv.rewards import episode_reward, episode_status, is_success
from multienv.router import EnvironmentAdapter
from multienv.router.conversations import whole_prompt
from multienv.sessions import session_loop
from multienv.specs import RewardSpec
from multienv.types import Episode, JSONObject, ToolCallError

_TOO_LONG: Final = "the conversation is longer than the model can read"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a task.

    Attributes:
        episode: What happened; its reward is the environment's, by its rule.
        number: Which attempt at this task, from 0.
        difficulty: What the task's spec says of its difficulty; None where it says nothing.
        is_success: By the environment's rule; None for an attempt that infrastructure ended.
        prompt_tokens: Tokens that the model read, over all requests.
        completion_tokens: Tokens that it wrote.
        requests_s: Seconds that each request took.
        seconds: From the opening of the session to the end.
    """

    episode: Episode
    number: int
    difficulty: str | None = None
    is_success: bool | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests_s: tuple[float, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class _Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests_s: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.requests_s.append(reply.request_s)


async def play(
    adapter: EnvironmentAdapter,
    row: Mapping[str, Any],
    policy: Policy,
    settings: EvalSpec,
    rule: RewardSpec,
    *,
    number: int,
    difficulty: str | None = None,
) -> Attempt:
    """Play one attempt; whatever infrastructure does to it is in the episode, and the session is closed.

    Args:
        adapter: An adapter of the row's environment, not in use.
        row: The task's row.
        policy: Who plays.
        settings: How many turns, which seed.
        rule: What the episode is worth.
        number: Which attempt at this task.
        difficulty: The task's difficulty, if it has one.
    """
    started, usage = time.monotonic(), _Usage()
    seed = None if settings.seed is None else settings.seed + number
    messages: list[JSONObject] = []
    num_before = 0
    try:
        content = await adapter._reset_here(dict(row))  # noqa: SLF001 - hidden from TRL, not from this library
        messages = whole_prompt(row, adapter._play.conversation, content)  # noqa: SLF001 - see above
        num_before = len(messages)
        if adapter.episode.is_scorable:
            await _turns(adapter, messages, policy, settings.max_turns, seed, usage)
    finally:
        await session_loop().await_here(adapter._let_go())  # noqa: SLF001 - see above
    episode = replace(
        adapter.episode,
        completion=tuple(plain(message) for message in messages[num_before:]),
        is_evaluation=True,
        num_completion_tokens=usage.completion_tokens,
    )
    episode = replace(episode, status=episode_status(episode, rule), reward=episode_reward(episode, rule))
    return Attempt(
        episode,
        number,
        difficulty,
        is_success(episode, rule) is True if episode.is_scorable else None,
        usage.prompt_tokens,
        usage.completion_tokens,
        tuple(usage.requests_s),
        time.monotonic() - started,
    )


async def _turns(
    adapter: EnvironmentAdapter,
    messages: list[JSONObject],
    policy: Policy,
    max_turns: int,
    seed: int | None,
    usage: _Usage,
) -> None:
    """Ask the policy and call its tools until one of them ends it."""
    for _ in range(max_turns):
        try:
            reply = await policy.reply(messages, adapter._offered().functions, seed)  # noqa: SLF001 - see `play`
        except PromptTooLongError:
            adapter._cut_off(_TOO_LONG)  # noqa: SLF001 - see `play`
            return
        except PolicyFailedError as error:
            adapter._play.recorder.fail(str(error), type(error).__name__)  # noqa: SLF001 - see `play`
            return
        usage.add(reply)
        messages.append(reply.message)
        if reply.is_cut:  # half a call is none
            adapter._cut_off("max_tokens ended the model's message")  # noqa: SLF001 - see `play`
            return
        if not reply.calls:
            await session_loop().await_here(adapter._grade(reply.text))  # noqa: SLF001 - see `play`
            return
        for call in reply.calls:  # one after the other, as TRL makes them
            result = await _result(adapter, call)
            messages.append(result)
        if adapter._is_idle() or adapter.finished:  # noqa: SLF001 - see `play`
            return
    adapter._cut_off(f"max_turns={max_turns} is reached")  # noqa: SLF001 - see `play`


async def _result(adapter: EnvironmentAdapter, call: Call) -> JSONObject:
    """Make a tool call, and return the message with its result."""
    try:
        if call.arguments is None:
            raise adapter._play.refuse(call.tool, call.complaint)  # noqa: SLF001 - as if the tool had refused it
        content: Any = await session_loop().await_here(adapter._call_shown(call.tool, call.arguments))  # noqa: SLF001 - see `play`
    except ToolCallError as error:
        content = f"error: {error}"
    identified = {"tool_call_id": call.call_id} if call.call_id else {"name": call.tool}
    return {"role": "tool", **identified, "content": content}
