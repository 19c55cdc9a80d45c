"""Decides what is said of an evaluation: pass@k, reward, latency, tokens and cost, by environment and difficulty.

Flow: the attempts of a record → `summed_up` → a table, JSON.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multienv.evaluation.declaration import EvalSpec
from multienv.evaluation.play import Attempt
from multienv.evaluation.statistics import Estimate, estimate, estimate_of_means, pass_at_k, quantile
from multienv.reporting import plain


@dataclass(frozen=True, slots=True)
class Result:
    """What some attempts say.

    Attributes:
        num_tasks: Tasks with an attempt that counts.
        num_attempts: Attempts that count.
        num_lost: Attempts that infrastructure ended; they count nowhere.
        statuses: How many attempts ended how.
        passes: pass@k by k, for each k that every task has enough attempts for.
        reward: Mean reward over tasks; None where nothing was scored.
    """

    num_tasks: int
    num_attempts: int
    num_lost: int
    statuses: Mapping[str, int]
    passes: Mapping[int, Estimate]
    reward: Estimate | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        policy: Who was evaluated.
        environments: By environment.
        difficulties: By environment and difficulty, where tasks say one.
        overall: The mean over environments, each counting the same.
        overall_reward: The same of the rewards.
        latency: Seconds: median and 95th percentile of a request, and of an attempt.
        tokens: Prompt and completion tokens of all attempts.
        cost: What they cost; None where no price is given.
    """

    policy: str
    environments: Mapping[str, Result]
    difficulties: Mapping[str, Mapping[str, Result]]
    overall: Mapping[int, Estimate]
    overall_reward: Estimate | None
    latency: Mapping[str, float]
    tokens: Mapping[str, int]
    cost: float | None

    @property
    def num_lost(self) -> int:
        """Attempts that infrastructure ended."""
        return sum(result.num_lost for result in self.environments.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def summed_up(policy: str, attempts: Sequence[Attempt], names: Sequence[str], settings: EvalSpec) -> Evaluation:
    """Sum attempts up.

    Args:
        policy: Who was evaluated.
        attempts: All of them.
        names: The environments, in the order in which they are shown.
        settings: Its prices.
    """
    by_name = {name: [one for one in attempts if one.episode.environment == name] for name in names}
    levels = {name: _by_difficulty(own) for name, own in by_name.items()}
    prompt, completion = (sum(one.prompt_tokens for one in attempts), sum(one.completion_tokens for one in attempts))
    requests = [second for one in attempts for second in one.requests_s]
    seconds = [one.seconds for one in attempts if one.is_success is not None]
    results = {name: result_of(own) for name, own in by_name.items()}
    counted = [own for own in by_name.values() if any(one.is_success is not None for one in own)]
    ks = set.intersection(*(set(results[own[0].episode.environment].passes) for own in counted)) if counted else set()
    scored = [rewards for own in counted if (rewards := task_means(own, "reward"))]
    return Evaluation(
        policy=policy,
        environments=results,
        difficulties={
            name: {level: result_of(own) for level, own in found.items()} for name, found in levels.items() if found
        },
        overall={k: estimate_of_means([_passes(own, k) for own in counted]) for k in sorted(ks)},
        overall_reward=estimate_of_means([list(rewards.values()) for rewards in scored]) if scored else None,
        latency={
            "request_p50_s": quantile(requests, 0.5),
            "request_p95_s": quantile(requests, 0.95),
            "attempt_p50_s": quantile(seconds, 0.5),
            "attempt_p95_s": quantile(seconds, 0.95),
        },
        tokens={"prompt": prompt, "completion": completion},
        cost=cost_of(prompt, completion, settings),
    )


def result_of(attempts: Sequence[Attempt]) -> Result:
    """Sum up attempts of one environment."""
    counted = [one for one in attempts if one.is_success is not None]
    tasks = _by_task(counted)
    most = min((len(own) for own in tasks.values()), default=0)
    rewards = task_means(counted, "reward")
    return Result(
        num_tasks=len(tasks),
        num_attempts=len(counted),
        num_lost=len(attempts) - len(counted),
        statuses=dict(Counter(one.episode.status.value for one in attempts)),
        passes={k: estimate(_passes(counted, k)) for k in _ks(most)},
        reward=estimate(list(rewards.values())) if rewards else None,
    )


def task_means(attempts: Sequence[Attempt], what: str) -> dict[str, float]:
    """Return each task's mean success or reward over those of its attempts that have one.

    Args:
        attempts: The attempts.
        what: `"success"` or `"reward"`.
    """
    means: dict[str, float] = {}
    for task, own in _by_task(attempts).items():
        values = [one.is_success if what == "success" else one.episode.reward for one in own]
        if known := [float(value) for value in values if value is not None]:
            means[task] = math.fsum(known) / len(known)
    return means


def cost_of(prompt_tokens: int, completion_tokens: int, settings: EvalSpec) -> float | None:
    """Return what tokens cost, in the currency of the prices; None where no price is given.

    Example:
        >>> cost_of(1_000_000, 500_000, EvalSpec(price_per_million_prompt_tokens=2.0))
        2.0
    """
    prices = settings.price_per_million_prompt_tokens, settings.price_per_million_completion_tokens
    if prices == (None, None):
        return None
    return (prompt_tokens * (prices[0] or 0.0) + completion_tokens * (prices[1] or 0.0)) / 1e6


def _ks(most: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of attempts itself."""
    return sorted({k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= most} | ({most} if most else set()))


def _passes(attempts: Sequence[Attempt], k: int) -> list[float]:
    tasks = _by_task([one for one in attempts if one.is_success is not None])
    return [pass_at_k(len(own), sum(one.is_success is True for one in own), k) for own in tasks.values()]


def _by_task(attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    tasks: defaultdict[str, list[Attempt]] = defaultdict(list)
    for one in attempts:
        tasks[one.episode.task_id].append(one)
    return dict(sorted(tasks.items()))


def _by_difficulty(attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    levels: defaultdict[str, list[Attempt]] = defaultdict(list)
    for one in attempts:
        if one.difficulty is not None:
            levels[one.difficulty].append(one)
    return dict(sorted(levels.items()))
