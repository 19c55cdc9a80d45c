"""Decides how several ranks stay in step where generation is collective.

In TRL every rank runs its own number of tool turns. Where a turn is a collective operation (vLLM in server mode, tensor
parallel vLLM, sharded models), ranks with fewer turns leave the others waiting, and completions reach the wrong rank.
Here every rank joins every turn, and all ranks bring equally many prompts.

Flow: `MultiEnvGRPOTrainer` → `RanksInStep` → `GRPOTrainer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from multienv.errors import RoutingError

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Base
else:
    _Base = object


class RanksInStep(_Base):  # type: ignore[misc]  # TRL is untyped
    """Keeps the tool loops of all ranks in step; mixed in before `GRPOTrainer`."""

    _is_joining = False

    @property
    def _turns_are_collective(self) -> bool:
        """True when a turn is one operation of all ranks."""
        if self.accelerator.num_processes == 1:
            return False
        if self.use_vllm:
            return bool(self.vllm_mode == "server" or self.vllm_tensor_parallel_size > 1)
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def _tool_call_loop(self, *args: Any) -> Any:
        if not self._turns_are_collective:
            return super()._tool_call_loop(*args)
        self._is_joining = True
        try:
            output = super()._tool_call_loop(*args)
            while not self._join_turn([], None, {}, has_tool_images=False, is_done=True).is_last:
                pass  # another rank still has rollouts running
            return output
        finally:
            self._is_joining = False

    def _generate_single_turn(
        self,
        prompt_ids: Any,
        images: Any,
        multimodal_fields: Any,
        num_generations: Any,
        has_tool_images: bool = False,  # noqa: FBT001, FBT002 - TRL's own signature
    ) -> Any:
        if self._is_joining:
            turn = self._join_turn(prompt_ids, images, multimodal_fields, has_tool_images=has_tool_images)
            return turn.completion_ids, turn.logprobs
        if self.use_vllm and self.vllm_mode == "server":
            check_groups(prompt_ids, num_generations)
        return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)

    def _join_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, *, has_tool_images: bool, is_done: bool = False
    ) -> _Turn:
        """Generate one turn together with all ranks, each bringing as many prompts as the one with most.

        A rank without prompts may still have turns to come; it is done only when it says so.
        """
        num_own = len(prompt_ids)
        ranks = gather_object([(num_own, is_done)])
        num_each = max(num for num, _ in ranks)
        if num_each == 0:
            return _Turn([], None, is_last=all(done for _, done in ranks))
        filler = [list(prompt_ids[0]) if num_own else [self._tokenizer.eos_token_id]] * (num_each - num_own)
        if images is not None:
            images = [*images, *[None] * len(filler)]
        ids, logprobs = super()._generate_single_turn(
            [*prompt_ids, *filler], images, multimodal_fields, 1, has_tool_images
        )
        return _Turn(ids[:num_own], None if logprobs is None else logprobs[:num_own], is_last=False)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one rank got out of a turn of all ranks."""

    completion_ids: list[list[int]]
    logprobs: list[list[float]] | None
    is_last: bool


def check_groups(prompt_ids: Sequence[Sequence[int]], num_generations: int) -> None:
    """Check that the prompts of each group are one prompt.

    vLLM in server mode generates a group from its first prompt only, so the others would be trained on prompts that the
    policy never saw.

    Raises:
        RoutingError: Two prompts of one group differ.
    """
    for start in range(0, len(prompt_ids), num_generations):
        first = list(prompt_ids[start])
        for place in range(start, min(start + num_generations, len(prompt_ids))):
            if list(prompt_ids[place]) != first:
                raise RoutingError(
                    f"rollouts {start} and {place} are of one group, but their environment gave them different "
                    "prompts; in vLLM server mode TRL generates a group from its first prompt. Make the prompt a "
                    'function of the task, or use vllm_mode="colocate"'
                )
