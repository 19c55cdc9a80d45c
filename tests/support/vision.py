"""Decides what stands in for a vision-language model: a tiny Qwen3-VL and its processor, made without any hub.

Flow: a test builds `vision_trainer` with a scripted policy; images reach TRL's forward through `processor` and `model`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final

from PIL import Image
from tokenizers import AddedToken
from transformers import (
    GenerationConfig,
    ProcessorMixin,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    set_seed,
)
from trl.chat_template_utils import qwen3_vl_chat_template

from multienv.tiny.model import build_tokenizer
from tests.support.training import Policy, Scripted, call, config

IMAGE_TOKEN: Final = "<|image_pad|>"
TOKEN_SIDE: Final = 28
"""Pixels on each side of the square that becomes one image token: two patches of 14, merged two by two."""

_VISION_TOKENS: Final = ("<|vision_start|>", "<|vision_end|>", IMAGE_TOKEN, "<|video_pad|>")
_PATCH: Final = TOKEN_SIDE // 2
_MAX_LENGTH: Final = 8192


class TensorImages(Qwen2VLImageProcessorPil):
    """The image processor that needs no torchvision, answering tensors unasked as the one that needs it does.

    TRL counts on tensors and asks for none; with arrays, `Qwen2VLImageProcessorPil` as it comes, it fails.
    """

    def preprocess(self, images: Any, return_tensors: Any = None, **options: Any) -> Any:
        return super().preprocess(images, return_tensors=return_tensors or "pt", **options)


class StillsProcessor(Qwen3VLProcessor):
    """Qwen3-VL's processor for images only: its video processor cannot be made without torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        # The parent's would demand a video processor, and what a processor holds is read off this signature.
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.vision_start_token, self.vision_end_token, self.image_token, self.video_token = _VISION_TOKENS
        for name in ("vision_start_token", "vision_end_token", "image_token", "video_token"):
            setattr(self, f"{name}_id", tokenizer.convert_tokens_to_ids(getattr(self, name)))


def picture(width: int = TOKEN_SIDE, height: int = TOKEN_SIDE, colour: str = "red") -> Image.Image:
    """A picture of one colour, worth `(width / 28) * (height / 28)` image tokens up to 16."""
    return Image.new("RGB", (width, height), colour)


@functools.cache
def processor(images: type[Qwen2VLImageProcessorPil] = TensorImages) -> StillsProcessor:
    """A processor whose chat template TRL knows and whose images cost a handful of tokens."""
    texts = [qwen3_vl_chat_template, call("look", at="left"), json.dumps({"role": "user"})]
    tokenizer = build_tokenizer(texts * 3, vocab_size=2_000)
    tokenizer.model_max_length = _MAX_LENGTH
    added = [AddedToken(token, special=True, normalized=False) for token in _VISION_TOKENS]
    tokenizer.add_tokens(added, special_tokens=True)
    pixels = {"min_pixels": TOKEN_SIDE**2, "max_pixels": 16 * TOKEN_SIDE**2}
    return StillsProcessor(images(patch_size=_PATCH, **pixels), tokenizer, chat_template=qwen3_vl_chat_template)


def model(*, seed: int = 0) -> Any:
    """An untrained Qwen3-VL of about fifty thousand parameters."""
    set_seed(seed)
    tokenizer = processor().tokenizer
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": _MAX_LENGTH,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": _PATCH,
        "out_hidden_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = {name: getattr(processor(), name) for name in names}
    made = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    )
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    made.generation_config = GenerationConfig(do_sample=True, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
    return made


def vision_trainer(
    policy: Policy,
    output_dir: Path,
    options: dict[str, Any] | None = None,
    trainer_class: type | None = None,
    **slots: Any,
) -> Any:
    """Build a trainer that plays `policy` with the vision model; the forward and backward passes are real.

    `slots` are the trainer's own arguments; `processing_class` may be among them.
    """
    bases = (Scripted,) if trainer_class is None else (trainer_class, Scripted)
    cls = type("Trainer", bases, {"policy": staticmethod(policy)})
    # The Qwen3-VL template does not think, and a processor warns of template arguments that it does not know.
    args = config(output_dir, **({"chat_template_kwargs": {}} | (options or {})))
    return cls(**({"model": model(), "processing_class": processor(), "args": args} | slots))
