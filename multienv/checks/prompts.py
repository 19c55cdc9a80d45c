"""Decides what is said about a prompt: conversations that some trainers flatten, pictures that some policies lack.

Flow: `run` → here, with the prompt of the first declared task.
"""

from __future__ import annotations

from collections.abc import Iterator

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Look, Mixture
from multienv.types import Image


def check_prompt(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Look at the prompt of the first declared task."""
    yield from _conversation(look)
    yield from _images(look, mixture)


def _conversation(look: Look) -> Iterator[Finding]:
    roles = [message.role for message in look.prompt]
    if roles in ([], ["user"]):
        return
    yield look.finding(
        look.plain_severity,
        Code.CONVERSATION_FLATTENED,
        f"its prompt is a conversation ({', '.join(roles[:20])}{', ...' if len(roles) > 20 else ''}); "  # noqa: PLR2004 - enough to see
        "TRL's own trainers get it as one user message.",
        "Train with MultiEnvGRPOTrainer, which puts it into the prompt message by message.",
    )


def _images(look: Look, mixture: Mixture) -> Iterator[Finding]:
    num_images = sum(isinstance(part, Image) for message in look.prompt for part in message.parts)
    if not num_images or mixture.presentation.has_images:
        return
    what = f"the prompt of task {look.index} has {num_images} image{'s' if num_images > 1 else ''}"
    if mixture.knows_policy:
        yield look.finding(
            Severity.WARNING,
            Code.PROMPT_IMAGES,
            f"{what}, and this policy reads text only: a placeholder stands for each.",
            "Train a vision model, and give the trainer its processor.",
        )
    else:
        yield look.finding(
            Severity.NOTE,
            Code.PROMPT_IMAGES,
            f"{what}; a text model is shown a placeholder for each.",
            "Say who reads it with spec.present_to(processor), or train with MultiEnvGRPOTrainer.",
        )
