"""Decides when an environment that keeps failing is left alone, and when it is tried again.

Flow: `EnvironmentClient` asks before it opens a session, and reports how sessions fared. Only infrastructure counts.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from multienv.errors import CircuitOpenError
from multienv.specs import Limits

logger = logging.getLogger(__name__)


class Circuit(StrEnum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    """Sessions are opened."""
    OPEN = "open"
    """Sessions are refused until the cool-down has passed."""
    HALF_OPEN = "half-open"
    """One session is let through; how it fares decides."""


class CircuitBreaker:
    """The circuit breaker of one environment.

    Invariants: refuses only after `failure_threshold` of the last `failure_window` outcomes, and at least
    `MIN_OUTCOMES`, were failures; lets one session through after every cool-down; a single success then closes it.

    Args:
        name: Name of the environment, for messages.
        limits: Window, threshold and cool-down.
        clock: Monotonic time in seconds; tests give their own.
    """

    MIN_OUTCOMES = 5

    def __init__(self, name: str, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._limits = limits
        self._clock = clock
        self._outcomes: deque[bool] = deque(maxlen=max(limits.failure_window, self.MIN_OUTCOMES))
        self._opened_at: float | None = None
        self._trial_at: float | None = None

    @property
    def state(self) -> Circuit:
        """The state now."""
        if self._opened_at is None:
            return Circuit.CLOSED
        return Circuit.OPEN if self._clock() - self._opened_at < self._limits.cool_down_s else Circuit.HALF_OPEN

    def check(self) -> None:
        """Let a session through or refuse it; a session let through must be reported by `record`.

        Raises:
            CircuitOpenError: The environment is left alone for now.
        """
        if self.state is Circuit.CLOSED:
            return
        now = self._clock()
        has_trial = self._trial_at is not None and now - self._trial_at < self._limits.cool_down_s
        if self.state is Circuit.HALF_OPEN and not has_trial:
            self._trial_at = now
            return
        failures = sum(not outcome for outcome in self._outcomes)
        raise CircuitOpenError(
            f"environment {self._name!r} is left alone: {failures} of the last {len(self._outcomes)} sessions or calls "
            f"failed; it is tried again every {self._limits.cool_down_s:g} s (limits.cool_down_s)",
            environment=self._name,
        )

    def record(self, *, is_success: bool) -> None:
        """Report how something fared that had been let through."""
        self._outcomes.append(is_success)
        if self._opened_at is not None:
            if self._trial_at is None and not is_success:
                return  # a straggler from before the circuit opened
            self._trial_at = None
            if is_success:
                logger.warning("environment %r answers again; it is used again", self._name)
                self._opened_at = None
                self._outcomes.clear()
            else:
                self._opened_at = self._clock()
            return
        failures = sum(not outcome for outcome in self._outcomes)
        threshold = self._limits.failure_threshold
        if threshold is None or len(self._outcomes) < self.MIN_OUTCOMES:
            return
        if failures >= threshold * len(self._outcomes):
            self._opened_at = self._clock()
            logger.warning(
                "environment %r is left alone for %g s: %d of the last %d sessions or calls failed",
                self._name,
                self._limits.cool_down_s,
                failures,
                len(self._outcomes),
            )
