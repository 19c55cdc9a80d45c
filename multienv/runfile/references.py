"""Decides how a file names what cannot stand in it: secrets by a variable, functions and classes by a module.

Flow: `reading` → `resolved` → values in which each reference is what it stands for.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multienv.errors import SpecError, nearest
from multienv.files import Place, Wrong
from multienv.rewards import discounted

_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_IMPORTED: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_SECRETS: Final = ("secrets", "env_overrides")
_KEYS: Final = (("evaluation", "api_key"), ("grpo", "hub_token"))


@dataclass(slots=True)
class Resolver:
    """Resolves the references of one file.

    Attributes:
        folder: Where the file is; its modules are looked for there first.
        wrongs: What could not be resolved.
    """

    folder: Path
    wrongs: list[Wrong]

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with every reference resolved."""
        resolved = dict(values)
        for section, key in _KEYS:
            if isinstance(inner := resolved.get(section), Mapping) and key in inner:
                resolved[section] = {**inner, key: self._secret((section, key), inner[key])}
        if "reward_funcs" in resolved:
            resolved["reward_funcs"] = self._functions(("reward_funcs",), resolved["reward_funcs"])
        if isinstance(environments := resolved.get("environments"), Mapping):
            resolved["environments"] = {
                name: self._environment(("environments", name), value) for name, value in environments.items()
            }
        return resolved

    def _environment(self, place: Place, value: Any) -> Any:
        if isinstance(value, str):
            return self._target((place), value)
        if not isinstance(value, Mapping):
            return value
        own = dict(value)
        if isinstance(target := own.get("target"), str):
            own["target"] = self._target((*place, "target"), target)
        if own.get("api_key") is not None:
            own["api_key"] = self._secret((*place, "api_key"), own["api_key"])
        for option in _SECRETS:
            if isinstance(secrets := own.get(option), Mapping):
                own[option] = {key: self._with_domains((*place, option, key), each) for key, each in secrets.items()}
        if "reward_funcs" in own:
            own["reward_funcs"] = self._functions((*place, "reward_funcs"), own["reward_funcs"])
        if isinstance(reward := own.get("reward"), Mapping):
            own["reward"] = self._reward((*place, "reward"), reward)
        return own

    def _target(self, place: Place, target: str) -> Any:
        return self._imported(place, target) if _IMPORTED.fullmatch(target) else target

    def _reward(self, place: Place, reward: Mapping[str, Any]) -> dict[str, Any]:
        own = dict(reward)
        reduction = own.get("reduction")
        if isinstance(reduction, Mapping) and list(reduction) == ["discounted"]:
            try:
                own["reduction"] = discounted(reduction["discounted"])
            except (SpecError, TypeError) as error:
                self._wrong((*place, "reduction"), f"reduction: {error}")
        for option in ("reduction", "is_failure"):
            if isinstance(name := own.get(option), str) and ":" in name:
                own[option] = self._imported((*place, option), name)
        return own

    def _functions(self, place: Place, names: Any) -> Any:
        if isinstance(names, str):
            return (self._imported(place, names),)
        if not isinstance(names, list):
            return names
        return tuple(
            self._imported((*place, number), name) if isinstance(name, str) else name
            for number, name in enumerate(names)
        )

    def _with_domains(self, place: Place, value: Any) -> Any:
        if isinstance(value, list) and value:
            return (self._secret(place, value[0]), *value[1:])
        return self._secret(place, value)

    def _secret(self, place: Place, value: Any) -> Any:
        """Return what an environment variable holds; a secret itself is refused without being shown."""
        option = place[-1]
        named = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
        if named is None:
            self._wrong(
                place,
                f"{option} is no reference to an environment variable; accepted: {option}: ${{NAME}}, with the secret "
                "itself in the variable NAME. Take the secret out of the file",
            )
            return None
        name = named[1] or named[2]
        held = os.environ.get(name)
        if held is None:
            self._wrong(
                place,
                f"{option}: the environment variable {name} is not set{nearest(name, list(os.environ))}; set it, as in "
                f"export {name}=...",
            )
        return held

    def _imported(self, place: Place, name: str) -> Any:
        """Import `module:name`; the file's own folder comes first, whatever else is importable."""
        option = next(part for part in reversed(place) if isinstance(part, str))
        named = _IMPORTED.fullmatch(name)
        if named is None:
            self._wrong(
                place, f"{option}: {name!r} names no function; accepted: module:function, as in rewards:brevity"
            )
            return None
        folder = str(self.folder.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = importlib.import_module(named[1])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's module raises while it is imported
            self._wrong(
                place,
                f"{option}: module {named[1]!r} cannot be imported: {type(error).__name__}: {error}; it is looked for "
                f"in {folder} and where Python looks",
            )
            return None
        try:
            return getattr(module, named[2])
        except Exception:  # noqa: BLE001 - a module may answer by a function of its own
            known = [one for one in vars(module) if not one.startswith("_")]
            where = getattr(module, "__file__", None) or "a module of Python's own"
            self._wrong(
                place,
                f"{option}: module {named[1]!r} ({where}) has no {named[2]!r}{nearest(named[2], known)}; "
                "correct it, or rename your module where another one has its name",
            )
            return None

    def _wrong(self, place: Place, text: str) -> None:
        self.wrongs.append(Wrong(place, place, text))
