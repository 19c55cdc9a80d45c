"""Decides how one class stands for all environments, for trainers that take a single factory.

Every rollout is shown the tools of all environments; calling another environment's tool is answered with the own ones.

Flow: trainer → `MetaEnvironment.reset(environment=...)` → the adapter of that environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar

from multienv.errors import OrderError
from multienv.router.adapter import RESERVED_MEMBERS, EnvironmentAdapter
from multienv.router.naming import python_names
from multienv.router.presentation import Content
from multienv.router.routes import unknown_environment
from multienv.types import Column, Episode, JSONObject, ToolCallError


class MetaEnvironment:
    """One rollout of any environment. `make_meta_factory` adds a subclass with the tools of a mixture."""

    _factories: ClassVar[Mapping[str, type[EnvironmentAdapter]]]
    _tool_names: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(self) -> None:
        self._adapters: dict[str, EnvironmentAdapter] = {}
        self._current: EnvironmentAdapter | None = None

    def reset(self, /, **row: Any) -> Content:
        """Route to the row's environment and start an episode there.

        Args:
            **row: The row's columns, of which `environment` and `task_index` are read.

        Returns:
            The environment's prompt.

        Raises:
            RoutingError: The row names no environment of the mixture, or has no task index.
        """
        name = row.get(Column.ENVIRONMENT)
        if not isinstance(name, str) or name not in self._factories:
            raise unknown_environment(name, self._factories)
        if self._current is not None:
            self._current._close()  # noqa: SLF001 - the adapter hides it from TRL, not from this room
        if name not in self._adapters:
            self._adapters[name] = self._factories[name]()
        self._current = self._adapters[name]
        return self._current.reset(**row)

    @property
    def environment(self) -> str | None:
        """Name of the environment of this rollout; None before the first `reset`."""
        return self._current.environment if self._current is not None else None

    @property
    def episode(self) -> Episode:
        """The record of the episode so far."""
        return self._adapter().episode

    @property
    def reward(self) -> float | None:
        """The reward of the episode, see `EnvironmentAdapter.reward`."""
        return self._adapter().reward

    @property
    def rewards(self) -> list[float | None]:
        """The step rewards, one entry per tool call."""
        return self._adapter().rewards

    @property
    def metadata(self) -> list[JSONObject | None]:
        """The metadata of the results, one entry per tool call."""
        return self._adapter().metadata

    @property
    def finished(self) -> bool:
        """True once the environment declared the episode over."""
        return self._adapter().finished

    @property
    def last_output(self) -> str:
        """Text of the most recent tool result."""
        return self._adapter().last_output

    def __repr__(self) -> str:
        """Show the current adapter."""
        return f"<meta {self._current!r}>" if self._current is not None else "<meta before reset>"

    def _release(self) -> None:
        """Close the current session in the background."""
        if self._current is not None:
            self._current._release()  # noqa: SLF001 - the adapter hides it from TRL, not from this room

    def _cut_off(self, reason: str) -> None:
        """Note that a limit of the trainer cut the completion short."""
        self._adapter()._cut_off(reason)  # noqa: SLF001 - see `_release`

    def _grade(self, message: str) -> Coroutine[Any, Any, None]:
        """Make the coroutine that grades the policy's last plain message."""
        return self._adapter()._grade(message)  # noqa: SLF001 - see `_release`

    def _adapter(self) -> EnvironmentAdapter:
        if self._current is None:
            raise OrderError("the meta environment was used before reset(environment=...)")
        return self._current

    def _dispatch(self, environment: str, shown: str, tool: str, arguments: JSONObject) -> Content:
        adapter = self._adapter()
        if adapter.environment != environment:
            own = ", ".join(self._tool_names[adapter.environment]) or "none"
            raise ToolCallError(f"{shown!r} is not a tool of this environment; its tools are: {own}")
        content: Content = getattr(adapter, tool)(**arguments)
        return content


def make_meta_factory(factories: Mapping[str, type[EnvironmentAdapter]]) -> type[MetaEnvironment]:
    """Make the one factory of a whole mixture.

    Args:
        factories: The adapter class of each environment, by name.

    Returns:
        A subclass of `MetaEnvironment` with one public method per tool; a tool whose name two environments have is
        called `<environment>__<tool>`.
    """
    shown = _shown_names({name: _tool_methods(factory) for name, factory in factories.items()})
    methods = {
        shown[name, tool]: _forward(name, tool, shown[name, tool], method)
        for name, factory in factories.items()
        for tool, method in _tool_methods(factory).items()
    }
    tool_names = {
        name: tuple(shown[name, tool] for tool in _tool_methods(factory)) for name, factory in factories.items()
    }
    namespace = {**methods, "_factories": dict(factories), "_tool_names": tool_names}
    return type("MetaEnvironment", (MetaEnvironment,), namespace)


def _tool_methods(factory: type[EnvironmentAdapter]) -> dict[str, Callable[..., Content]]:
    """Return the tools of an adapter class: what it adds in public to `EnvironmentAdapter`."""
    return {
        name: member
        for name, member in vars(factory).items()
        if not name.startswith("_") and name not in RESERVED_MEMBERS
    }


def _shown_names(tools: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, str], str]:
    """Name every tool; those whose name occurs twice carry their environment's."""
    counts = Counter(tool for methods in tools.values() for tool in methods)
    keys: dict[str, tuple[str, str]] = {}
    for name, methods in tools.items():
        for tool in methods:
            key = tool if counts[tool] == 1 else f"{name}__{tool}"
            while key in keys:
                key += "_"
            keys[key] = (name, tool)
    names = python_names(keys, taken=RESERVED_MEMBERS, suffix="_tool")
    return {keys[key]: name for key, name in names.items()}


def _forward(environment: str, tool: str, shown: str, original: Callable[..., Content]) -> Callable[..., Content]:
    """Make the method that forwards to the current adapter, looking to transformers like the adapter's own."""

    def method(self: MetaEnvironment, /, **arguments: Any) -> Content:
        return self._dispatch(environment, shown, tool, arguments)

    method.__name__ = method.__qualname__ = shown
    method.__doc__ = original.__doc__
    method.__annotations__ = dict(original.__annotations__)
    method.__signature__ = original.__signature__  # type: ignore[attr-defined]
    return method
