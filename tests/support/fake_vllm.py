"""vLLM's completion route with a policy that is written down, and TRL's own rollout loop driven against it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.servers import AppServer

Policy = Callable[[str, int], str]
"""From the whole text so far and the number of tool results in it to the next assistant message."""


class FakeVLLM(AppServer):
    """Answers `/v1/completions` with what the policy says, as token ids with log-probabilities."""

    def __init__(self, tokenizer: Any, policy: Policy) -> None:
        self._tokenizer = tokenizer
        self._policy = policy
        super().__init__(Starlette(routes=[Route("/v1/completions", self._complete, methods=["POST"])]))

    async def _complete(self, request: Request) -> Response:
        asked = await request.json()
        text = self._tokenizer.decode(asked["prompt"])
        answer = self._policy(text, text.count("<tool_response>"))
        ids = [*self._tokenizer(answer, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id]
        logprobs = {"token_logprobs": [-1.0] * len(ids)}
        return JSONResponse({"choices": [{"token_ids": ids, "logprobs": logprobs}]})


def loop_options(tokenizer: Any, url: str, **options: Any) -> dict[str, Any]:
    """What TRL's trainer gives its rollout worker."""
    defaults: dict[str, Any] = {
        "model_name": "scripted",
        "processing_class": tokenizer,
        "eos_token_ids": [tokenizer.eos_token_id],
        "vllm_server_url": url,
        "num_generations": 2,
        "max_inflight_tasks": 8,
        "max_tokens": 64,
        "max_tool_calling_iterations": 6,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return defaults | options


class DrivenLoop:
    """A rollout loop on a thread of this process; a context manager that stops it.

    Attributes:
        samples: The training rows it has produced.
        error: What ended it, if it did not just stop.
    """

    def __init__(self, loop_class: type, **options: Any) -> None:
        from accelerate.state import PartialState

        PartialState()  # TRL's logger asks for it
        self.samples: queue.Queue[Any] = queue.Queue()
        self.metrics: queue.Queue[dict[str, Any]] = queue.Queue()
        self.error: BaseException | None = None
        self.loop: Any = loop_class(
            rollout_buffer=self.samples,
            model_version_value=SimpleNamespace(value=0),
            heartbeat_value=SimpleNamespace(value=0.0),
            failed_event=threading.Event(),
            exception_info_queue=queue.Queue(1),
            metrics_queue=self.metrics,
            **options,
        )
        self._thread = threading.Thread(target=self._run, name="rollout-loop", daemon=True)

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for samples
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # it has ended by itself
            self.loop._loop.call_soon_threadsafe(self.loop._stop_event.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the loop does not stop"

    def take(self, num_samples: int, patience_s: float = 60.0) -> list[Any]:
        """Wait for so many training rows."""
        taken: list[Any] = []
        while len(taken) < num_samples:
            try:
                taken.append(self.samples.get(timeout=0.1))
            except queue.Empty:
                patience_s -= 0.1
                if self.error is not None:
                    raise self.error from None
                if patience_s < 0:
                    raise TimeoutError(f"{len(taken)} of {num_samples} rows came") from None
        return taken
