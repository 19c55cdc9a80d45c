"""Decides whether TRL is the TRL that the trainer was written for, seam by seam.

The trainer overrides a few private methods of `GRPOTrainer` and copies none. Where one has another signature than
expected, what hangs on it is switched off and TRL does it in its own way.

Flow: `trainer` asks `missing_seams` once, when it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final

SEAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_tokenize_prompts": ("self", "prompts"),
    "_tool_call_loop": (
        "self",
        "prompts",
        "prompt_ids",
        "completion_ids",
        "completions",
        "logprobs",
        "images",
        "multimodal_fields",
    ),
    "_generate_single_turn": (
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
        "image_sizes",
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ),
    "_prepare_inputs": ("self", "generation_batch"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_get_train_sampler": ("self", "dataset"),
    "_save_checkpoint": ("self", "model", "trial"),
}
"""The overridden methods with the parameters they have in TRL 1.16."""

OF_CURRICULUM: Final = frozenset({"_get_train_sampler", "_save_checkpoint"})
"""Those on which only the curriculum hangs. It needs the others too, for it learns from what they see."""

READ: Final = (
    "_buffered_inputs",
    "_metrics",
    "_step",
    "_tokenizer",
    "environment_factories",
    "environments",
    "eos_token_ids",
    "max_completion_length",
    "max_tool_calling_iterations",
    "num_generations",
    "num_generations_eval",
    "num_iterations",
    "reward_func_names",
    "reward_weights",
    "shuffle_dataset",
)
"""The attributes of TRL's trainer that `episodes` and `curriculum` use."""


def missing_seams(trainer_class: type) -> dict[str, str]:
    """Compare a trainer class with what is expected of it.

    Args:
        trainer_class: TRL's `GRPOTrainer`, or a class between it and ours.

    Returns:
        From the name of each method that is not as expected to what it is instead.
    """
    found: dict[str, str] = {}
    for name, expected in SEAMS.items():
        method = getattr(trainer_class, name, None)
        if method is None:
            found[name] = "missing"
        elif (parameters := tuple(inspect.signature(method).parameters)) != expected:
            found[name] = f"({', '.join(parameters)})"
    return found
