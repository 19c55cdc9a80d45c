"""Decides what is said about a server that cannot be used, a session that cannot be had, and an environment of no use.

Flow: `run` → here, with what `looks` was answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from multienv.checks.findings import Code, Finding, Severity, advised
from multienv.checks.looks import Look, Mixture
from multienv.errors import (
    AuthenticationError,
    OrderError,
    ServerError,
    ServerUnreachableError,
    SpecError,
    TaskIndexError,
    UnknownEnvironmentError,
)
from multienv.sessions import Outline
from multienv.specs import TargetKind, TaskChoice

Causes: TypeAlias = tuple[tuple[type[Exception], Code, str], ...]

_CAUSES: Final[Causes] = (
    # The first that fits; subclasses come before what they are kinds of.
    (OrderError, Code.CLOSED, "Make a new MultiEnvSpec."),
    (AuthenticationError, Code.SERVER_REFUSES_KEY, "Give the environment's own key: EnvSpec(..., api_key=...)."),
    (UnknownEnvironmentError, Code.UNKNOWN_ENVIRONMENT, "Set env_name= to one the server holds."),
    (TaskIndexError, Code.DECLARATION_WRONG, "Correct EnvSpec(indices=...)."),
    (SpecError, Code.DECLARATION_WRONG, "Correct the EnvSpec."),
    (ServerUnreachableError, Code.SERVER_UNREACHABLE, "Start the server, or correct the target."),
    (ServerError, Code.SERVER_ANSWERS_WRONGLY, "See the server's log; multienv.testing.check_environment says more."),
)

_CORRECT_EVALUATION: Final[Causes] = (
    (TaskIndexError, Code.DECLARATION_WRONG, "Correct EnvSpec(eval_indices=...)."),
    (SpecError, Code.DECLARATION_WRONG, "Correct EnvSpec(eval_split=...)."),
    *_CAUSES,
)

_CORRECT_THE_CLASS: Final = "Correct the class; multienv.testing.check_environment says more."


def check_server(look: Look) -> Iterator[Finding]:
    """Say why nothing is known of an environment."""
    if look.failure is not None:
        yield _why(look, look.failure)


def check_tasks(look: Look, _mixture: Mixture) -> Iterator[Finding]:
    """Say what of the declared tasks the server does not have."""
    if look.tasks_failure is not None:
        yield _why(look, look.tasks_failure)
    if look.held_out_failure is not None:
        yield _why(look, look.held_out_failure, _CORRECT_EVALUATION)
    is_evaluation = look.spec.training is None
    yield from _fewer(look, look.spec.first_choice, look.outline, is_evaluation=is_evaluation)
    if look.spec.evaluation is not None:
        yield from _fewer(look, look.spec.evaluation, look.held_out, is_evaluation=True)


def _fewer(look: Look, choice: TaskChoice, outline: Outline | None, *, is_evaluation: bool) -> Iterator[Finding]:
    if outline is not None and choice.num_tasks is not None and choice.num_tasks > outline.split_size:
        option = "eval_num_tasks" if choice.num_tasks == look.spec.eval_num_tasks and is_evaluation else "num_tasks"
        yield look.finding(
            Severity.NOTE,
            Code.FEWER_TASKS,
            f"{option}={choice.num_tasks}, and split {choice.split!r} has {outline.split_size}; it "
            f"{'is evaluated' if is_evaluation else 'trains'} on all of them.",
        )


def _why(look: Look, error: Exception, causes: Causes = _CAUSES) -> Finding:
    for kind, code, fix in causes:
        if isinstance(error, kind):
            is_class = code is Code.SERVER_ANSWERS_WRONGLY and look.spec.kind is TargetKind.IN_PROCESS
            return look.finding(Severity.ERROR, code, *advised(error, _CORRECT_THE_CLASS if is_class else fix))
    return look.finding(
        Severity.ERROR,
        Code.CHECK_FAILED,
        f"the environment could not be asked anything: {type(error).__name__}: {error}",
    )


def check_session(look: Look, _mixture: Mixture) -> Iterator[Finding]:
    """Say why sessions could not be had."""
    failed = [visit for visit in look.visits if visit.failure is not None]
    if not failed:
        return
    first, *others = failed
    assert first.failure is not None  # noqa: S101 - by the choice above
    is_class = look.spec.kind is TargetKind.IN_PROCESS
    said, fix = advised(first.failure, f"{'Correct the class, or check' if is_class else 'Check'} secrets and limits.")
    more = f" So did those of tasks {', '.join(str(visit.index) for visit in others[:8])}." if others else ""
    yield look.finding(
        Severity.ERROR if len(failed) == len(look.visits) else Severity.WARNING,
        Code.SESSION_FAILED,
        f"the session of task {first.index} in split {look.spec.first_choice.split!r} failed, and its prompt was "
        f"not looked at: {said}{more}",
        fix,
    )


def check_what_is_offered(look: Look, _mixture: Mixture) -> Iterator[Finding]:
    """Say so if the policy can do nothing there that is ever scored."""
    if not look.tools and look.terminal_tool is None:
        yield look.finding(
            Severity.ERROR,
            Code.NO_TOOLS,
            "it has no tools and no terminal tool, so its rewards can never be earned.",
            "Set env_name= or toolset= if another one was meant; else leave it out of the mixture.",
        )
    shared = look.listings.get(None)
    if look.spec.use_group_reward and shared is not None and not shared.supports_score_group:
        yield look.finding(
            Severity.ERROR,
            Code.DECLARATION_WRONG,
            "use_group_reward=True, and it does not score groups.",
            "Leave the option out, or have the environment implement score_group.",
        )
