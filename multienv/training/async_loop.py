"""Decides how AsyncGRPO's rollouts open their sessions: each in its own task, all at once, none left open.

TRL's loop awaits every `reset` before it starts the next rollout. Here `reset` only notes the row, and the rollout's
own task opens the session, completes the prompt, and lets the session go when the episode is over. TRL still generates,
calls tools, builds rows and scores. Imported by `async_grpo` and by TRL's rollout process only.

Flow: `make_concurrent` has TRL's worker run this class → `_generate_one`, `_play` per rollout → TRL's own.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from multienv.router.conversations import with_conversation
from multienv.router.grading import last_plain_message
from multienv.router.presentation import text_of
from multienv.router.rollout_tools import RolloutTools, ShownCall
from multienv.sessions import session_loop
from multienv.training.async_adapter import AsyncAdapter, AsyncFactory
from multienv.types import Column

_NO_LIMIT = 1_000_000


class ConcurrentRolloutLoop(_AsyncRolloutLoop):  # type: ignore[misc]  # TRL is untyped
    """TRL's rollout loop, opening sessions concurrently. Environments of another making run as in TRL.

    Where limits allow fewer sessions than there are rollouts in flight, rollouts wait for one.

    Args:
        environment_factory: As for TRL's loop; an `AsyncFactory` makes adapters whose opening is deferred.
        **options: Everything else TRL's loop takes.
    """

    def __init__(self, *, environment_factory: Any = None, **options: Any) -> None:
        self._adapters: list[AsyncAdapter] = []
        self._reset_last: list[AsyncAdapter] = []
        factories = environment_factory if isinstance(environment_factory, Mapping) else {}
        self._limits = _limits([factory for factory in factories.values() if isinstance(factory, AsyncFactory)])
        deferring = {
            name: functools.partial(self._make, factory) if isinstance(factory, AsyncFactory) else factory
            for name, factory in factories.items()
        }
        super().__init__(environment_factory=deferring or environment_factory, **options)
        for factory in factories.values():
            if isinstance(factory, AsyncFactory):
                factory.spec.present_to(self.tokenizer, chat_template=self.chat_template, has_conversations=True)

    def _make(self, factory: AsyncFactory) -> AsyncAdapter:
        adapter = factory()
        adapter._deferred = self._reset_last  # noqa: SLF001 - hidden from TRL, not from this library
        self._adapters.append(adapter)
        return adapter

    def _generate_one(
        self, prompt: list[dict[str, Any]], tool_dict: Mapping[str, Callable[..., Any]], tools: Any, group_id: int = 0
    ) -> Any:
        """Return the coroutine that plays the rollout of the reset that TRL has just awaited; it awaits one at a time.

        A rollout cannot be told from its tools, for a task may have none and be graded by its last message.
        """
        if not self._reset_last:
            return super()._generate_one(prompt, tool_dict, tools, group_id)
        return self._play(self._reset_last.pop(), prompt, tool_dict, tools, group_id)

    async def _play(
        self,
        adapter: AsyncAdapter,
        prompt: list[dict[str, Any]],
        tool_dict: Mapping[str, Callable[..., Any]],
        tools: Any,
        group_id: int,
    ) -> Any:
        async with AsyncExitStack() as room:
            for limit in self._limits[adapter.environment]:
                await room.enter_async_context(limit)
            try:
                await self._open(adapter, prompt)
                standalone = {name: tool for name, tool in tool_dict.items() if _adapter(tool) is None}
                offered = adapter._offered()  # noqa: SLF001 - hidden from TRL, not from this library
                shown = [*(tool for tool in tools if _adapter(tool) is None), *offered.functions]
                played = await super()._generate_one(prompt, _Awaited(adapter, standalone), shown, group_id)
                if (message := last_plain_message(played[0])) is not None:
                    await session_loop().await_here(adapter._grade(message))  # noqa: SLF001 - see above
                return played
            finally:
                adapter._release()  # noqa: SLF001 - the last step is recorded, and with it the reward

    async def _open(self, adapter: AsyncAdapter, prompt: list[dict[str, Any]]) -> None:
        started = time.monotonic()
        observation = await adapter._open_deferred()  # noqa: SLF001 - hidden from TRL, not from this library
        if conversation := adapter._opened_conversation():  # noqa: SLF001 - see above
            prompt[:] = with_conversation({Column.PROMPT: prompt}, conversation)[Column.PROMPT]
        complete(prompt, text_of(observation))
        self._rates["env/reset_s"][0] += time.monotonic() - started  # TRL has counted the reset, which took no time

    async def _generate_loop(self, stop_event: asyncio.Event) -> None:
        """Stop when told to. TRL would first play the rollouts in flight, which nobody scores any more."""
        generating = asyncio.ensure_future(super()._generate_loop(stop_event=stop_event))
        stopping = asyncio.ensure_future(stop_event.wait())
        try:
            await asyncio.wait((generating, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not generating.done():
                generating.cancel()
        with suppress(asyncio.CancelledError):
            await generating

    def run(self) -> None:
        """Run until stopped, then close the sessions of the rollouts that were cut off."""
        try:
            super().run()
        finally:
            session_loop().run(_end(self._adapters))


def complete(prompt: list[dict[str, Any]], observation: str) -> None:
    """Complete the last message of a prompt to which TRL has appended an empty string, in place.

    TRL has made the message for this rollout alone, and hands the same prompt to reward functions and logs.

    Args:
        prompt: Chat messages; the last one's content is a string, or a list of blocks that ends with an empty text.
        observation: What `reset` would have returned.

    Example:
        >>> prompt = [{"role": "user", "content": "Play. "}]
        >>> complete(prompt, "Your move.")
        >>> prompt
        [{'role': 'user', 'content': 'Play. Your move.'}]
    """
    last = prompt[-1]
    if isinstance(last["content"], str):
        last["content"] += observation
    else:
        last["content"][-1]["text"] += observation


def _limits(factories: list[AsyncFactory]) -> dict[str, tuple[asyncio.Semaphore, asyncio.Semaphore]]:
    """Return by environment the rooms a rollout must enter: its environment's, then its mixture's."""
    mixtures: dict[int, asyncio.Semaphore] = {}
    for factory in factories:
        mixtures.setdefault(id(factory.spec), asyncio.Semaphore(factory.max_mixture_sessions or _NO_LIMIT))
    return {
        factory.name: (asyncio.Semaphore(factory.max_sessions or _NO_LIMIT), mixtures[id(factory.spec)])
        for factory in factories
    }


def _adapter(tool: Any) -> AsyncAdapter | None:
    owner = getattr(tool, "__self__", None)
    return owner if isinstance(owner, AsyncAdapter) else None


class _Awaited(RolloutTools):
    """A rollout's tools as coroutine functions, which need no thread and can be cancelled."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tool of that name; TRL looks tools up in this way."""
        tool = super().get(name, default)
        if not isinstance(tool, ShownCall):
            return tool

        async def call(**arguments: Any) -> str:
            return text_of(await session_loop().await_here(tool.coroutine(arguments)))

        return call


async def _end(adapters: list[AsyncAdapter]) -> None:
    await asyncio.gather(*(adapter._end() for adapter in adapters))  # noqa: SLF001 - see above
