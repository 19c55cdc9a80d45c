"""Decides what `multienv check` does: ask every environment, judge what it answered for `MultiEnvGRPOTrainer`, say so.

Flow: `cli.check` → `run_check` → `MultiEnvSpec.survey` → `check_document` → tables or JSON, and an exit status.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from multienv.checks import OF_PLAIN_TRAINERS, Code, Finding, Look, Severity, Survey, gravest_first
from multienv.commands.check_table import show_check
from multienv.commands.rendering import chat_template_of
from multienv.commands.screen import print_json, working
from multienv.errors import SpecError
from multienv.specs import EnvSpec, ForeignSpec, server_identity

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec


def run_check(
    spec: MultiEnvSpec,
    *,
    args: Any,
    processing_class: Any | None,
    max_model_tokens: int | None,
    num_prompts: int = 1,
    console: Console,
    is_json: bool = False,
) -> int:
    """Ask every environment, and show what it answered and what could go wrong with `MultiEnvGRPOTrainer`.

    Args:
        spec: The mixture.
        args: TRL's configuration; None for what can be said without.
        processing_class: The model's tokenizer or processor; None where nobody named the model.
        max_model_tokens: Most tokens of a prompt and its completion together; None where nobody says.
        num_prompts: Prompts of each environment that are measured; each opens a session.
        console: Where it is shown.
        is_json: Show it as JSON instead.

    Returns:
        1 where an error was found, else 0.
    """
    refused = [] if processing_class is None else _presented(spec, processing_class)
    with working("asking every environment"):
        survey = spec.survey(args, num_prompts=num_prompts, max_model_tokens=max_model_tokens)
    survey = replace(survey, findings=tuple(gravest_first([*refused, *of_this_trainer(survey)])))
    document = check_document(survey)
    if is_json:
        print_json(document)
    else:
        show_check(document, console)
    return int(document["num_findings"][Severity.ERROR] > 0)


def of_this_trainer(survey: Survey) -> list[Finding]:
    """Return the findings that concern a run with `MultiEnvGRPOTrainer`."""
    return [finding for finding in survey.findings if finding.code not in OF_PLAIN_TRAINERS]


def _presented(spec: MultiEnvSpec, processing_class: Any) -> list[Finding]:
    """Say who reads the prompts; return why TRL could not train with it."""
    refused: list[Finding] = []
    template = None
    try:
        template = chat_template_of(processing_class, has_tools=True)
    except SpecError as error:
        refused.append(Finding(Severity.ERROR, None, Code.TEMPLATE_FAILS, str(error)))
    spec.present_to(processing_class, chat_template=template, has_conversations=True)
    return refused


def check_document(survey: Survey) -> dict[str, Any]:
    """Return what was found as plain JSON."""
    looks = {look.name: look for look in survey.looks}
    rows = {}
    for name, declared in survey.mixture.specs.items():
        is_known = name in looks and isinstance(declared, EnvSpec)
        rows[name] = _row(looks[name], survey) if is_known else _foreign_row(name, declared, survey)
    collisions = () if survey.tools is None else survey.tools.collisions
    return {
        "environments": rows,
        "max_model_tokens": survey.mixture.max_model_tokens,
        "max_completion_length": getattr(survey.mixture.args, "max_completion_length", None),
        "collisions": [
            {
                "tool": collision.tool,
                "environments": list(collision.environments),
                "is_same": collision.is_same,
                "differences": list(collision.differences),
            }
            for collision in collisions
        ],
        "findings": [asdict(finding) for finding in survey.findings],
        "num_findings": {
            severity: sum(finding.severity is severity for finding in survey.findings) for severity in Severity
        },
    }


def _row(look: Look, survey: Survey) -> dict[str, Any]:
    """Return what an ORS environment answered."""
    spec, reason = look.spec, look.failure or look.tasks_failure
    reason = reason or next((visit.failure for visit in look.visits if visit.failure is not None), None)
    opened = [visit for visit in look.visits if visit.failure is None]
    return {
        "kind": spec.kind,
        "target": spec.target
        if isinstance(spec.target, str)
        else f"{spec.target.__module__}:{spec.target.__qualname__}",
        "server": server_identity(spec.target),
        "served_name": spec.served_name if look.outline is None else look.outline.served_name,
        "is_reached": look.failure is None,
        "reason": None if reason is None else str(reason),
        "splits": dict(look.splits),
        "split": None if spec.training is None else spec.training.split,
        "num_tasks": survey.mixture.num_rows.get(look.name),
        "eval_split": None if spec.evaluation is None else spec.evaluation.split,
        "num_eval_tasks": None if look.evaluated is None else look.evaluated.num_rows,
        "tools": [tool.name for tool in look.tools],
        "terminal_tool": None if look.terminal_tool is None else look.terminal_tool.name,
        "required_secrets": list(look.required_secrets),
        "missing_secrets": list(look.missing_secrets),
        "sessions_asked": len(look.visits),
        "open_s": [round(visit.open_s, 3) for visit in opened],
        "num_retries": sum(visit.num_tries - 1 for visit in opened),
        **_lengths(look, survey),
    }


def _lengths(look: Look, survey: Survey) -> dict[str, Any]:
    """Return how long its prompts are, and what that leaves for completions."""
    completion = getattr(survey.mixture.args, "max_completion_length", None)
    index, longest = max(look.num_tokens.items(), key=lambda item: item[1], default=(None, None))
    return {
        "prompt_tokens": list(look.num_tokens.values()),
        "longest_prompt_task": index,
        "longest_rollout_tokens": None if longest is None or completion is None else longest + completion,
    }


def _foreign_row(name: str, declared: Any, survey: Survey) -> dict[str, Any]:
    """Return what is declared of an environment that knows nothing of ORS; it is asked nothing."""
    factory = declared.environment_factory if isinstance(declared, ForeignSpec) else None
    target = f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', '?')}"
    return {"kind": "foreign", "target": target, "num_tasks": survey.mixture.num_rows.get(name)}
