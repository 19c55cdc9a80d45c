"""Decides what stands in the slot `reward_funcs`: environments' functions, shared ones, and what is done around them.

Flow: `MultiEnvSpec` → `RewardSlots` → TRL, which calls the functions; the first call of a batch ends its episodes, the
last one lets go of its sessions.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from multienv.live import LiveMixture
from multienv.rewards import (
    Batches,
    Columns,
    LogColumns,
    check_distinct,
    environment_functions,
    group_reward,
    is_function,
    is_scorable,
    mixture_reward,
    weights_notice,
)
from multienv.router import (
    EnvironmentAdapter,
    ForeignAdapter,
    MetaEnvironment,
    grade_last_messages,
    instance_of,
    score_groups,
)
from multienv.specs import EnvSpec, ForeignSpec, RewardFunction, RewardSpec


def _release(environments: Sequence[Any]) -> None:
    """Let go of the sessions of a batch that has been scored."""
    for environment in environments:
        if isinstance(environment, EnvironmentAdapter | MetaEnvironment):
            environment._release()  # noqa: SLF001 - hidden from TRL, which would show it to the policy


class RewardSlots:
    """The reward functions of a mixture, and their weights.

    Args:
        specs: The declarations by name.
        shared: The users' functions for all environments.
        live: What of the mixture lives in this process.
        columns: Gives the metadata columns of each environment; called when a function first needs them.
    """

    def __init__(
        self,
        specs: Mapping[str, EnvSpec | ForeignSpec],
        shared: Sequence[RewardFunction | str],
        live: LiveMixture,
        columns: Callable[[], Columns],
    ) -> None:
        self._specs, self._shared, self._live, self._columns = specs, shared, live, columns
        self._known = list(specs)
        self._batches = Batches(self._begin_batch, _release, self._is_scorable)
        self._has_warned = False

    def make(self) -> list[tuple[Any, float]]:
        """Build the reward functions with their weights, in fixed order.

        Raises:
            SpecError: Two have one name.
        """
        log_columns = LogColumns()
        rewards: list[tuple[Any, float]] = []
        for name, spec in self._specs.items():
            functions = (
                self._live.foreign[name].rewards(self._known, log_columns)
                if isinstance(spec, ForeignSpec)
                else environment_functions(name, spec, self._known, self._columns, log_columns)
            )
            if isinstance(spec, EnvSpec) and spec.use_group_reward:
                functions.append(group_reward(name, self._known, functools.partial(self._score_groups, name)))
            rewards += [(function, spec.reward_weight) for function in functions]
        rewards += [(function, 1.0) for function in self._shared]
        check_distinct(function for function, _ in rewards)
        # A model is called by TRL itself, with token ids; only functions come to see a batch.
        return [
            (self._batches.watch(function) if is_function(function) else function, weight)
            for function, weight in rewards
        ]

    def make_one(self) -> Callable[..., list[float | None]]:
        """Build the one reward function over all rows."""
        rules = {name: spec.reward for name, spec in self._specs.items() if isinstance(spec, EnvSpec)}
        return self._batches.before(mixture_reward(self._known, rules))

    def guard(self, function: Any) -> Any:
        """Keep a function beside the mixture's from scoring rollouts that infrastructure ended."""
        return self._batches.guard(function) if is_function(function) else function

    def hand_over(self, others: Iterable[str]) -> None:
        """Leave the end of a batch to a trainer of this library, and know of environments beside the mixture's."""
        self._batches.tells_end = False
        self._known += [name for name in others if name not in self._known]

    def _begin_batch(self, environments: Sequence[Any], completions: Sequence[Any]) -> None:
        """Bring a batch's episodes to their end, and say once what TRL's own trainer does to the weights."""
        grade_last_messages(environments, completions)
        if self._batches.tells_end and not self._has_warned:
            self._has_warned = True
            if notice := weights_notice({name: spec.reward_weight for name, spec in self._specs.items()}):
                warnings.warn(notice, UserWarning, stacklevel=2)

    def _is_scorable(self, environment: Any) -> bool:
        """Tell whether the rollout of one of TRL's environments may count, by the rule of its environment."""
        if isinstance(environment, ForeignAdapter):
            return instance_of(environment) is not None
        if not isinstance(environment, EnvironmentAdapter | MetaEnvironment) or environment.environment is None:
            return True
        spec = self._specs.get(environment.environment)
        return not isinstance(spec, EnvSpec) or is_scorable(environment.episode, spec.reward)

    def _score_groups(self, name: str, adapters: Sequence[Any], completions: Sequence[Any]) -> list[float | None]:
        spec = self._specs[name]
        by_rule = functools.partial(is_scorable, spec=spec.reward if isinstance(spec, EnvSpec) else RewardSpec())
        return score_groups(name, adapters, completions, self._live.num_generations, by_rule)
