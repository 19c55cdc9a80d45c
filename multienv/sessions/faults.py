"""Decides what a foreign exception means: one table from the SDK's and aiohttp's classes to the library's own.

Flow: `openreward.HttpSource` and its sessions wrap every request in `translated`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import aiohttp
from openreward.api import errors as sdk
from openreward.api.environments.types import AuthenticationError as SDKAuthenticationError

from multienv.errors import AuthenticationError, MultiEnvError, ProtocolError, ServerUnreachableError, SessionError
from multienv.sessions.keys import masked
from multienv.types import ToolRefused

_MEANING: tuple[tuple[type[Exception], type[MultiEnvError], str], ...] = (
    # The first row that fits counts.
    (SDKAuthenticationError, AuthenticationError, "the server refuses the key; give the key of this server as api_key"),
    (aiohttp.ClientConnectorError, ServerUnreachableError, "nobody accepts a connection; is the server up?"),
    (sdk.SessionTerminatedError, SessionError, "the session is gone"),
    (sdk.ToolFailed, SessionError, "the tool raised on the server"),
    (sdk.TransportError, SessionError, "the connection failed"),
    (sdk.OpenRewardError, SessionError, "the session failed"),
    (aiohttp.ClientResponseError, SessionError, "the server answered with an error"),
    (aiohttp.ClientError, SessionError, "the connection failed"),
    (TimeoutError, SessionError, "no answer in time"),
    (ConnectionError, SessionError, "the connection failed"),
    (LookupError, ProtocolError, "the answer lacks a field of the Open Reward Standard"),
    (ValueError, ProtocolError, "the answer does not follow the Open Reward Standard"),
    (TypeError, ProtocolError, "the answer does not follow the Open Reward Standard"),
    (Exception, ProtocolError, "the answer does not follow the Open Reward Standard"),
)
_REFUSED = frozenset({401, 403})
_TRANSIENT = frozenset({404, 408, 410, 425, 429})  # 404, 410: a session that is gone; a fresh one may live
_TAKEN = "Session already exists"
_SERVER_ERROR = 500
_NO_ROUTE = frozenset({404, 405, 501})
_LONGEST = 300


@contextmanager
def translated(environment: str, url: str, doing: str, secrets: Collection[str] = ()) -> Iterator[None]:
    """Turn a foreign exception into one of the library's own, with the environment, the URL and what was being done.

    Args:
        environment: Name of the environment in the mixture.
        url: Its server.
        doing: What was attempted, as in `"opening a session for task 3"`.
        secrets: What must not be shown, even if a server's answer repeats it.

    Raises:
        AuthenticationError: The key was refused.
        ServerUnreachableError: Nobody accepts a connection.
        ProtocolError: The answer does not follow the standard.
        SessionError: Anything else that went wrong outside.
    """
    try:
        yield
    except (MultiEnvError, ToolRefused):
        raise
    except Exception as caught:  # noqa: BLE001 - the table's last row means all of them
        error = _last_cause(caught)
        for foreign, own, meaning in _MEANING:
            if isinstance(error, foreign):
                if isinstance(error, aiohttp.ClientResponseError) and error.status in _REFUSED:
                    own, meaning = AuthenticationError, _MEANING[0][2]  # noqa: PLW2901 - a status, not a class, says so
                if isinstance(error, aiohttp.ClientResponseError) and error.status in _NO_ROUTE:
                    meaning += "; is this an ORS server?"  # noqa: PLW2901 - see above
                detail = "" if isinstance(error, SDKAuthenticationError) else f": {_detail(error, secrets)}"
                # A traceback shows the cause as well; it is left out where it would show a secret.
                cause = caught if masked(str(caught), secrets) == str(caught) else None
                fault = own(
                    f"environment {environment!r} at {url}: {doing}: {meaning}{detail}", environment=environment
                )
                _set_hints(fault, error)
                raise fault from cause


def _set_hints(fault: MultiEnvError, error: Exception) -> None:
    """Note whether trying again can help, and after how long."""
    if isinstance(fault, SessionError) and isinstance(error, aiohttp.ClientResponseError):
        # The SDK posts an opening whose answer was lost again, and finds the id taken by its own session.
        is_taken = _TAKEN in error.message
        fault.is_transient = error.status in _TRANSIENT or error.status >= _SERVER_ERROR or is_taken
        asked = error.headers.get("Retry-After", "") if error.headers else ""
        fault.retry_after_s = float(asked) if asked.isdigit() else None


def _last_cause(error: Exception) -> Exception:
    """Return what the SDK's last try ended with, where it gave up trying."""
    return error.errors[-1] if isinstance(error, sdk.MaxRetriesError) and error.errors else error


def _detail(error: Exception, secrets: Collection[str]) -> str:
    text = f"{error.status} {error.message}" if isinstance(error, aiohttp.ClientResponseError) else str(error)
    text = " ".join((masked(text, secrets) or type(error).__name__).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
