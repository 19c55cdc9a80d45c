"""Decides what a tiny policy is: a Qwen3 of two layers and a byte-level BPE, both made on the spot.

Flow: `warmup` has the tokenizer fitted to the rehearsed dialogues and the model made to fit the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl.chat_template_utils import qwen3_chat_template

_PAD: Final = "<|endoftext|>"
_TURN_START: Final = "<|im_start|>"
_TURN_END: Final = "<|im_end|>"
_MARKERS: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

MAX_LENGTH: Final = 1024
"""Tokens of a prompt and its completion that a tiny policy reads, unless more are asked for."""


def build_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 3000, max_length: int = MAX_LENGTH
) -> PreTrainedTokenizerFast:
    """Fit a byte-level BPE to the texts and give it Qwen3's special tokens and TRL's Qwen3 chat template.

    Args:
        texts: What the policy will read and write.
        vocab_size: Largest number of tokens, the markers of tool calls not counted.
        max_length: Most tokens a text may have.

    Returns:
        A tokenizer that can encode any text, whose chat template TRL recognises.
    """
    bpe = Tokenizer(models.BPE())
    # Cut at line ends only: a line that recurs word for word becomes one token, and a rollout has about a hundred.
    lines = pre_tokenizers.Split("\n", behavior="isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [lines, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PAD, _TURN_START, _TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    markers = re.compile("|".join(map(re.escape, (_PAD, _TURN_START, _TURN_END, *_MARKERS))))
    bpe.train_from_iterator((piece for text in texts for piece in markers.split(text)), trainer)
    # The parser of tool calls looks for the markers in decoded text, so decoding must not skip them as special.
    bpe.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in _MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=_TURN_END,
        pad_token=_PAD,
        additional_special_tokens=[_TURN_START],
        padding_side="left",
        model_max_length=max_length,
        chat_template=qwen3_chat_template,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    hidden_size: int = 64,
    initializer_range: float = 0.02,
    attention_gain: float = 1.0,
) -> Qwen3ForCausalLM:
    """Make an untrained model for the tokenizer's vocabulary and its longest text.

    Args:
        tokenizer: The tokenizer the model will be used with.
        seed: Seed of the initial weights.
        hidden_size: Width; a multiple of 4.
        initializer_range: Standard deviation of the initial weights. Qwen3's own suits widths of thousands.
        attention_gain: Initial gain of Qwen3's norms of queries and keys. With heads of 16 numbers, a gain of 1 lets no
            head look at one token of sixty, and finding that out takes hundreds of steps.

    Returns:
        A model in float32 on the CPU.
    """
    set_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            torch.nn.init.constant_(norm.weight, attention_gain)
    model.generation_config = GenerationConfig(
        do_sample=True,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model
