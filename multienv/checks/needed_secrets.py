"""Decides which secrets an environment needs and was not given.

Flow: `run` → here, with what `looks` was answered.
"""

from __future__ import annotations

from collections.abc import Iterator

from multienv.checks.findings import Code, Finding, Severity, sentence
from multienv.checks.looks import Look, Mixture


def check_secrets(look: Look, _mixture: Mixture) -> Iterator[Finding]:
    """Name the required secrets that are missing. The key of a catalogue target is a secret of its sessions already."""
    if look.secrets_failure is not None:
        yield look.finding(
            Severity.NOTE,
            Code.SECRETS_UNKNOWN,
            f"which secrets it needs could not be asked: {sentence(look.secrets_failure)}",
            "Compare its page in the catalogue with EnvSpec(secrets=...).",
        )
    if missing := look.missing_secrets:
        declared = ", ".join(look.spec.secrets or {}) or "none"
        yield look.finding(
            Severity.ERROR,
            Code.SECRET_MISSING,
            f"its sessions need the secrets {', '.join(missing)}, which are missing; declared: {declared}.",
            f"Give EnvSpec(secrets={{{missing[0]!r}: ...}}).",
        )
