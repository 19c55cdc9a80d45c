"""Decides what an evaluation is declared by: which model, how often each task is tried, what it costs.

Flow: a run file's section `evaluation` → `EvalSpec` → `evaluate`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, SecretStr, field_validator

from multienv.specs.declaration import Declaration

_Count = Annotated[int, Field(ge=1, strict=True)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EvalSpec(Declaration):
    """An evaluation.

    Attributes:
        model: The model's name at the endpoint; None for the run file's own model, loaded in this process.
        base_url: The endpoint, as the `openai` client takes it, such as `http://127.0.0.1:8000/v1`; None for OpenAI's.
        api_key: The endpoint's key; None for what the `openai` client finds in its own variable.
        num_attempts: How often each task is tried; the most that k of pass@k can be.
        num_tasks: The first so many tasks of each environment; None for all of them.
        max_concurrent: Most attempts at once.
        max_turns: Most messages of the model in an attempt; the environments' own limits hold beside it.
        temperature: Sampling temperature; None for the endpoint's default, as with what follows.
        top_p: Nucleus sampling.
        max_tokens: Most tokens of one message.
        seed: Seed of the sampling, to which the attempt's number is added.
        extra_body: More fields of each request, as they are.
        price_per_million_prompt_tokens: What a million tokens read cost, in a currency of your choice.
        price_per_million_completion_tokens: What a million tokens written cost.
        difficulty_key: The key of a task's spec that says how difficult it is; tasks without it have none.
        request_timeout_s: How long one message is waited for.
        max_retries: How often a request is tried again that failed for no fault of the model.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    model: Annotated[str, Field(min_length=1)] | None = None
    base_url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    api_key: SecretStr | None = None
    num_attempts: _Count = 1
    num_tasks: _Count | None = None
    max_concurrent: _Count = 16
    max_turns: _Count = 50
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: _Count | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] | None = None
    extra_body: Mapping[str, Any] = Field(default_factory=dict)
    price_per_million_prompt_tokens: _Price | None = None
    price_per_million_completion_tokens: _Price | None = None
    difficulty_key: Annotated[str, Field(min_length=1)] = "difficulty"
    request_timeout_s: _Seconds = 600.0
    max_retries: Annotated[int, Field(ge=0, strict=True)] = 4

    @field_validator("extra_body")
    @classmethod
    def _sendable(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra_body cannot be sent as JSON: {error}; write dates as text, in quotes") from None
        return value
