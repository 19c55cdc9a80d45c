"""A tiny model, and a trainer whose policy is written down instead of sampled: all of TRL's path in a second."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from multienv.router.tools import bind_tools
from multienv.tiny.model import build_model, build_tokenizer
from multienv.types import ToolSpec
from tests.support.environments import ClimbEnvironment, EchoEnvironment, OneEnvironment, TwoEnvironment

torch.set_num_threads(1)
_MAX_LENGTH = 8192

Policy = Callable[[str, int], str]
"""From the whole text so far and the number of tool results in it to the next assistant message."""


def call(tool: str, **arguments: Any) -> str:
    """An assistant message that calls one tool."""
    return "<tool_call>\n" + json.dumps({"name": tool, "arguments": arguments}) + "\n</tool_call>"


@functools.cache
def tokenizer() -> Any:
    """A tokenizer that knows the test environments' tools by heart, so that prompts are short."""
    classes = (EchoEnvironment, ClimbEnvironment, OneEnvironment, TwoEnvironment)
    tools = [tool for cls in classes for tool in bind_tools(_published(cls), taken=())]
    texts = [json.dumps(get_json_schema(tool.method)) for tool in tools]
    texts += [qwen3_chat_template, call("echo", text="hello"), call("up", n=2)]
    made = build_tokenizer(texts * 3, vocab_size=2_000)
    made.model_max_length = _MAX_LENGTH
    return made


def _published(cls: Any) -> list[ToolSpec]:
    return [ToolSpec(tool.name, tool.description, tool.input_schema or {}) for tool in cls.list_tools().tools]


def model() -> Any:
    made = build_model(tokenizer(), seed=0, hidden_size=16)
    made.config.max_position_embeddings = _MAX_LENGTH
    return made


def config(output_dir: Path, **options: Any) -> GRPOConfig:
    defaults: dict[str, Any] = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_completion_length": 400,
        "max_tool_calling_iterations": 6,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return GRPOConfig(**(defaults | options))


class Scripted(GRPOTrainer):
    """A `GRPOTrainer` that asks a function where it would sample; mixed in last, below what is tested."""

    policy: Policy

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        completions = []
        for ids in prompt_ids:
            text = self._tokenizer.decode(ids)
            answer = self.policy(text, text.count("<tool_response>"))
            completions.append(
                [*self._tokenizer(answer, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id]
            )
        return completions, None


def scripted_trainer(
    policy: Policy,
    output_dir: Path,
    options: dict[str, Any] | None = None,
    trainer_class: type | None = None,
    **slots: Any,
) -> Any:
    """Build a trainer that plays `policy` on the given slots; `trainer_class` overrides methods of TRL's."""
    bases = (Scripted,) if trainer_class is None else (trainer_class, Scripted)
    cls = type("Trainer", bases, {"policy": staticmethod(policy)})
    return cls(model=model(), processing_class=tokenizer(), args=config(output_dir, **(options or {})), **slots)
