"""Decides which tools a trainer may call in one rollout: those its session has, under the names the policy is shown.

Flow: the trainers' tool loops look a call up here instead of among an adapter's methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from multienv.router.adapter import EnvironmentAdapter
from multienv.router.presentation import Content
from multienv.sessions import session_loop


class ShownCall:
    """A tool of a session, called by its shown name.

    Args:
        adapter: The adapter of the rollout.
        name: The name the policy gave.
    """

    def __init__(self, adapter: EnvironmentAdapter, name: str) -> None:
        self._adapter = adapter
        self.__name__ = name

    def coroutine(self, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, Content]:
        """Return the coroutine that calls it, to be run on the session loop."""
        return self._adapter._call_shown(self.__name__, arguments)  # noqa: SLF001 - hidden from TRL, not from this room

    def __call__(self, /, **arguments: Any) -> Content:
        """Call it, and wait for the result."""
        return session_loop().run(self.coroutine(arguments))


class RolloutTools(dict[str, Callable[..., Any]]):
    """TRL's table of one rollout's tools, by shown name.

    Every other name is in it too, for a call to a tool the session lacks is answered with those it has.

    Args:
        adapter: The adapter of the rollout.
        standalone: The user's own tools, beside the environment's.
        elsewhere: Names that TRL looks up in another table.
    """

    def __init__(
        self,
        adapter: EnvironmentAdapter,
        standalone: Mapping[str, Callable[..., Any]] | None = None,
        elsewhere: Collection[str] = (),
    ) -> None:
        self._adapter = adapter
        self._elsewhere = frozenset(elsewhere)
        own = {name: ShownCall(adapter, name) for name in adapter._offered().shown}  # noqa: SLF001 - see ShownCall
        super().__init__({**(standalone or {}), **own})

    def __contains__(self, name: object) -> bool:
        """True for every name but those TRL finds elsewhere."""
        return isinstance(name, str) and (name in self.keys() or name not in self._elsewhere)

    def __missing__(self, name: str) -> ShownCall:
        """Return the call that is answered with the tools there are."""
        return ShownCall(self._adapter, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tool of that name, as indexing does."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`
