"""Decides who sees a key: the host it belongs to, and nobody else.

Flow: `openreward.HttpSource` asks for the key and the session secrets of its environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from pydantic import SecretStr

from multienv.errors import AuthenticationError
from multienv.specs import EnvSpec, ForeignSpec, TargetKind

KEY_VARIABLE = "OPENREWARD_API_KEY"
_PLATFORM = "openreward.ai"


def api_key_for(name: str, spec: EnvSpec, url: str) -> str | None:
    """Return the key to send to an environment's host.

    Args:
        name: Name of the environment, for the error.
        spec: Its declaration; `api_key` there belongs to the target's own host.
        url: The host that will see the key.

    Returns:
        The declared key; else the value of `OPENREWARD_API_KEY`, but for openreward.ai over TLS only; else None.

    Raises:
        AuthenticationError: A catalogue target without a key.
    """
    if spec.api_key is not None:
        return spec.api_key.get_secret_value()
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_platform = parts.scheme == "https" and (host == _PLATFORM or host.endswith(f".{_PLATFORM}"))
    key = os.environ.get(KEY_VARIABLE, "").strip() if is_platform else None
    if not key and spec.kind is TargetKind.CATALOGUE:
        where = f"set {KEY_VARIABLE}, or " if is_platform else f"{KEY_VARIABLE} is not sent to {host}; "
        raise AuthenticationError(
            f"environment {name!r}: catalogue target {spec.target!r} needs a key and none was given; "
            f"{where}pass api_key=",
            environment=name,
        )
    return key or None


def is_same_site(url: str, other: str) -> bool:
    """Tell whether a key of one host may be sent to another: the other half of the same platform, and as safely.

    Args:
        url: The host the key belongs to.
        other: The host that would see it.

    Example:
        >>> is_same_site("https://sessions.openreward.ai", "https://api.openreward.ai")
        True
        >>> is_same_site("https://sessions.openreward.ai", "https://api.example.org")
        False
    """
    own, asked = urlsplit(url), urlsplit(other)
    hosts = {(parts.hostname or "").removeprefix("sessions.").removeprefix("api.") for parts in (own, asked)}
    return len(hosts) == 1 and asked.scheme in (own.scheme, "https")


def session_secrets(
    spec: EnvSpec, key: str | None, url: str, well_known: Mapping[str, list[str]]
) -> dict[str, str | tuple[str, list[str]]] | None:
    """Return the secrets of one session in the SDK's form.

    Args:
        spec: The environment's declaration.
        key: The key of its host.
        url: Base URL of its host.
        well_known: The SDK's table from a secret's name to the domains it is for.

    Returns:
        From name to value or `(value, domains)`. A plain value whose name the SDK does not know may be used for the
        environment's own host. Catalogue targets without secrets get the key as `api_key`, as in TRL.
    """
    if spec.secrets is None:
        return {"api_key": key} if key and spec.kind is TargetKind.CATALOGUE else None
    host = urlsplit(url).hostname or ""
    secrets: dict[str, str | tuple[str, list[str]]] = {}
    for name, secret in spec.secrets.items():
        if not isinstance(secret, SecretStr):
            secrets[name] = (secret[0].get_secret_value(), list(secret[1]))
        elif name in well_known:
            secrets[name] = secret.get_secret_value()
        else:
            secrets[name] = (secret.get_secret_value(), [host])
    return secrets


def plain_secrets(spec: EnvSpec) -> dict[str, str]:
    """Return the secrets as an in-process environment gets them: names and values."""
    return {
        name: (secret if isinstance(secret, SecretStr) else secret[0]).get_secret_value()
        for name, secret in (spec.secrets or {}).items()
    }


_SHORTEST_SECRET = 4  # replacing shorter ones would garble a message and hide nothing


def masked(text: str, secrets: Collection[str]) -> str:
    """Return a text without the secrets, as they are and as `repr` and JSON write them.

    Example:
        >>> masked("401: bad key 'sk-abc'", {"sk-abc"})
        "401: bad key '[secret]'"
    """
    for secret in sorted((secret for secret in secrets if len(secret) >= _SHORTEST_SECRET), key=len, reverse=True):
        for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]):
            text = text.replace(form, "[secret]")
    return text


def secret_values(spec: EnvSpec, key: str | None) -> frozenset[str]:
    """Return what must never be shown: the key, and the values of the secrets and of the environment variables."""
    overrides = (value.get_secret_value() for value in (spec.env_overrides or {}).values())
    return frozenset(value for value in (key, *plain_secrets(spec).values(), *overrides) if value)


def secrets_of(environments: Mapping[str, EnvSpec | ForeignSpec]) -> frozenset[str]:
    """Return the keys and secrets of a mixture, which nothing may show."""
    values = {os.environ.get(KEY_VARIABLE, "").strip()}
    for spec in environments.values():
        if isinstance(spec, EnvSpec):
            values |= secret_values(spec, None if spec.api_key is None else spec.api_key.get_secret_value())
    return frozenset(filter(None, values))
