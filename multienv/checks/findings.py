"""Decides what a check can say: the closed set of codes, how serious each finding is, and how it reads.

Flow: the checks → `Finding` → `MultiEnvSpec.check` → a person, or an assertion before a long run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    """The run breaks, or an environment cannot be trained on."""
    WARNING = "warning"
    """The run works, but not as declared, or the policy is shown less than the environment published."""
    NOTE = "note"
    """Nothing is wrong; worth knowing."""


class Code(StrEnum):
    """Everything that can be found. `docs/checks.md` says what each means and what to do."""

    CHECK_FAILED = "check-failed"
    CLOSED = "closed"
    SERVER_UNREACHABLE = "server-unreachable"
    SERVER_REFUSES_KEY = "server-refuses-key"
    UNKNOWN_ENVIRONMENT = "unknown-environment"
    DECLARATION_WRONG = "declaration-wrong"
    SERVER_ANSWERS_WRONGLY = "server-answers-wrongly"
    FEWER_TASKS = "fewer-tasks"
    SESSION_FAILED = "session-failed"
    NO_TOOLS = "no-tools"
    TOOL_UNSHOWABLE = "tool-unshowable"
    SCHEMA_UNUSABLE = "schema-unusable"
    TOOL_RENAMED = "tool-renamed"
    PARAMETER_RENAMED = "parameter-renamed"
    SIGNATURE_LOSSY = "signature-lossy"
    TOOLS_DIFFER = "tools-differ"
    TERMINAL_TOOL_UNGRADED = "terminal-tool-ungraded"
    POLICY_UNKNOWN = "policy-unknown"
    SPECIAL_TOKENS = "special-tokens"
    CONVERSATION_FLATTENED = "conversation-flattened"
    PROMPT_IMAGES = "prompt-images"
    TEMPLATE_EXACT = "template-exact"
    TEMPLATE_RERENDERS = "template-rerenders"
    TEMPLATE_WITHOUT_TOOLS = "template-without-tools"
    TEMPLATE_FAILS = "template-fails"
    SECRET_MISSING = "secret-missing"  # noqa: S105 - the name of a finding
    SECRETS_UNKNOWN = "secrets-unknown"
    REMOVES_COLUMNS = "removes-columns"
    TRAINER_WITHOUT_ENVIRONMENTS = "trainer-without-environments"
    TRAINER_UNKNOWN = "trainer-unknown"
    TRL_TOO_OLD = "trl-too-old"
    ASYNC_TRAINER = "async-trainer"
    TOOL_LIMIT_LOWER = "tool-limit-lower"
    COLUMN_DROPPED = "column-dropped"
    TOO_FEW_ROWS = "too-few-rows"
    SESSION_LIMIT = "session-limit"
    ENVIRONMENT_SESSION_LIMIT = "environment-session-limit"
    CURRICULUM_NEEDS_TRAINER = "curriculum-needs-trainer"
    SAMPLING_CAPPED = "sampling-capped"
    SAMPLING_WEIGHT_IDLE = "sampling-weight-idle"
    SELDOM_SAMPLED = "seldom-sampled"
    PROMPT_TOO_LONG = "prompt-too-long"
    COMPLETION_MAY_NOT_FIT = "completion-may-not-fit"
    MANIFEST_DIFFERS = "manifest-differs"
    REWARD_WEIGHT_IDLE = "reward-weight-idle"
    NO_REWARD = "no-reward"


OF_PLAIN_TRAINERS: Final = frozenset(
    {
        Code.TOO_FEW_ROWS,
        Code.ENVIRONMENT_SESSION_LIMIT,
        Code.CURRICULUM_NEEDS_TRAINER,
        Code.REWARD_WEIGHT_IDLE,
        Code.SIGNATURE_LOSSY,
        Code.TOOL_RENAMED,
        Code.PARAMETER_RENAMED,
        Code.CONVERSATION_FLATTENED,
    }
)
"""What is said of TRL's own trainers only, and does not concern a run with `MultiEnvGRPOTrainer`."""

_GRAVEST_FIRST: Final = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: How serious it is.
        environment: Name of the environment concerned; None for the mixture, or the trainer.
        code: Which kind it is; see `docs/checks.md`.
        message: What was found, with the value.
        fix: What to do; empty where nothing is to be done.
    """

    severity: Severity
    environment: str | None
    code: Code
    message: str
    fix: str = ""

    def __str__(self) -> str:
        """Say it on one line.

        Example:
            >>> print(Finding(Severity.NOTE, "seta", Code.NO_REWARD, "Nothing scores it.", "Give it reward_funcs."))
            note seta [no-reward] Nothing scores it. Give it reward_funcs.
        """
        words = (self.severity, self.environment, f"[{self.code}]", self.message, self.fix)
        return " ".join(word for word in words if word)


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity; those of one severity stay in order."""
    return sorted(findings, key=lambda finding: _GRAVEST_FIRST.index(finding.severity))


def quoted(name: str, most: int = 60) -> str:
    r"""Return a published name for a message: short, and on one line whatever is in it.

    Example:
        >>> print(quoted("run-tests"), quoted("a\nb"))
        run-tests 'a\nb'
    """
    shown = name if name.isprintable() and name == name.strip() and name else repr(name)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def joined(words: Iterable[str], most: int = 100) -> str:
    """Return words for a message, separated by semicolons; of very many only the first."""
    every = list(words)
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return "; ".join(every[:most] + more)


_ADVICE: Final = re.compile(r"; ((?:the server must be |for a |start |set |give |make |pass |look |raise )[^;]*)$")


def advised(error: Exception, otherwise: str) -> tuple[str, str]:
    """Return what an exception says as the message and the fix of a finding, so that neither says it twice.

    Args:
        error: An error of this library may end with what to do.
        otherwise: The fix where it does not.

    Example:
        >>> advised(ValueError("unknown split 'x'; known: train; set split="), "Correct it.")
        ("unknown split 'x'; known: train.", 'Set split=.')
        >>> advised(ValueError("no sandbox left"), "Correct it.")
        ('no sandbox left.', 'Correct it.')
    """
    text = str(error).strip().rstrip(".")
    advice = _ADVICE.search(text)
    if advice is None:
        return sentence(error), otherwise
    fix = advice[1]
    return sentence(ValueError(text[: advice.start()])), f"{fix[0].upper()}{fix[1:]}."


def sentence(error: Exception, most: int = 400) -> str:
    """Return what an exception says as a sentence of a message."""
    return f"{str(error).strip()[:most].rstrip('.')}."
