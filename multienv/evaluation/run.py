"""Decides how an evaluation goes: which tasks, how many attempts at once, and what is left to do after a stop.

Flow: `commands.evaluate` → `evaluate` → `play`, many at once → the record → `summed_up`.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from multienv.errors import SpecError
from multienv.evaluation.declaration import EvalSpec
from multienv.evaluation.play import play
from multienv.evaluation.policies import Policy
from multienv.evaluation.record import EvaluationRecord
from multienv.evaluation.results import Evaluation, summed_up
from multienv.meta import MultiEnvSpec
from multienv.sessions.keys import secrets_of
from multienv.specs import EnvSpec
from multienv.types import Column, EpisodeStatus

Row = Mapping[str, Any]
OnProgress = Callable[[int, int], None]
"""Called with how many attempts are made, and how many there are to make."""

_MAY_CHANGE: Final = {
    "api_key",
    "base_url",
    "num_attempts",
    "num_tasks",
    "max_concurrent",
    "price_per_million_prompt_tokens",
    "price_per_million_completion_tokens",
    "difficulty_key",
    "request_timeout_s",
    "max_retries",
}
"""What may differ when an evaluation is gone on with: it changes no attempt."""


@dataclass(frozen=True, slots=True)
class _Job:
    row: Row
    number: int

    @property
    def key(self) -> tuple[str, int]:
        return self.row[Column.TASK_ID], self.number


def evaluate(
    spec: MultiEnvSpec,
    policy: Policy,
    settings: EvalSpec,
    directory: Path,
    *,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Evaluation:
    """Try every task a number of times; what the directory holds already is not tried again.

    Args:
        spec: The mixture: each environment's evaluation tasks where it declares some, else those it trains on.
        policy: Who plays.
        settings: How often, how many at once, how it is sampled.
        directory: Where the record is, or will be. Every attempt is there as soon as it is over.
        on_progress: Told how far it is.

    Returns:
        What was found, with all attempts of the record.

    Raises:
        SpecError: The mixture cannot be evaluated, or the directory holds another evaluation.
        ServerError: A server or the endpoint cannot be reached.
    """
    foreign = [name for name, each in spec.environments.items() if not isinstance(each, EnvSpec)]
    if foreign:
        raise SpecError(
            f"{', '.join(map(repr, foreign))}: environments that ORS knows nothing of cannot be evaluated here; leave "
            "them out, or evaluate with the trainer"
        )
    return asyncio.run(_evaluate(spec, policy, settings, directory, on_progress))


async def _evaluate(
    spec: MultiEnvSpec, policy: Policy, settings: EvalSpec, directory: Path, on_progress: OnProgress
) -> Evaluation:
    record: EvaluationRecord | None = None
    try:
        await policy.prepare()
        spec.live.take_messages(is_on=True)
        rows = await asyncio.to_thread(tasks_of, spec, settings.num_tasks)
        factories: dict[str, Any] = await asyncio.to_thread(lambda: spec.environment_factory)
        record = writing = EvaluationRecord.begin(directory, _shared(spec, policy, settings), _secrets(spec, settings))
        jobs = _jobs(rows, settings.num_attempts)
        wanted = {job.key for job in jobs}
        done = {(one.episode.task_id, one.number) for one in record.attempts}
        left = [job for job in jobs if job.key not in done]
        num_done = len(wanted) - len(left)
        on_progress(num_done, len(wanted))
        gates = _gates(spec, settings)

        async def run(job: _Job) -> None:
            nonlocal num_done
            name = job.row[Column.ENVIRONMENT]
            declared: Any = spec.environments[name]
            for is_last in (False, False, True):
                async with AsyncExitStack() as stack:
                    for gate in gates[name]:
                        await stack.enter_async_context(gate)
                    attempt = await play(
                        factories[name](),
                        job.row,
                        policy,
                        settings,
                        declared.reward,
                        number=job.number,
                        difficulty=_difficulty(job.row, settings.difficulty_key),
                    )
                if is_last or attempt.episode.status is not EpisodeStatus.REFUSED:
                    break
                await asyncio.sleep(declared.limits.cool_down_s)  # an outage may be over by then
            writing.add(attempt)
            num_done += 1
            on_progress(num_done, len(wanted))

        async with asyncio.TaskGroup() as group:
            for job in left:
                group.create_task(run(job))
    except BaseExceptionGroup as group_of:
        raise _first(group_of) from None
    finally:
        if record is not None:
            record.close()
        await policy.close()
    counted = [one for one in record.attempts if (one.episode.task_id, one.number) in wanted]
    return summed_up(policy.name, counted, list(spec.environments), settings)


def tasks_of(spec: MultiEnvSpec, num_tasks: int | None) -> dict[str, list[Row]]:
    """Return the tasks to evaluate on, by environment.

    Args:
        spec: The mixture.
        num_tasks: The first so many of each environment; None for all.

    Raises:
        SpecError: A declaration does not fit its server.
        ServerError: A server cannot be reached.
    """
    held_out = spec.eval_dataset
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    if any(name not in held_out for name in spec.environments):
        for row in spec.task_dataset:
            rows[row[Column.ENVIRONMENT]].append(row)
    for name, own in held_out.items():
        rows[name] = list(own)
    return {name: rows[name][:num_tasks] for name in spec.environments}


def _jobs(rows: Mapping[str, list[Row]], num_attempts: int) -> list[_Job]:
    """Return all attempts: the first at every task before the second at any, environments by turns."""
    turns = [row for row in chain.from_iterable(zip_longest(*rows.values())) if row is not None]
    return [_Job(row, number) for number in range(num_attempts) for row in turns]


def _gates(spec: MultiEnvSpec, settings: EvalSpec) -> dict[str, list[asyncio.Semaphore]]:
    """Return what an attempt at an environment waits for: no limit is exceeded, so none refuses it."""
    shared = [asyncio.Semaphore(settings.max_concurrent)]
    if spec.live.ledger.max_sessions is not None:
        shared.append(asyncio.Semaphore(spec.live.ledger.max_sessions))
    gates = {}
    for name, client in spec.live.clients.items():
        most = client.opener.max_sessions
        gates[name] = [*([] if most is None else [asyncio.Semaphore(most)]), *shared]
    return gates


def _shared(spec: MultiEnvSpec, policy: Policy, settings: EvalSpec) -> dict[str, Any]:
    """Return what all attempts of an evaluation have in common, secrets left out."""
    shared = settings.model_dump(exclude=_MAY_CHANGE)
    targets = {}
    for name, each in spec.environments.items():
        target: Any = getattr(each, "target", None)
        targets[name] = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
    rules = {name: _rule(each.reward) for name, each in spec.environments.items() if isinstance(each, EnvSpec)}
    return {**shared, "model": policy.name, "environments": targets, "rewards": rules}


def _rule(rule: Any) -> dict[str, Any]:
    """Return what a reward rule says, functions by their names."""
    return {
        name: f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}" if callable(value) else value
        for name, value in dict(rule).items()
    }


def _secrets(spec: MultiEnvSpec, settings: EvalSpec) -> frozenset[str]:
    own = set() if settings.api_key is None else {settings.api_key.get_secret_value()}
    return secrets_of(spec.environments) | own


def _difficulty(row: Row, key: str) -> str | None:
    task = json.loads(row[Column.TASK])
    found = task.get(key) if isinstance(task, Mapping) else None
    return None if found is None else str(found)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return what went wrong first, out of all that was going on."""
    first: BaseException = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
