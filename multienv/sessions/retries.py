"""Decides how often something safe is tried again, and how long is waited in between.

Flow: `Opener` opens and `LiveSession` closes through `retrying`.
"""

from __future__ import annotations

import tenacity

from multienv.errors import ServerError

_LONGEST_WAIT_S = 20.0
_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_S)


def retrying(max_retries: int) -> tenacity.AsyncRetrying:
    """Return a retrier that calls a coroutine function again after errors that may pass.

    Args:
        max_retries: How often at most.
    """
    return tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(max_retries + 1),
        wait=_wait_s,
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ServerError) and error.is_transient),
        reraise=True,
    )


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Wait as long as the server asked for, and never less than the jittered backoff."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_s = error.retry_after_s if isinstance(error, ServerError) else None
    return max(min(asked_s or 0.0, _LONGEST_WAIT_S), _backoff(state))
