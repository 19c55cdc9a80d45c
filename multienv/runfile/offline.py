"""Decides what an environment of a run file is offline: the replica of its preset, without a key.

Flow: `reading` → `at_replicas` → values whose targets are classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multienv.files import Wrong
from multienv.specs import PRESETS
from multienv.testing import replica

_OF_SERVERS: Final = ("api_key", "secrets", "env_name", "variant", "toolset", "env_overrides")


def at_replicas(values: Mapping[str, Any], wrongs: list[Wrong]) -> dict[str, Any]:
    """Put the presets' replicas in the environments' place.

    Args:
        values: What the file says.
        wrongs: Where it is written down that an environment has none.

    Returns:
        The values, with classes for targets and without what only servers need.
    """
    environments = values.get("environments")
    if not isinstance(environments, Mapping):
        return dict(values)
    return {**values, "environments": {name: _at_replica(name, each, wrongs) for name, each in environments.items()}}


def _at_replica(name: str, value: Any, wrongs: list[Wrong]) -> Any:
    known = value.get("preset") if isinstance(value, Mapping) else None
    if known is None:
        place = ("environments", name)
        wrongs.append(
            Wrong(
                place,
                place,
                f"it has no preset, so there is no replica of it to run offline; give it one of {', '.join(PRESETS)}, "
                f"or leave it out with offline: {{environments: {{{name}: null}}}}",
            )
        )
        return value
    if not isinstance(known, str) or known not in PRESETS:
        return value  # which the declaration refuses
    return {**{key: each for key, each in value.items() if key not in _OF_SERVERS}, "target": replica(known)}
