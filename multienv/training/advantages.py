"""Decides where an environment's weight, balance and scale reach the gradient: on the advantage, once a batch.

TRL normalises advantages, shuffles the generation batch and splits it into micro-batches. Only then is it known how
much each rollout counts in the loss, and none of them has been trained on yet. Evaluation is left alone.

Flow: `MultiEnvGRPOTrainer` → `WeighedAdvantages` → `GRPOTrainer`; the arithmetic is in `rewards.weights`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from multienv.rewards import Row, RunningScale, Weighing, add_up, carries_signal, loss_weights, row_factors, tally
from multienv.types import Column

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Base
else:
    _Base = object

_ROW: Final = "multienv_row"
_STATE: Final = "multienv.RunningScale"


class WeighedAdvantages(_Base):  # type: ignore[misc]  # TRL is untyped
    """Multiplies normalised advantages by the factor of their environment; mixed in before `GRPOTrainer`.

    Attributes:
        advantage_factors: The factor of each environment in the newest training batch.
    """

    advantage_factors: Mapping[str, float] = MappingProxyType({})
    _weighing: Weighing | None = None
    _batch_rewards: Sequence[float | None] = ()
    _batch_owners: list[Any] | None = None

    @property
    def _is_weighing(self) -> bool:
        return self._weighing is not None and bool(self.model.training)

    def _calculate_rewards(self, inputs: Any, *rest: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, *rest)
        if self._is_weighing:  # the rewards are those of all ranks
            is_scored = (~torch.isnan(rewards)).any(dim=1).tolist()
            sums = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1).tolist()
            self._batch_rewards = [reward if scored else None for reward, scored in zip(sums, is_scored, strict=True)]
        return rewards

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, Any]]) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if self._is_weighing:
            self._batch_owners = [row.get(Column.ENVIRONMENT) for row in inputs]
            output[_ROW] = torch.arange(len(inputs), device=output["advantages"].device)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        if self._weighing is not None and self._batch_owners is not None:
            owners, self._batch_owners = self._batch_owners, None
            self._weigh(self._weighing, owners, self._buffered_inputs)
        return inputs

    def _weigh(self, weighing: Weighing, owners: Sequence[Any], micro_batches: Sequence[dict[str, Any]]) -> None:
        """Multiply the advantages of a whole generation batch, which is split but not yet trained on."""
        places = [micro_batch.pop(_ROW).tolist() for micro_batch in micro_batches]
        rows = [
            row
            for its_places, micro_batch in zip(places, micro_batches, strict=True)
            for row in self._rows(weighing, owners, its_places, micro_batch)
        ]
        factors = weighing.factors(add_up(gather_object([tally(rows)])))
        for its_places, micro_batch in zip(places, micro_batches, strict=True):
            advantages = micro_batch["advantages"]
            each = row_factors((owners[place] for place in its_places), factors)
            micro_batch["advantages"] = advantages * torch.tensor(each, dtype=advantages.dtype).to(advantages.device)
        self.advantage_factors = factors
        self._correct_log(gather_object(row_factors(owners, factors)))

    def _rows(
        self, weighing: Weighing, owners: Sequence[Any], places: Sequence[int], micro_batch: Mapping[str, Any]
    ) -> list[Row]:
        """Return what counts of a micro-batch's rollouts, those of weighed environments."""
        mask = micro_batch["completion_mask"]
        if "tool_mask" in micro_batch:
            mask = mask * micro_batch["tool_mask"]
        lengths = mask.sum(dim=1).tolist()
        # Without a balance, a loss type of a newer TRL is none of our business.
        in_loss = loss_weights(lengths, self.loss_type) if weighing.balance != "none" else [1.0] * len(lengths)
        has_signal = carries_signal(self._batch_rewards, self.num_generations)
        start = self.accelerator.process_index * len(owners)
        return [
            Row(
                owners[place],
                advantage,
                length,
                weight,
                is_scored=self._batch_rewards[start + place] is not None,
                has_signal=has_signal[start + place],
            )
            for place, advantage, length, weight in zip(
                places, micro_batch["advantages"].tolist(), lengths, in_loss, strict=True
            )
            if owners[place] in weighing.weights
        ]

    def _correct_log(self, factors: Sequence[float]) -> None:
        """Let TRL's table of completions show the advantages that are trained on."""
        logged = self._logs["advantages"]
        batch = [logged.pop() for _ in factors][::-1]
        logged.extend(advantage * factor for advantage, factor in zip(batch, factors, strict=True))


class KeepScale(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Keeps a running scale in the trainer's state, and so in every checkpoint; a resumed run goes on with it.

    Args:
        scale: The trainer's scale.
    """

    def __init__(self, scale: RunningScale) -> None:
        self._scale = scale

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - theirs
        """Take over what the checkpoint holds, where training goes on from one."""
        if _STATE in state.stateful_callbacks:
            self._scale.load_state_dict(state.stateful_callbacks[_STATE]["attributes"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - theirs
        """Write down where the scale stands, before a checkpoint is saved."""
        state.stateful_callbacks[_STATE] = {"args": {}, "attributes": self._scale.state_dict()}
