"""Decides how a model in this process is asked: all conversations that wait are continued in one batch.

Flow: `play` → `LocalPolicy.reply` → a batch → `model.generate` on a thread → TRL's reading of the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multienv.evaluation.declaration import EvalSpec
from multienv.evaluation.policies import Call, PromptTooLongError, Reply
from multienv.types import JSONObject

_MAX_NEW_TOKENS: Final = 1024
_GATHERING_S: Final = 0.005
"""How long a batch waits for conversations that are about to ask."""


@dataclass(slots=True)
class _Request:
    ids: list[int]
    tools: Sequence[JSONObject]
    answer: asyncio.Future[list[int]]


class LocalPolicy:
    """A transformers model and its tokenizer, in this process.

    Args:
        name: What it is called in the results.
        model: The model.
        tokenizer: Its tokenizer, whose chat template shows the tools.
        settings: How it is sampled; `max_concurrent` conversations are a batch at most.
        chat_template_kwargs: What the chat template is given beside the messages, as in `GRPOConfig`.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        settings: EvalSpec,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from trl.chat_template_utils import add_response_schema  # noqa: PLC0415 - imports torch

        self.name = name
        self._model = model.train(mode=False)
        has_parser = getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None)
        self._tokenizer = tokenizer if has_parser else add_response_schema(tokenizer)
        self._settings = settings
        self._template_kwargs = dict(chat_template_kwargs or {})
        self._waiting: list[_Request] = []
        self._running: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Seed the sampling."""
        from transformers import set_seed  # noqa: PLC0415 - imports torch

        if self._settings.seed is not None:
            set_seed(self._settings.seed)

    async def reply(self, messages: Sequence[JSONObject], tools: Sequence[JSONObject], seed: int | None) -> Reply:  # noqa: ARG002 - a batch has one source of chance, which `prepare` seeds
        """Continue a conversation; see `Policy.reply`."""
        started = time.monotonic()
        prompt = self._tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self._template_kwargs,
        )["input_ids"]
        most = self._most_tokens
        if most is not None and len(prompt) >= most:
            raise PromptTooLongError(f"{len(prompt)} tokens, and the model reads {most}")
        request = _Request(list(prompt), tools, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        ids = await request.answer
        return self._read(prompt, ids, tools, time.monotonic() - started)

    async def close(self) -> None:
        """Stop generating for nobody."""
        if self._running is not None:
            self._running.cancel()

    @property
    def _most_tokens(self) -> int | None:
        return getattr(self._model.config, "max_position_embeddings", None)

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHERING_S)
            size = self._settings.max_concurrent
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            try:
                answers = await asyncio.to_thread(self._generate, [request.ids for request in batch])
            except BaseException as error:
                reason = error if isinstance(error, Exception) else RuntimeError(str(error))
                for request in [*batch, *self._waiting]:
                    if not request.answer.done():
                        request.answer.set_exception(reason)
                self._waiting = []
                raise
            for request, ids in zip(batch, answers, strict=True):
                if not request.answer.done():
                    request.answer.set_result(ids)

    def _generate(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        import torch  # noqa: PLC0415 - heavy

        pad, device = self._tokenizer.pad_token_id, self._model.device
        longest = max(map(len, prompts))
        ids = torch.tensor([[pad] * (longest - len(one)) + one for one in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts], device=device)
        most = self._most_tokens
        room = _MAX_NEW_TOKENS if most is None else most - longest
        settings = self._settings
        temperature = 1.0 if settings.temperature is None else settings.temperature
        sampling: dict[str, Any] = (
            {"do_sample": False} if temperature == 0 else {"do_sample": True, "temperature": temperature}
        )
        if settings.top_p is not None and temperature:
            sampling["top_p"] = settings.top_p
        with torch.no_grad():
            output = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max(1, min(settings.max_tokens or _MAX_NEW_TOKENS, room)),
                pad_token_id=pad,
                **sampling,
            )
        return [self._trimmed(row) for row in output[:, longest:].tolist()]

    def _trimmed(self, ids: list[int]) -> list[int]:
        """Return an answer up to its own end, the end included."""
        ends = {self._tokenizer.eos_token_id}
        place = next((place for place, token in enumerate(ids) if token in ends), None)
        return ids if place is None else ids[: place + 1]

    def _read(self, prompt: list[int], ids: list[int], tools: Sequence[JSONObject], request_s: float) -> Reply:
        from trl.chat_template_utils import parse_response  # noqa: PLC0415 - imports torch

        message = dict(parse_response(self._tokenizer, ids, prefix=list(prompt), tools=list(tools)))
        content = message.get("content")
        is_cut = not ids or ids[-1] != self._tokenizer.eos_token_id
        return Reply(
            message=message,
            text=content if isinstance(content, str) else "",
            calls=tuple(_call(call) for call in message.get("tool_calls") or ()),
            is_cut=is_cut,
            prompt_tokens=len(prompt),
            completion_tokens=len(ids),
            request_s=request_s,
        )


def _call(call: Mapping[str, Any]) -> Call:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, Mapping):
        return Call(function["name"], dict(arguments))
    return Call(function["name"], None, f"the arguments are no object: {arguments!r:.200}")
