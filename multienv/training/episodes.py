"""Decides what is kept of each rollout of a batch: why it ended, its line in the record, its figures in the log.

Flow: `MultiEnvGRPOTrainer` → `KeepsEpisodes` → `GRPOTrainer`; then `reporting` and `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from multienv.reporting import EpisodeRecord, plain
from multienv.rewards import episode_status
from multienv.rewards import is_success as rule_is_success
from multienv.router import EnvironmentAdapter, ForeignAdapter
from multienv.router.grading import ends_with_call, note_cutoffs
from multienv.sessions.breaker import Circuit
from multienv.sessions.keys import secrets_of
from multienv.specs import EnvSpec
from multienv.training.metrics import STATUSES, Figures, environment_metrics, is_success
from multienv.types import Column, Episode, EpisodeStatus, JSONObject

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Base
else:
    _Base = object

_CIRCUITS: Final = {Circuit.CLOSED: 0.0, Circuit.HALF_OPEN: 1.0, Circuit.OPEN: 2.0}
_RUN: Final = "multienv.EpisodeRecord"
_FAILED_CALL: Final = "{'error': "
"""How TRL begins the message of a call that came to nothing."""


class KeepsEpisodes(_Base):  # type: ignore[misc]  # TRL is untyped
    """Keeps the episodes of each batch: in the record, and as metrics; mixed in before `GRPOTrainer`."""

    _record: EpisodeRecord | None = None
    _episodes: list[Episode]
    _totals: list[float]

    def _start_record(self, *, is_on: bool) -> None:
        """Write episodes from now on, or do not."""
        if is_on:
            secrets = secrets_of(self.spec.environments)
            self._record = EpisodeRecord(self.args.output_dir, self.accelerator.process_index, secrets)
            self.add_callback(_Runs(self._record, self.accelerator.num_processes))

    def is_success(self, episode: Episode) -> bool:
        """Tell whether an episode counts as a success in the log: by its environment's rule, if it has one."""
        declared = self.spec.environments.get(episode.environment)
        if isinstance(declared, EnvSpec):
            return rule_is_success(episode, declared.reward) is True
        return is_success(episode)

    def _judged(self, episode: Episode) -> Episode:
        """Return an episode as its environment's rule has it: failed, where its metadata report a failure."""
        declared = self.spec.environments.get(episode.environment)
        if not isinstance(declared, EnvSpec) or episode_status(episode, declared.reward) is episode.status:
            return episode
        return replace(episode, status=EpisodeStatus.FAILED, reason="is_failure recognises a failure in the metadata")

    def _note_cutoffs(self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]]) -> None:
        """Tell the episodes which completions TRL's own limits cut short, before they are graded and scored."""
        if self.environments:
            note_cutoffs(self.environments, self._cutoffs(completions, completion_ids))

    def _cutoffs(self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]]) -> list[str | None]:
        ends = frozenset([*self.eos_token_ids, self._tokenizer.pad_token_id])
        most_tokens, most_turns = self.max_completion_length, self.max_tool_calling_iterations
        return [
            cutoff(completion, ids, ends, most_tokens, most_turns)
            for completion, ids in zip(completions, completion_ids, strict=True)
        ]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        columns = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        start = self.accelerator.process_index * len(prompts)
        own = columns[start : start + len(prompts)].tolist()
        self._totals = [_total(row, self.reward_weights.tolist()) for row in own]
        reasons = self._cutoffs(completions, completion_ids_list)
        self._episodes = [
            replace(
                self._judged(_episode(row, environment, reason)),
                completion=_messages(completion),
                reward=own_reward(str(row.get(Column.ENVIRONMENT)), self.reward_func_names, rewards),
            )
            for row, environment, reason, completion, rewards in zip(
                inputs, self.environments or (), reasons, completions, own, strict=bool(self.environments)
            )
        ]
        return columns

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._episodes = []
        output = super()._generate_and_score_completions(inputs)
        if self._episodes:
            self._keep(inputs, output)
        return output

    def _keep(self, inputs: Sequence[Mapping[str, Any]], output: Mapping[str, Any]) -> None:
        """Write the episodes down, and log their figures."""
        is_training: bool = self.model.training
        rank, num_rows = self.accelerator.process_index, len(self._episodes)
        num_generations = self.num_generations if is_training else self.num_generations_eval
        mask = output["completion_mask"]
        tokens = (mask * output["tool_mask"] if "tool_mask" in output else mask).sum(1).tolist()
        self._episodes = [
            replace(
                episode,
                training_step=self.state.global_step,
                is_evaluation=not is_training,
                rank=rank,
                group=(rank * num_rows + row) // num_generations,
                num_completion_tokens=int(tokens[row]),
            )
            for row, episode in enumerate(self._episodes)
        ]
        if self._record is not None:
            self._record.add(self._episodes)
        names = sorted(self.environment_factories)
        advantages = output["advantages"].tolist()
        rows = torch.tensor(
            [
                self._figures(names, episode, total, advantage)
                for episode, total, advantage in zip(self._episodes, self._totals, advantages, strict=True)
            ],
            dtype=torch.float32,
            device=self.accelerator.device,
        )
        everyones = [Figures(*row) for row in self.accelerator.gather(rows).tolist()]
        metrics = environment_metrics(everyones, names, num_generations)
        for name, value in metrics.items():
            # Sets are evaluated one by one and logged under one name: a set says nothing of other environments.
            if is_training or metrics[f"env/{name.split('/')[1]}/rollouts"]:
                self._metrics["train" if is_training else "eval"][name].append(value)
        if is_training:
            self._learn(inputs, everyones)

    def _learn(self, inputs: Sequence[Mapping[str, Any]], everyones: Sequence[Figures]) -> None:
        """Take in the figures of a training batch, of all ranks; see `FollowsCurriculum`."""

    def _figures(self, names: Sequence[str], episode: Episode, total: float, advantage: float) -> Figures:
        client = self.spec.live.clients.get(episode.environment)
        num_calls, num_failures = _calls(episode, has_steps=client is not None)
        return Figures(
            environment=names.index(episode.environment),
            status=STATUSES.index(episode.status),
            reward=math.nan if episode.reward is None else episode.reward,
            total=total,
            is_success=float(self.is_success(episode)) if episode.is_scorable else math.nan,
            num_tool_calls=num_calls,
            num_tool_failures=num_failures,
            num_turns=sum(message.get("role") == "assistant" for message in episode.completion),
            num_completion_tokens=episode.num_completion_tokens,
            open_s=math.nan if episode.session_id is None else episode.open_s,
            tool_s=sum(step.duration_s for step in episode.steps),
            num_retries=episode.num_retries,
            circuit=math.nan if client is None else _CIRCUITS[client.opener.breaker.state],
            advantage=advantage,
        )


class _Runs(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Tells the record which run its lines belong to, whenever training starts or goes on."""

    def __init__(self, record: EpisodeRecord, num_ranks: int) -> None:
        self._record = record
        self._num_ranks = num_ranks

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - TRL's signature
        """Go on with the run of a checkpoint, or begin one; all ranks with the first one's."""
        resumed = None
        if state.global_step:
            kept = state.stateful_callbacks.get(_RUN)
            resumed = self._record.last_run() if kept is None else str(kept["attributes"]["run"])
        (run,) = broadcast_object_list([resumed or self._record.new_run()])
        self._record.resume(run, state.global_step, self._num_ranks, evaluates_first=bool(args.eval_on_start))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - TRL's signature
        """Write down whose checkpoint the next one is: another run may have used the directory since."""
        state.stateful_callbacks[_RUN] = {"args": {}, "attributes": {"run": self._record.run}}


def cutoff(completion: Any, ids: Sequence[int], ends: frozenset[int], most_tokens: int, most_turns: int) -> str | None:
    """Say which of TRL's limits cut a completion short.

    Args:
        completion: The chat messages, or a text.
        ids: Its tokens.
        ends: The tokens that end a message.
        most_tokens: TRL's `max_completion_length`.
        most_turns: TRL's `max_tool_calling_iterations`.

    Returns:
        The limit, in words; None where the policy stopped by itself.

    Source:
        `GRPOTrainer._generate`, where it logs `completions/clipped_ratio`, and the end of `_tool_call_loop`.
    """
    if not ids or ids[-1] not in ends:
        return f"max_completion_length={most_tokens} is reached"
    if not ends_with_call(completion):
        return None
    num_turns = sum(bool(message.get("tool_calls")) for message in completion) - 1
    if num_turns >= most_turns:
        return f"max_tool_calling_iterations={most_turns} is reached"
    return f"the result of its last tool call did not fit: max_completion_length={most_tokens}, or the model's context"


def own_reward(environment: str, columns: Sequence[str], rewards: Sequence[float]) -> float | None:
    """Return what the environment itself gave a rollout.

    Args:
        environment: Its name.
        columns: The names of the reward functions.
        rewards: Their values for the rollout; NaN for unscored.

    Returns:
        The value of the environment's own column; where it has none, the sum of the users' functions for it.

    Example:
        >>> own_reward("a", ["a", "a/f", "b"], [0.5, 1.0, float("nan")]), own_reward("a", ["a/f", "a/g"], [1.0, 2.0])
        (0.5, 3.0)
    """
    if environment in columns:
        reward = rewards[columns.index(environment)]
        return None if math.isnan(reward) else reward
    own = [
        reward
        for column, reward in zip(columns, rewards, strict=True)
        if column.startswith(f"{environment}/") and not math.isnan(reward)
    ]
    return math.fsum(own) if own else None


def _total(rewards: Iterable[float], weights: Iterable[float]) -> float:
    """Return a row's weighted sum; NaN where no function scored it."""
    scored = [weight * reward for reward, weight in zip(rewards, weights, strict=True) if not math.isnan(reward)]
    return math.fsum(scored) if scored else math.nan


def _episode(row: Mapping[str, Any], environment: Any, cut: str | None) -> Episode:
    """Return the episode of a rollout; one of another making is described as far as it can be."""
    if isinstance(environment, EnvironmentAdapter):
        return environment.episode
    failure = environment._failure if isinstance(environment, ForeignAdapter) else None  # noqa: SLF001 - hidden from TRL, not from this library
    status, reason = EpisodeStatus.UNFINISHED, ""
    if failure is not None:
        status, reason = EpisodeStatus.FAILED, failure
    elif getattr(environment, "finished", False) is True:
        status = EpisodeStatus.FINISHED
    elif cut is not None:
        status, reason = EpisodeStatus.TRUNCATED, cut
    name, task_id = str(row.get(Column.ENVIRONMENT)), str(row.get(Column.TASK_ID) or "")
    return Episode(name, task_id, None, (), status, reason)


def _messages(completion: Any) -> tuple[JSONObject, ...]:
    if isinstance(completion, str):
        return ({"role": "assistant", "content": completion},)
    return tuple(plain(message) for message in completion)


def _calls(episode: Episode, *, has_steps: bool) -> tuple[int, int]:
    """Return how many calls the policy made of the environment's tools, and how many of them came to nothing."""
    if has_steps:
        return episode.num_tool_calls, episode.num_tool_failures
    results = [str(message.get("content")) for message in episode.completion if message.get("role") == "tool"]
    return len(results), sum(result.startswith(_FAILED_CALL) for result in results)
