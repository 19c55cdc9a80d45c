"""Decides what an episode is worth by its environment's rule, and that nothing is paid for other environments' rows.

Flow: `meta` puts one function per environment into `reward_funcs`; TRL calls it with the whole batch; each `Episode` is
reduced, and shaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multienv.errors import RewardFunctionError, RoutingError
from multienv.rewards.notices import RewardNotices
from multienv.rewards.reduce import counted_steps, reduce_rewards, scored_rewards
from multienv.rewards.rows import owners
from multienv.rewards.shape import shape_reward
from multienv.specs import RewardSpec
from multienv.types import Episode, EpisodeStatus


def episode_status(episode: Episode, spec: RewardSpec) -> EpisodeStatus:
    """Return the status by which an episode is judged: its own, or failed where its metadata report a failure.

    Args:
        episode: The episode.
        spec: The environment's rule, whose `is_failure` is asked.

    Raises:
        RewardFunctionError: `is_failure` raised an exception.
    """
    if not episode.is_scorable or spec.is_failure is None:
        return episode.status
    for step in counted_steps(episode):
        try:
            is_failed = step.metadata is not None and spec.is_failure(step.metadata)
        except Exception as error:
            raise RewardFunctionError(
                f"environment {episode.environment!r}: is_failure raised {error!r} for the metadata {step.metadata!r}; "
                "expected a bool for any dict that the environment sends",
                environment=episode.environment,
            ) from error
        if is_failed:
            return EpisodeStatus.FAILED
    return episode.status


def is_scorable(episode: Episode, spec: RewardSpec) -> bool:
    """Tell whether an episode may count at all: False where infrastructure ended it, by its environment's rule.

    Args:
        episode: The episode.
        spec: The environment's rule.

    Raises:
        RewardFunctionError: `is_failure` raised an exception.
    """
    return episode_status(episode, spec) not in (EpisodeStatus.FAILED, EpisodeStatus.REFUSED)


def reduced_reward(episode: Episode, spec: RewardSpec) -> float | None:
    """Return what an episode counts before shaping; None for unscored.

    Args:
        episode: The episode.
        spec: The environment's rule.

    Raises:
        RewardFunctionError: A function of the rule broke its contract.
    """
    if not is_scorable(episode, spec):
        return None
    status = episode.status
    counts: str | float | None = "reduce"
    if status is not EpisodeStatus.FINISHED:
        counts = spec.truncated if status is EpisodeStatus.TRUNCATED else spec.unfinished
    if not isinstance(counts, str):
        return counts
    if rewards := scored_rewards(episode):
        return reduce_rewards(rewards, spec.reduction, episode.environment)
    return None if status is EpisodeStatus.FINISHED else spec.unscored


def episode_reward(episode: Episode, spec: RewardSpec) -> float | None:
    """Return what an episode is worth: a pure function of the record.

    Args:
        episode: The episode.
        spec: The environment's rule.

    Returns:
        A number; None for an episode that carries no signal, always so where infrastructure ended it.

    Raises:
        RewardFunctionError: A function of the rule broke its contract.
    """
    reduced = reduced_reward(episode, spec)
    return None if reduced is None else shape_reward(reduced, len(counted_steps(episode)), spec)


def is_success(episode: Episode, spec: RewardSpec) -> bool | None:
    """Tell whether an episode was a success, by its reduced reward: scale, offset, clip and penalty change nothing.

    Args:
        episode: The episode.
        spec: The environment's rule.

    Returns:
        None for an unscored episode.

    Raises:
        RewardFunctionError: A function of the rule broke its contract.
    """
    reduced = reduced_reward(episode, spec)
    if reduced is None:
        return None
    return reduced > 0 if spec.success_threshold is None else reduced >= spec.success_threshold


def environment_reward(name: str, known: Sequence[str], spec: RewardSpec) -> Callable[..., list[float | None]]:
    """Make the reward function of one environment.

    Args:
        name: The environment; also the function's name, and so its column in TRL's log.
        known: All environments of the mixture.
        spec: Its rule.

    Returns:
        A TRL reward function: one `float | None` per row. None for rows of other environments, and for episodes that
        are unscored by the rule.
    """
    notices = RewardNotices(name, spec)

    def reward(environments: Sequence[Any] | None = None, **batch: Any) -> list[float | None]:
        scored = _scored(known, {name: spec}, environments, batch, only=name)
        notices.observe([(episode, reward) for episode, reward in scored if episode is not None])
        return [reward for _, reward in scored]

    reward.__name__ = reward.__qualname__ = name
    return reward


def mixture_reward(known: Sequence[str], specs: Mapping[str, RewardSpec]) -> Callable[..., list[float | None]]:
    """Make the one function over all rows: each row its own environment's reward.

    Args:
        known: All environments of the mixture.
        specs: The rule of each environment that has one; for others it is the number in the attribute `reward`.

    Returns:
        A TRL reward function called `reward`.
    """

    def reward(environments: Sequence[Any] | None = None, **batch: Any) -> list[float | None]:
        return [reward for _, reward in _scored(known, specs, environments, batch)]

    return reward


def _scored(
    known: Sequence[str],
    specs: Mapping[str, RewardSpec],
    environments: Sequence[Any] | None,
    batch: dict[str, Any],
    only: str | None = None,
) -> list[tuple[Episode | None, float | None]]:
    """Return the episode and the reward of every row; twice None for rows that are not asked for."""
    if environments is None:
        raise RoutingError(
            "an environment's reward was asked for without environments=[...]; GRPOTrainer passes it when it is given "
            "spec.environment_factory"
        )
    rows = owners(known, {**batch, "environments": environments})
    own = [getattr(adapter, "environment", None) == owner for owner, adapter in zip(rows, environments, strict=True)]
    return [
        _scored_row(adapter, specs.get(owner)) if is_own and only in (None, owner) else (None, None)
        for owner, adapter, is_own in zip(rows, environments, own, strict=True)
    ]


def _scored_row(adapter: Any, spec: RewardSpec | None) -> tuple[Episode | None, float | None]:
    """Return an adapter's episode and reward; a foreign environment has no rule, and need not have either."""
    episode = getattr(adapter, "episode", None) if spec is not None else None
    if spec is not None and isinstance(episode, Episode):
        return episode, episode_reward(episode, spec)
    reward: Any = getattr(adapter, "reward", None)  # which may be a tool of that name
    return None, reward if isinstance(reward, int | float) else None
