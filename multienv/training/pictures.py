"""Decides how TRL is made to train on batches that hold pictures in some places and none in others.

TRL 1.16 counts on pictures in every prompt or in none, and on at least one wherever a batch is cut. In a mixture of an
environment that shows pictures and one that only writes, both are often untrue.

Flow: `MultiEnvGRPOTrainer` → `PicturesAnywhere` → `GRPOTrainer`, through the methods named in `seams`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from multienv.router.presentation import text_of

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Base
else:
    _Base = object

_OF_TOKENS: Final = ("token_type_ids", "mm_token_type_ids")
_OF_PICTURES: Final = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "image_position_ids",
)


class PicturesAnywhere(_Base):  # type: ignore[misc]  # TRL is untyped
    """Trains on batches where only some rollouts hold pictures; mixed in before `GRPOTrainer`."""

    _mends_pictures = True

    def _tokenize_prompts(self, prompts: Any) -> Any:
        """Name the pictures of each prompt, an empty list where there are none.

        TRL says None there, and its processor takes no None beside a list once it renders the prompts again for the
        forward pass; it does so unless a tool has returned a picture.

        Source:
            TRL 1.16, `grpo_trainer.py`: line 1703 writes the None, line 2529 fails on it; all else reads both alike.
        """
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        if images is not None and self._mends_pictures:
            images = [its or [] for its in images]
        return prompt_ids, images, fields

    def _generate_single_turn(self, prompt_ids: Any, images: Any, *args: Any, **options: Any) -> Any:
        """Tell the generation None for a prompt without pictures, where TRL's own tool loop says an empty list as well.

        Source:
            TRL 1.16, `vllm_generation.py`: lines 712 and 713 take the first picture of every list.
        """
        if images is not None and self._mends_pictures:
            images = [its or None for its in images]
        return super()._generate_single_turn(prompt_ids, images, *args, **options)

    def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
        """Show the model no pictures, instead of an empty tensor of them, where a part of a batch holds none.

        TRL cuts a batch by `steps_per_generation`, and for the log-probabilities that it keeps by `batch_size`.

        Source:
            TRL 1.16, `grpo_trainer.py`: lines 1454 to 1461 hand the model what is left of `pixel_values`, if only its
            shape.
        """
        num_images = options.get("num_images")
        if not self._mends_pictures or options.get("pixel_values") is None or not num_images:
            return super()._get_per_token_logps_and_entropies(*args, **options)
        if not any(num_images):
            without = {name: value for name, value in options.items() if name not in _OF_PICTURES}
            return super()._get_per_token_logps_and_entropies(*args, **without)
        size = options.get("batch_size") or len(num_images)
        starts = range(0, len(num_images), size)
        if all(any(num_images[start : start + size]) for start in starts):
            return super()._get_per_token_logps_and_entropies(*args, **options)
        return self._part_by_part(starts, *args, **{**options, "batch_size": None})

    def _part_by_part(
        self, starts: range, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any, **options: Any
    ) -> Any:
        """Do each part of a batch on its own, as TRL does in its loop."""
        rows = {name: options[name] for name in (*_OF_PICTURES, *_OF_TOKENS) if options.get(name) is not None}
        common = {name: value for name, value in options.items() if name not in rows}
        by_row = split_pixel_values_by_grid({"input_ids": input_ids, "attention_mask": attention_mask, **rows})
        outputs = []
        for start in starts:
            part = {name: values[start : start + starts.step] for name, values in by_row.items()}
            part = unsplit_pixel_values_by_grid(part)
            ids, mask = part.pop("input_ids"), part.pop("attention_mask")
            outputs.append(self._get_per_token_logps_and_entropies(model, ids, mask, logits_to_keep, **common, **part))
        logps, entropies, aux_losses = zip(*outputs, strict=True)
        return (
            torch.cat(logps),
            None if entropies[0] is None else torch.cat(entropies),
            None if aux_losses[0] is None else torch.stack(aux_losses).mean(),
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with each message's content as a text.

        The table of `log_completions` takes no column of texts here and content blocks there.

        Source:
            TRL 1.16, `grpo_trainer.py`: lines 3341 to 3350.
        """
        if self.log_completions:
            for column in ("prompt", "completion"):
                conversations = self._logs[column]
                for place, messages in enumerate(conversations):
                    if isinstance(messages, list):
                        conversations[place] = [_in_words(message) for message in messages]
        super().log(logs, start_time)


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a text; the message itself is what the run goes on with."""
    content = message.get("content")
    return {**message, "content": text_of(content)} if isinstance(content, list) else message
