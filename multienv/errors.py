"""Decides how the library fails: every exception a caller can meet, and who is to blame for it.

::

    MultiEnvError                       the root: `except MultiEnvError` catches everything raised on purpose
    ├── SpecError(ValueError)           the declaration: an option, a name, a mapping that cannot be right
    │   ├── OverlappingTasksError       a task is trained on twice, or trained on and evaluated on
    │   ├── UnknownEnvironmentError     the server holds no environment of the declared name
    │   ├── UnknownSplitError           the server's environment has no such split
    │   ├── TaskIndexError(IndexError)  an index outside the split
    │   ├── EmptyTaskListError          nothing to train on
    │   └── SessionLimitError           more sessions are needed at once than a limit allows
    ├── RoutingError(LookupError)       a row or an adapter belongs to no environment of the mixture
    ├── RewardFunctionError(ValueError) a user's reward function broke its contract
    ├── OrderError(RuntimeError)        calls in the wrong order: a tool before `reset`, use after `close`
    ├── RecordError(ValueError)         a record of episodes that cannot be read
    ├── CheckpointError(ValueError)     a checkpoint that does not fit
    └── ServerError(ConnectionError)    the outside world
        ├── ServerUnreachableError      nobody answers at the address
        ├── AuthenticationError(PermissionError)  the server refuses the key, or there is none
        ├── ProtocolError               an answer that does not follow the Open Reward Standard
        └── SessionError                an episode's session could not be opened or was lost
            └── CircuitOpenError        the environment is known to be down; the episode was not started

A failed *episode* is data, not an exception: the adapter records it and the run goes on. What is raised is a wrong
declaration, a routing bug, or a server that cannot be reached before training starts.

Flow: every room raises these; nothing here imports another room.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MultiEnvError(Exception):
    """Root of every exception this library raises on purpose.

    Args:
        message: What was wrong (with the value), what is accepted, what to do.
        environment: Name of the environment concerned, or None.
    """

    def __init__(self, message: str, *, environment: str | None = None) -> None:
        super().__init__(message)
        self.environment = environment

    def __reduce__(self) -> tuple[object, ...]:
        """Survive pickling, subclasses included: rebuild from the message and restore the attributes."""
        return (type(self), self.args, self.__dict__)


class SpecError(MultiEnvError, ValueError):
    """The user's declaration cannot be right."""


class OverlappingTasksError(SpecError):
    """Two environments of one mixture would train on the same task, or one be evaluated on what is trained on."""


class UnknownEnvironmentError(SpecError):
    """The server holds no environment of the declared name."""


class UnknownSplitError(SpecError):
    """The environment has no such split."""


class TaskIndexError(SpecError, IndexError):
    """A declared task index lies outside the split."""


class EmptyTaskListError(SpecError):
    """An environment offers nothing to train on."""


class SessionLimitError(SpecError):
    """A batch needs more sessions at once than a limit allows; waiting for one would never end."""


class RoutingError(MultiEnvError, LookupError):
    """A row or an adapter belongs to no environment of the mixture."""


class RewardFunctionError(MultiEnvError, ValueError):
    """A user's reward function broke its contract."""


class OrderError(MultiEnvError, RuntimeError):
    """Calls came in the wrong order."""


class RecordError(MultiEnvError, ValueError):
    """A record of episodes cannot be read."""


class CheckpointError(MultiEnvError, ValueError):
    """A checkpoint does not fit what it is loaded into."""


class ServerError(MultiEnvError, ConnectionError):
    """The outside world failed.

    Attributes:
        is_transient: True when the same may succeed a moment later.
        retry_after_s: Seconds the server asked to be left alone, or None.
        num_tries: How often it was tried before this was raised.
    """

    is_transient = False
    retry_after_s: float | None = None
    num_tries = 1


class ServerUnreachableError(ServerError):
    """Nobody answers at an environment's address."""


class AuthenticationError(ServerError, PermissionError):
    """A server refuses the key, or needs one and none was given."""


class ProtocolError(ServerError):
    """A server's answer does not follow the Open Reward Standard."""


class SessionError(ServerError):
    """The session of one episode could not be opened, or was lost; the episode is failed."""

    is_transient = True


class CircuitOpenError(SessionError):
    """The environment has failed so often that it is left alone for a while; the episode is refused."""

    is_transient = False


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant.

    Args:
        wrong: What was written.
        known: What could have been written.

    Returns:
        `" (did you mean 'x'?)"`, or an empty string when nothing is close.

    Example:
        >>> nearest("wrodle", ["seta", "wordle"])
        " (did you mean 'wordle'?)"
    """
    found = nearest_name(wrong, known)
    return "" if found is None else f" (did you mean {found!r}?)"


def nearest_name(wrong: str, known: Iterable[str]) -> str | None:
    """Return the known name that is close to a wrong one, or None.

    Example:
        >>> nearest_name("color", ["size", "colour"])
        'colour'
    """
    by_fold = {name.casefold(): name for name in known}
    matches = difflib.get_close_matches(wrong.casefold(), by_fold, n=1)
    return by_fold[matches[0]] if matches else None
