"""Decides what a target is: a name in the openreward.ai catalogue, the URL of a server, or an `Environment` class.

Flow: `EnvSpec` checks its target here; `sessions` asks `target_kind` how to reach it.
"""

from __future__ import annotations

import inspect
import re
from enum import StrEnum
from typing import cast
from urllib.parse import urlsplit

from multienv.errors import SpecError

_CATALOGUE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_ACCEPTED = (
    "a catalogue name 'owner/name', a URL with its scheme such as 'http://127.0.0.1:8000', "
    "or a subclass of openreward.environments.Environment"
)


class TargetKind(StrEnum):
    """How an environment is reached."""

    CATALOGUE = "catalogue"
    URL = "url"
    IN_PROCESS = "in-process"


def is_environment_class(value: object) -> bool:
    """Recognise a subclass of `openreward.environments.Environment` without importing the SDK."""
    return isinstance(value, type) and any(
        base.__name__ == "Environment" and base.__module__.partition(".")[0] == "openreward" for base in value.__mro__
    )


def has_reset(cls: type) -> bool:
    """Recognise a TRL environment class: it has a method `reset`."""
    return inspect.isfunction(getattr(cls, "reset", None))


def target_kind(target: str | type) -> TargetKind:
    """Tell the kinds of target apart, as TRL does, by `://` in the string."""
    if isinstance(target, type):
        return TargetKind.IN_PROCESS
    return TargetKind.URL if "://" in target else TargetKind.CATALOGUE


def check_target(target: object) -> str | type:
    """Validate a target and bring a URL into one form.

    Args:
        target: What the user wrote.

    Returns:
        The target; a URL without its trailing slash.

    Raises:
        SpecError: It is none of the three kinds, or a URL the SDK cannot address.
    """
    if is_environment_class(target):
        return cast("type", target)
    if is_environment_class(type(target)):
        name = type(target).__name__
        raise SpecError(f"target is an instance of {name}; give the class {name}, not an instance")
    if isinstance(target, type) and has_reset(target):
        raise SpecError(
            f"class {target.__name__} is a TRL environment class: give it to the mapping directly, or as "
            f"ForeignSpec({target.__name__})"
        )
    if not isinstance(target, str):
        raise SpecError(f"target {target!r} is of type {type(target).__name__}; accepted: {_ACCEPTED}")
    if any(not character.isprintable() for character in target):
        raise SpecError(f"target holds control characters; accepted: {_ACCEPTED}")
    target = target.strip()
    if "://" in target:
        return _check_url(target)
    if "@" in target:
        raise SpecError(f"target has no scheme and holds an '@', as if it held credentials; accepted: {_ACCEPTED}")
    if not _CATALOGUE_NAME.fullmatch(target):
        hint = f"; for a server, write 'http://{target}'" if re.fullmatch(r"[\w.-]+(:\d+)?", target) else ""
        raise SpecError(f"target {target!r} has no scheme and is no catalogue name; accepted: {_ACCEPTED}{hint}")
    return target


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SpecError(f"target URL is malformed: {error}; accepted: http(s)://host[:port]") from None
    if parts.username or parts.password:
        raise SpecError("target URL holds credentials; give the key as api_key and write the URL without them")
    if parts.scheme.lower() not in _DEFAULT_PORTS or not host:
        raise SpecError(f"target {url!r} is no http(s) URL with a host; accepted: http(s)://host[:port]")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise SpecError(
            f"target '{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}' has a path or a query; the ORS "
            "routes start at a host's root. "
            "Serve it there and write http(s)://host[:port]; choose among its environments with env_name"
        )
    bracketed = f"[{host}]" if ":" in host else host
    return f"{parts.scheme.lower()}://{bracketed}{f':{port}' if port is not None else ''}"


def server_identity(target: str | type) -> str:
    """Name the server behind a target, so that two ways of writing one server compare equal.

    Example:
        >>> server_identity("http://LOCALHOST:80") == server_identity("http://127.0.0.1")
        True
    """
    if isinstance(target, type):
        return f"class {target.__module__}.{target.__qualname__}"
    if "://" not in target:
        return target.casefold()
    parts = urlsplit(target)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _DEFAULT_PORTS[parts.scheme]}"
