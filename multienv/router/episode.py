"""Decides how an episode is written down while it happens, and what its reward is.

Flow: `EnvironmentAdapter` records; `freeze` gives the `Episode` that `rewards` reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from multienv.types import Episode, EpisodeStatus, Step


@dataclass(slots=True)
class EpisodeRecorder:
    """One episode in the making.

    Attributes:
        environment: Name of the environment.
        task_id: `environment/split/index`.
        session_id: The server's session id, once there is one.
        steps: The tool calls so far.
        failure: Why infrastructure ended the episode, or None.
        refusal: Why the episode was not started, or None.
        truncation: Which limit ended the episode, or None.
        cutoff: Which of the trainer's limits cut the completion short, or None. The episode itself can go on: a reward
            function may still call its tools.
        error: Class name of the error behind `failure` or `refusal`.
        started_at: When `reset` began, in Unix seconds.
        num_retries: How often opening the session was tried again.
        opened_at: When the prompt was there, by `time.monotonic`.
        open_s: Seconds until the prompt was there.
        num_late_calls: Tool calls that came after the end.
    """

    environment: str
    task_id: str
    session_id: str | None = None
    steps: list[Step] = field(default_factory=list)
    failure: str | None = None
    refusal: str | None = None
    truncation: str | None = None
    cutoff: str | None = None
    error: str = ""
    started_at: float = 0.0
    num_retries: int = 0
    opened_at: float = 0.0
    open_s: float = 0.0
    num_late_calls: int = 0

    @property
    def is_finished(self) -> bool:
        """True once the environment declared the episode over."""
        return bool(self.steps) and self.steps[-1].finished

    @property
    def is_over(self) -> bool:
        """True once no further tool call counts."""
        return self.is_finished or any(end is not None for end in (self.failure, self.refusal, self.truncation))

    @property
    def wants_no_more(self) -> bool:
        """True when another turn of the policy could change nothing, and it has been told so where that helps.

        Whoever reaches a limit reads it and may say a last word; whoever then goes on calling is not asked again.
        """
        return self.is_over and (self.truncation is None or self.num_late_calls > 0)

    def record(self, step: Step) -> None:
        """Write a step down; after the end nothing is added."""
        if not self.is_over:
            self.steps.append(step)

    def record_lost(self, step: Step) -> None:
        """Write down the step of which no result came; it may have ended the episode."""
        self.steps.append(step)

    def truncate(self, reason: str) -> None:
        """Note that a limit ended the episode."""
        if not self.is_over:
            self.truncation = reason

    def cut_off(self, reason: str) -> None:
        """Note that a limit of the trainer cut the completion short; the first reason stays."""
        if not self.is_over and self.cutoff is None:
            self.cutoff = reason

    def fail(self, reason: str, error: str = "") -> None:
        """Note that infrastructure ended the episode. After `finished` nothing changes: the result is in."""
        if not self.is_over:
            self.failure, self.error = reason, error

    def refuse(self, reason: str, error: str = "") -> None:
        """Note that the episode was not started, because its environment is known to be down."""
        self.refusal, self.error = reason, error

    def reward(self) -> float | None:
        """Return the last step reward that is not None; None for a failed episode, even after earlier rewards."""
        if self.failure is not None or self.refusal is not None:
            return None
        return next((step.reward for step in reversed(self.steps) if step.reward is not None), None)

    def freeze(self) -> Episode:
        """Return the record as a value."""
        status = EpisodeStatus.UNFINISHED
        if self.refusal is not None:
            status = EpisodeStatus.REFUSED
        elif self.failure is not None:
            status = EpisodeStatus.FAILED
        elif self.is_finished:
            status = EpisodeStatus.FINISHED
        elif self.truncation is not None or self.cutoff is not None:
            status = EpisodeStatus.TRUNCATED
        return Episode(
            environment=self.environment,
            task_id=self.task_id,
            session_id=self.session_id,
            steps=tuple(self.steps),
            status=status,
            reason=self.refusal or self.failure or self.truncation or ("" if self.is_finished else self.cutoff or ""),
            open_s=self.open_s,
            error=self.error,
            started_at=self.started_at,
            num_retries=self.num_retries,
            num_late_calls=self.num_late_calls,
        )
