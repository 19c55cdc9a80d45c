"""Decides where training starts: the tiny model, taught by a few hundred steps on the rehearsed dialogues.

Flow: `policy_cache` asks for a warmed-up policy when it has kept none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import torch
from trl.chat_template_utils import get_training_chat_template

from multienv.tiny.model import build_model, build_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from multienv.tiny.rehearsal import Dialogue

_UNTRAINED: Final = -100
"""The label of a token that is not the policy's own; torch's cross entropy skips it."""

_BATCH_SIZE: Final = 16
_MAX_GRADIENT_NORM: Final = 1.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its tokenizer."""

    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast

    def save(self, folder: Path) -> None:
        """Write both to a folder, made if missing, that `from_pretrained` reads."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a policy is made and warmed up.

    Attributes:
        num_steps: Optimizer steps.
        learning_rate: Of the first step; it falls to zero.
        initializer_range: See `build_model`.
        attention_gain: See `build_model`.
        is_sparing: Whether logits are computed for the policy's own tokens only. Half the time, and other rounding.
    """

    num_steps: int = 600
    learning_rate: float = 3e-3
    initializer_range: float = 0.02
    attention_gain: float = 1.0
    is_sparing: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """One dialogue in tokens; `labels` equals `input_ids` where the policy speaks."""

    input_ids: Sequence[int]
    labels: Sequence[int]


def warm_up(
    dialogues: Sequence[Dialogue],
    *,
    seed: int,
    recipe: Recipe,
    on_step: Callable[[], None] = lambda: None,
) -> Policy:
    """Make a policy and teach it to speak as the dialogues do.

    Args:
        dialogues: What to imitate.
        seed: Seed of the initial weights and of the batches.
        recipe: How it is done.
        on_step: Called after every step.

    Returns:
        A policy whose tool calls are well formed and whose answers are as mediocre as the players'.
    """
    tokenizer = fit_tokenizer(dialogues)
    model = build_model(
        tokenizer, seed=seed, initializer_range=recipe.initializer_range, attention_gain=recipe.attention_gain
    )
    encoded = _encode(tokenizer, dialogues)
    rng = Random(seed)  # noqa: S311 - batches need no secrecy
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=recipe.num_steps)
    model.train()
    for _ in range(recipe.num_steps):
        batch = _pad(rng.sample(encoded, _BATCH_SIZE), int(tokenizer.pad_token_id))
        loss = _sparing_loss(model, *batch) if recipe.is_sparing else _loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        schedule.step()
        on_step()
    return Policy(model, tokenizer)


def fit_tokenizer(dialogues: Sequence[Dialogue]) -> PreTrainedTokenizerFast:
    """Fit a tokenizer to dialogues, as the policy will read and write them."""
    return build_tokenizer(_render(dialogues))


def _loss(
    model: Qwen3ForCausalLM, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss
    return loss


def _sparing_loss(
    model: Qwen3ForCausalLM, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    hidden = model.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    is_own = labels[:, 1:] != _UNTRAINED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][is_own]), labels[:, 1:][is_own])


def _render(dialogues: Sequence[Dialogue]) -> list[str]:
    blank = build_tokenizer(())
    template = get_training_chat_template(blank)
    return [
        blank.apply_chat_template(dialogue.messages, tools=dialogue.tools, chat_template=template, tokenize=False)
        for dialogue in dialogues
    ]


def _encode(tokenizer: PreTrainedTokenizerFast, dialogues: Sequence[Dialogue]) -> list[Tokens]:
    template = get_training_chat_template(tokenizer)
    tokens = []
    for dialogue in dialogues:
        encoded = tokenizer.apply_chat_template(
            dialogue.messages,
            tools=dialogue.tools,
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        input_ids, is_own = encoded["input_ids"], encoded["assistant_masks"]
        labels = [token if own else _UNTRAINED for token, own in zip(input_ids, is_own, strict=True)]
        tokens.append(Tokens(input_ids, labels))
    return tokens


def _pad(batch: Sequence[Tokens], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    length = max(len(tokens.input_ids) for tokens in batch)
    missing = [length - len(tokens.input_ids) for tokens in batch]
    pairs = list(zip(batch, missing, strict=True))
    input_ids = torch.tensor([[*tokens.input_ids, *[pad_token_id] * gap] for tokens, gap in pairs])
    labels = torch.tensor([[*tokens.labels, *[_UNTRAINED] * gap] for tokens, gap in pairs])
    mask = torch.tensor([[1] * (length - gap) + [0] * gap for _, gap in pairs])
    return input_ids, mask, labels
