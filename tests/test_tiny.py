"""The tiny policy: what is kept of a warm-up, and that it survives being saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import qwen3_chat_template

from multienv.tiny.policy_cache import cached_warm_up
from multienv.tiny.rehearsal import Dialogue
from multienv.tiny.warmup import Recipe

TOOL = {
    "type": "function",
    "function": {"name": "echo", "description": "Echo.", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"type": "function", "function": {"name": "echo", "arguments": {"text": "hello"}}}
MESSAGES = (
    {"role": "user", "content": "Say hello."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "echo", "content": "hello"},
    {"role": "assistant", "content": "done"},
)
DIALOGUES = [Dialogue(MESSAGES, [TOOL])] * 16


def steps_taken(cache_dir: Path, *, seed: int = 0, num_steps: int = 2) -> int:
    steps: list[None] = []
    cached_warm_up(
        DIALOGUES,
        seed=seed,
        cache_dir=cache_dir,
        recipe=Recipe(num_steps=num_steps),
        on_step=lambda: steps.append(None),
    )
    return len(steps)


def test_a_warm_up_takes_place_once_for_each_set_of_ingredients(tmp_path: Path) -> None:
    assert [steps_taken(tmp_path), steps_taken(tmp_path)] == [2, 0]
    assert [steps_taken(tmp_path, seed=1), steps_taken(tmp_path, num_steps=1)] == [2, 1]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert steps_taken(tmp_path / "file") == 2
    assert "not kept for the next run" in caplog.text


def test_a_saved_policy_reads_and_writes_as_before(tmp_path: Path) -> None:
    policy = cached_warm_up(DIALOGUES, seed=0, cache_dir=tmp_path / "cache", recipe=Recipe(num_steps=2))
    policy.save(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    prompts = [
        made.apply_chat_template(list(MESSAGES), tools=[TOOL], return_dict=True, return_tensors="pt")["input_ids"]
        for made in (policy.tokenizer, tokenizer)
    ]
    assert torch.equal(*prompts)
    assert "<tool_call>" in tokenizer.decode(prompts[1][0], skip_special_tokens=True)
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side) == ("<|im_end|>", "<|endoftext|>", "left")
    assert (tokenizer.model_max_length, tokenizer.chat_template) == (1024, qwen3_chat_template)
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    with torch.no_grad():
        assert torch.equal(policy.model(prompts[0]).logits, model(prompts[0]).logits)
