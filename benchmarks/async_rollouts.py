"""What AsyncGRPO's rollouts cost: TRL's rollout loop beside the concurrent one, same environments, same policy.

Both loops get the same factories, whose adapters own their reward. TRL's opens the sessions one after the other. Each
rollout opens a session, which takes as long as `setup()`, and makes one tool call. The policy is scripted, so that what
is measured is the environments' side.

TRL's loop looks for rollouts that are done only after it has opened a session for every free place, so the last of the
first rollouts wait for the sessions of the next ones. What all further rollouts take is told apart from that.

Run as `python benchmarks/async_rollouts.py`, or with a number of rollouts.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

from accelerate.state import PartialState
from report import Report, Row
from servers import serving
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from multienv import EnvSpec, MultiEnvSpec
from multienv.tiny.model import build_tokenizer
from multienv.training.async_loop import ConcurrentRolloutLoop

CALL = "<tool_call>\n" + json.dumps({"name": "work", "arguments": {}}) + "\n</tool_call>"
NUM_GENERATIONS = 2
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rollouts of one loop.

    Attributes:
        first_s: From the start of the loop until as many as are in flight were scored, in seconds.
        further_s: From there until as many again were scored, in seconds.
        rewards: How often which environment gave which reward, to see that both loops did the same.
    """

    first_s: float
    further_s: float
    rewards: dict[str, int]


class Scripted:
    """Calls the tool once, without vLLM; mixed in first."""

    tokenizer: Any

    async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        answer = "done" if "<tool_response>" in self.tokenizer.decode(prompt_ids) else CALL
        ids = [*self.tokenizer(answer, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return ids, [-1.0] * len(ids)


def play(loop_class: type, spec: MultiEnvSpec, num_rollouts: int, tokenizer: Any) -> Rollouts:
    """Run a loop on a thread, so many rollouts in flight, until twice as many are scored."""
    slots = spec.async_trainer_kwargs()
    samples: queue.Queue[Any] = queue.Queue()
    loop: Any = type("Loop", (Scripted, loop_class), {})(
        model_name="scripted",
        dataset=slots["train_dataset"],
        reward_funcs=slots["reward_funcs"],
        environment_factory=slots["environment_factory"],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        rollout_buffer=samples,
        model_version_value=SimpleNamespace(value=0),
        heartbeat_value=SimpleNamespace(value=0.0),
        failed_event=threading.Event(),
        exception_info_queue=queue.Queue(1),
        metrics_queue=queue.Queue(),
        num_generations=NUM_GENERATIONS,
        max_inflight_tasks=num_rollouts,
        chat_template_kwargs={"enable_thinking": False},
    )
    thread = threading.Thread(target=loop.run, daemon=True)
    times = [time.perf_counter()]
    thread.start()
    taken = []
    for _ in range(2):
        taken += [samples.get(timeout=PATIENCE_S) for _ in range(num_rollouts)]
        times.append(time.perf_counter())
    with suppress(RuntimeError):  # it has ended by itself
        loop._loop.call_soon_threadsafe(loop._stop_event.set)  # noqa: SLF001 - as TRL's own worker stops it
    thread.join(PATIENCE_S)
    return Rollouts(
        times[1] - times[0], times[2] - times[1], dict(Counter(f"{sample.metrics['reward']:g}" for sample in taken))
    )


def measure(num_rollouts: int, setup_s: float, tool_s: float) -> tuple[Rollouts, Rollouts]:
    """Play with TRL's loop and with the concurrent one, on the same two servers.

    Args:
        num_rollouts: Rollouts in flight, and scored.
        setup_s: Seconds of a session's start.
        tool_s: Seconds of a tool call.
    """
    PartialState()  # TRL's logger asks for it
    instruction = json.dumps({"name": "work", "description": "Work for a while.", "parameters": {}})
    tokenizer = build_tokenizer([instruction, CALL, "Exercise 1. " + "Do it. " * 50] * 3, vocab_size=2_000)
    tokenizer.model_max_length = 8192
    played = []
    with serving(2, num_rollouts, [(setup_s, tool_s)] * 2) as servers:
        for loop_class in (ConcurrentRolloutLoop, _AsyncRolloutLoop):
            environments = {
                f"server{number}": EnvSpec(server.url, discover_task_tools=False)
                for number, server in enumerate(servers)
            }
            with MultiEnvSpec(environments) as spec:
                played.append(play(loop_class, spec, num_rollouts, tokenizer))
    ours, theirs = played
    if ours.rewards != theirs.rewards:
        raise RuntimeError(f"the two loops did not do the same: {theirs.rewards} and {ours.rewards}")
    return theirs, ours


def run(num_rollouts: int = 32, setup_s: float = 0.2, tool_s: float = 0.2) -> Report:
    """Measure both loops; see `measure`."""
    theirs, ours = measure(num_rollouts, setup_s, tool_s)
    path_s = setup_s + tool_s
    path = f"{ours.first_s / path_s:.2f} times the critical path of {path_s:g} s"
    first, further = theirs.first_s / ours.first_s, theirs.further_s / ours.further_s
    return Report(
        f"AsyncGRPO, {num_rollouts} rollouts in flight, start {setup_s:g} s, one tool call of {tool_s:g} s",
        [
            Row(f"first {num_rollouts}, TRL's loop", theirs.first_s, theirs.first_s),
            Row(f"first {num_rollouts}, concurrent loop", ours.first_s, theirs.first_s, path),
            Row(f"{num_rollouts} further, TRL's loop", theirs.further_s, theirs.further_s),
            Row(f"{num_rollouts} further, concurrent loop", ours.further_s, theirs.further_s),
        ],
        f"{first:.1f} times faster than TRL's own rollout loop for the first {num_rollouts} rollouts, "
        f"{further:.1f} times for {num_rollouts} further ones",
    )


if __name__ == "__main__":
    run(*map(int, sys.argv[1:2])).show()
