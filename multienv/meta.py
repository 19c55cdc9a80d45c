"""Decides how the rooms are joined: the composition root a user builds, and the slots of a TRL trainer read off it.

Flow: the user's mapping → `specs` → here → `train_dataset`, `environment_factory`, `reward_funcs` → `GRPOTrainer`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from multienv.dataset import TaskList, build_dataset
from multienv.errors import SessionLimitError, SpecError
from multienv.rewards import (
    BatchEnd,
    Columns,
    LogColumns,
    callable_name,
    environment_reward,
    mixture_reward,
    routed,
    weights_notice,
)
from multienv.router import EnvironmentAdapter, MetaEnvironment, Route, make_factory, make_meta_factory
from multienv.sessions import EnvironmentClient, Ledger, shut_down
from multienv.specs import EnvSpec, RewardFunction, check_disjoint, declare

if TYPE_CHECKING:
    from datasets import Dataset

_CLOSE_PATIENCE_S = 30.0
_DECLARED = ("_specs", "_shared", "_system_prompt", "_max_sessions", "_max_concurrent_starts")


def _release(environments: Sequence[Any]) -> None:
    """Let go of the sessions of a batch that has been scored."""
    for environment in environments:
        if isinstance(environment, EnvironmentAdapter | MetaEnvironment):
            environment._release()  # noqa: SLF001 - hidden from TRL, which would show it to the policy


T = TypeVar("T")


class MultiEnvSpec:
    """Several ORS environments as one value, read off by a TRL trainer like an `OpenRewardSpec`.

    Lazy: nothing is fetched before first use, and each thing is fetched once. A context manager: leaving it closes
    every session. Sessions still open when the interpreter exits are closed then.

    Args:
        environments: From a unique name to an `EnvSpec`, a target (catalogue name, URL, `Environment` class), or a TRL
            `OpenRewardSpec`, whose parameters are taken over.
        reward_funcs: The user's reward functions for all environments: a TRL reward function, or a sequence of them.
        system_prompt: System message of every prompt, unless an `EnvSpec` has its own.
        max_sessions: Most sessions of all environments open at once; None for no limit.
        max_concurrent_starts: Most sessions of all environments being opened at once; None for no limit.

    Raises:
        SpecError: The declaration cannot be right; nothing was fetched.
        OverlappingTasksError: Two environments would train on the same task.

    Example:
        >>> spec = MultiEnvSpec({"seta": EnvSpec("Eigent/SETA", num_tasks=64), "swe": "nebius/SWE-rebench-V2"})
        >>> spec
        MultiEnvSpec(seta, swe)
        >>> [function.__name__ for function in spec.reward_funcs]
        ['seta', 'swe']
    """

    def __init__(
        self,
        environments: Mapping[str, Any],
        *,
        reward_funcs: RewardFunction | Sequence[RewardFunction] = (),
        system_prompt: str | None = None,
        max_sessions: int | None = None,
        max_concurrent_starts: int | None = None,
    ) -> None:
        self._specs = declare(environments)
        self._shared = (reward_funcs,) if callable(reward_funcs) else tuple(reward_funcs)
        self._system_prompt = system_prompt
        self._max_sessions, self._max_concurrent_starts = max_sessions, max_concurrent_starts
        self._start()
        if notice := weights_notice({name: spec.reward_weight for name, spec in self._specs.items()}):
            warnings.warn(notice, UserWarning, stacklevel=2)

    def _start(self) -> None:
        """Make what lives in this process only."""
        self._ledger = Ledger(max_sessions=self._max_sessions, max_concurrent_starts=self._max_concurrent_starts)
        self._clients = {name: EnvironmentClient(name, spec, self._ledger) for name, spec in self._specs.items()}
        self._rewards = self._named_rewards()

    @property
    def environments(self) -> Mapping[str, EnvSpec]:
        """The declarations by name, in order."""
        return dict(self._specs)

    @cached_property
    def train_dataset(self) -> Dataset:
        """The tasks of all environments, one after the other; TRL shuffles them.

        Columns: those of `multienv.types.Column`, and the metadata that can stand beside them.

        Raises:
            SpecError: A declaration does not fit its server: split, index, empty list, overlapping tasks.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        return self._built[0]

    @cached_property
    def environment_factory(self) -> dict[str, type[EnvironmentAdapter]]:
        """The factory of each environment's adapters, by name: what TRL takes for several environments.

        Raises:
            ServerError: A server cannot be reached, or answers wrongly.
        """
        tools = self._everywhere(EnvironmentClient.tools)
        return {
            name: make_factory(Route(name, client.spec.split, tools[name], client.open))
            for name, client in self._clients.items()
        }

    @cached_property
    def meta_environment_factory(self) -> type[MetaEnvironment]:
        """One factory for all environments, for trainers that accept a single callable; it routes on `reset`.

        A tool whose name two environments have is called `<environment>__<tool>`.
        """
        return make_meta_factory(self.environment_factory)

    @property
    def reward_funcs(self) -> list[RewardFunction]:
        """The reward functions, in fixed order.

        For each environment its own, named after it, then the user's for that environment, named
        `<environment>/<function>`; then the shared ones. A new list each time, for TRL writes into it.
        """
        return [function for function, _ in self._rewards]

    @property
    def reward_weights(self) -> list[float]:
        """The matching weights for `GRPOConfig(reward_weights=...)`, exactly as many as `reward_funcs`."""
        return [weight for _, weight in self._rewards]

    @cached_property
    def reward_func(self) -> Callable[..., list[float | None]]:
        """One reward function over all rows: each row its own environment's reward."""
        return mixture_reward(tuple(self._specs))

    def trainer_kwargs(self) -> dict[str, Any]:
        """Return the three slots of a TRL trainer by their names there.

        Example:
            `GRPOTrainer(model=..., args=..., **spec.trainer_kwargs())`
        """
        return {
            "train_dataset": self.train_dataset,
            "environment_factory": self.environment_factory,
            "reward_funcs": self.reward_funcs,
        }

    def close(self) -> None:
        """Close every session and connection. Safe to call twice; final: a closed spec opens no new session."""
        for client in self._clients.values():
            client.close()
        shut_down(self._ledger, _CLOSE_PATIENCE_S)

    def share_among(self, num_ranks: int) -> None:
        """Keep one process's share of all limits on counts and rates; before the first session.

        Args:
            num_ranks: How many processes train together.
        """
        self._ledger.share_among(num_ranks)
        for client in self._clients.values():
            client.share_among(num_ranks)

    def check_sessions(self, needed: Mapping[str, int]) -> None:
        """Check that a batch's sessions can all be open at once, before any is opened.

        Args:
            needed: Sessions needed at once in this process, by environment.

        Raises:
            SessionLimitError: They cannot; it names the need, the limit and what to change.
        """
        if short := self._first_short(needed):
            what, need, limit = short
            raise SessionLimitError(
                f"a batch needs {need} sessions of {what} at once in this process, and its share of max_sessions is "
                f"{limit}; raise the limit, or lower per_device_train_batch_size or steps_per_generation"
            )

    def has_room_for(self, needed: Mapping[str, int]) -> bool:
        """Tell whether so many sessions may be open at once in this process, by environment."""
        return self._first_short(needed) is None

    def _first_short(self, needed: Mapping[str, int]) -> tuple[str, int, int] | None:
        """Return the first limit that is too low: whose it is, the need, and the limit."""
        limits = [
            (f"environment {name!r}", need, self._clients[name].opener.max_sessions) for name, need in needed.items()
        ]
        limits.append(("the whole mixture", sum(needed.values()), self._ledger.max_sessions))
        return next(((what, need, limit) for what, need, limit in limits if limit is not None and need > limit), None)

    def open_ahead(self, environment: str, task_index: int) -> None:
        """Start opening a session that the next `reset` for this task will get."""
        self._clients[environment].open_ahead(task_index)

    def __enter__(self) -> Self:
        """Return the spec itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the names."""
        return f"{type(self).__name__}({', '.join(self._specs)})"

    def __getstate__(self) -> dict[str, Any]:
        """Keep the declaration: connections and sessions stay in the process that has them."""
        return {name: self.__dict__[name] for name in _DECLARED} | {
            name: self.__dict__[name] for name in ("_built", "train_dataset") if name in self.__dict__
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start anew from the declaration; what the dataset holds need not be fetched again."""
        self.__dict__.update(state)
        self._start()

    @cached_property
    def _built(self) -> tuple[Dataset, dict[str, frozenset[str]]]:
        tasks = self._everywhere(EnvironmentClient.tasks)
        check_disjoint(client.task_set() for client in self._clients.values())
        return build_dataset(
            [
                TaskList(
                    name,
                    spec.split,
                    tasks[name],
                    spec.system_prompt if spec.system_prompt is not None else self._system_prompt,
                    spec.include_metadata,
                )
                for name, spec in self._specs.items()
            ]
        )

    def _everywhere(self, fetch: Callable[[EnvironmentClient], T]) -> dict[str, T]:
        """Fetch one thing from all environments at once; the first error in their order is raised."""
        with ThreadPoolExecutor(len(self._clients), thread_name_prefix="multienv-fetch") as pool:
            return dict(zip(self._clients, pool.map(fetch, self._clients.values()), strict=True))

    def _named_rewards(self) -> list[tuple[RewardFunction, float]]:
        """Build the reward functions with their weights, and refuse two of one name."""
        known = tuple(self._specs)
        log_columns = LogColumns()
        rewards: list[tuple[RewardFunction, float]] = []
        for name, spec in self._specs.items():
            if spec.use_environment_reward:
                rewards.append((environment_reward(name, known), spec.reward_weight))
            rewards += [
                (routed(function, name, known, self._columns, log_columns), spec.reward_weight)
                for function in spec.reward_funcs
            ]
        rewards += [(function, 1.0) for function in self._shared]
        counts = Counter(callable_name(function) for function, _ in rewards)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise SpecError(
                f"several reward functions are named {', '.join(map(repr, twice))}; TRL logs them by name, so give "
                "each function its own __name__"
            )
        batch_end = BatchEnd(_release)
        return [(batch_end.watch(function), weight) for function, weight in rewards]

    def _columns(self) -> Columns:
        return Columns(self._built[1])
