"""Decides when a user is told that a rule loses what its environment says: once per environment and cause.

Flow: `environment_reward` shows each batch's episodes with their rewards → a `UserWarning`, or nothing.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from multienv.rewards.reduce import scored_rewards
from multienv.specs import RewardSpec
from multienv.types import Episode, EpisodeStatus

NUM_FIRST_EPISODES: Final = 100
"""How many scored episodes are looked at for several step rewards."""

NUM_SILENT_GROUPS: Final = 10
"""How many groups in a row must have been unscored."""


class RewardNotices:
    """What one environment's reward function remembers of earlier batches, to warn once.

    Args:
        environment: Its name.
        spec: Its rule.
    """

    def __init__(self, environment: str, spec: RewardSpec) -> None:
        self._environment = environment
        self._spec = spec
        # Who wrote "last" has decided; who wrote nothing may not know.
        self._num_to_look_at = 0 if "reduction" in spec.model_fields_set else NUM_FIRST_EPISODES
        self._num_silent_groups = 0
        self._has_told_silence = False
        self._silent: Counter[str] = Counter()

    def observe(self, scored: Sequence[tuple[Episode, float | None]]) -> None:
        """Look at the environment's episodes of a batch, with their rewards, and warn if there is cause.

        Args:
            scored: The episodes and their rewards; those of one task are a group.
        """
        self._look_for_dense(scored)
        groups: defaultdict[str, list[tuple[Episode, float | None]]] = defaultdict(list)
        for episode, reward in scored:
            groups[episode.task_id].append((episode, reward))
        for group in groups.values():
            self._look_for_silence(group)

    def _look_for_dense(self, scored: Sequence[tuple[Episode, float | None]]) -> None:
        for episode, reward in scored:
            if self._num_to_look_at <= 0:
                return
            step_rewards = scored_rewards(episode)
            if reward is None or not step_rewards:
                continue
            self._num_to_look_at -= 1
            if len({step_reward for step_reward in step_rewards if step_reward != 0}) > 1:
                self._num_to_look_at = 0
                warnings.warn(
                    f"environment {self._environment!r} pays several step rewards in one episode (such as "
                    f"{_listed(step_rewards)}), of which only the last counts. If they are parts of a whole, declare "
                    'EnvSpec(..., reward=RewardSpec(reduction="total")); if each stands for all so far, declare '
                    'reduction="last" and this is not said again',
                    UserWarning,
                    stacklevel=4,
                )

    def _look_for_silence(self, group: Sequence[tuple[Episode, float | None]]) -> None:
        is_outage = not any(episode.is_scorable for episode, _ in group)  # told of elsewhere; no fault of the rule
        if is_outage or self._has_told_silence:
            return
        if any(reward is not None for _, reward in group):
            self._num_silent_groups = 0
            self._silent.clear()
            return
        self._num_silent_groups += 1
        self._silent.update(str(episode.status) for episode, _ in group)
        if self._num_silent_groups == NUM_SILENT_GROUPS:
            self._has_told_silence = True
            listed = ", ".join(f"{count} {status}" for status, count in self._silent.most_common())
            warnings.warn(
                f"environment {self._environment!r}: {NUM_SILENT_GROUPS} groups in a row went unscored ({listed}), and "
                f"a group without a number trains nothing. {self._advice()}",
                UserWarning,
                stacklevel=4,
            )

    def _advice(self) -> str:
        given_up = {EpisodeStatus.UNFINISHED, EpisodeStatus.TRUNCATED} & {*map(EpisodeStatus, self._silent)}
        if given_up:
            return (
                "For rollouts that give up, declare a number: EnvSpec(..., reward=RewardSpec(unscored=0.0)), and "
                'unfinished="reduce", truncated="reduce"'
            )
        return "No step of theirs carried a reward: look at what the environment pays, and when"


def _listed(rewards: tuple[float, ...]) -> str:
    shown = ", ".join(f"{reward:g}" for reward in rewards[:4])
    return shown if len(rewards) <= 4 else f"{shown}, ..."  # noqa: PLR2004 - as many as are shown
