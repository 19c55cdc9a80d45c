"""Decides how an environment that knows nothing of ORS is driven: by delegation, with its own rows and its own tools.

Flow: TRL → `reset`, tools, `get_reward` of a class made here → the instance the user's factory made.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Final

from multienv.errors import OrderError, RoutingError, SpecError
from multienv.router.instances import ForeignInstances, Held, closer_name
from multienv.router.play import FAILED_OUTPUT, FAILED_PROMPT
from multienv.router.routes import task_key
from multienv.specs import ForeignSpec
from multienv.specs.foreign import EVAL_SPLIT, TRAIN_SPLIT
from multienv.types import JSONObject, ToolCallError

logger = logging.getLogger(__name__)

_LIFECYCLE: Final = frozenset({"reset", "get_reward"})
_OF_A_FAILED_EPISODE: Final = {"reward": None, "finished": False}


class ForeignAdapter:
    """What TRL resets and calls in place of an instance. A subclass per environment adds its tools.

    Everything else in public is read off the instance.
    """

    _spec: ClassVar[ForeignSpec]
    _instances: ClassVar[ForeignInstances]
    _warned: ClassVar[set[str]] = set()
    environment: ClassVar[str]
    """Name of the environment this rollout belongs to."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._failure: str | None = None

    def reset(self, /, **row: Any) -> Any:
        """Reset the instance with the columns of its own row.

        An exception fails the episode, not the run: the rollout goes unscored.

        Args:
            **row: The mixture's row, of which `task_index` is read, and the split in `task_id`.

        Returns:
            What the instance returned: None, a string or content blocks.

        Raises:
            RoutingError: The row has no task index of this environment.
            OrderError: The mixture is closed.
            SpecError: The user's factory gave an instance that another rollout has.
        """
        own = self._own_row(row)
        self._instances.check_open()
        self._failure = None
        try:
            if self._held is None:
                self._held = self._instances.hold()
            return _observation(self._held.instance.reset(**own))
        except SpecError:
            raise  # the declaration's fault, and so all rollouts'
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this environment's
            self._fail(error)
            return FAILED_PROMPT

    def __getattr__(self, name: str) -> Any:
        """Read a public attribute off the instance. A failed episode has no reward and is not finished."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._failure is not None and name in _OF_A_FAILED_EPISODE:
            return _OF_A_FAILED_EPISODE[name]
        if self._held is None or self._held.instance is None:
            raise AttributeError(
                f"environment {self.environment!r} has no {name!r} before reset, or after it is closed"
            )
        return getattr(self._held.instance, name)

    def __repr__(self) -> str:
        """Stay short: TRL logs this for rows that nobody scored."""
        return f"<{self.environment} {'failed' if self._failure is not None else 'foreign'}>"

    def _own_row(self, row: JSONObject) -> JSONObject:
        key = task_key(row, self.environment, TRAIN_SPLIT)
        split, index = key.split, key.index
        sizes = {TRAIN_SPLIT: self._spec.num_rows}
        if self._spec.eval_dataset is not None:
            sizes[EVAL_SPLIT] = len(self._spec.eval_dataset)
        if index >= sizes.get(split, 0):
            accepted = " or ".join(f"an int from 0 to {size - 1} in split {name!r}" for name, size in sizes.items())
            raise RoutingError(
                f"a row of environment {self.environment!r} has task_index={index} in split {split!r}; accepted: "
                f"{accepted}. Train on the spec's own train_dataset, or give your rows its columns",
                environment=self.environment,
            )
        return self._spec.row(index) if split == TRAIN_SPLIT else self._spec.eval_row(index)

    def _in_use(self, tool: str) -> Any:
        if self._held is None or self._held.instance is None:
            raise OrderError(f"{tool!r} was called before reset(), or after closing", environment=self.environment)
        return self._held.instance

    def _in_use_on_loop(self, tool: str) -> Any:
        instance = self._in_use(tool)
        assert self._held is not None  # noqa: S101 - see above
        self._held.loop = asyncio.get_running_loop()
        return instance

    def _fail(self, error: Exception) -> None:
        self._failure = repr(error)
        logger.warning("%s: reset failed: %r", self.environment, error)
        if self.environment not in self._warned:
            self._warned.add(self.environment)
            warnings.warn(
                f"environment {self.environment!r}: an episode failed and goes unscored (further ones of this "
                f"environment are logged only): {error!r}",
                RuntimeWarning,
                stacklevel=3,
            )


def _observation(returned: Any) -> Any:
    """Return what `reset` returned, if TRL can append it to a prompt; it would end the run otherwise."""
    if returned is None or isinstance(returned, str | list):
        return returned
    raise TypeError(f"reset returned {returned!r:.80}; accepted: None, a string or a list of content blocks")


def instance_of(adapter: Any) -> Any | None:
    """Return the instance behind an adapter; None for a failed episode, and for adapters of another kind."""
    if not isinstance(adapter, ForeignAdapter) or adapter._failure is not None or adapter._held is None:  # noqa: SLF001 - its own file
        return None
    return adapter._held.instance  # noqa: SLF001 - see above


def tool_functions(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the tools of an environment class as TRL collects them, without a method that closes it.

    Source:
        `GRPOTrainer`: the functions of the class other than `reset`, `get_reward` and private ones.
    """
    hidden = {*_LIFECYCLE, "close"} if closer_name(cls) == "close" else _LIFECYCLE
    return {
        name: function
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in hidden
    }


def owns_reward(cls: type) -> bool:
    """Tell whether TRL asks the instances of a class for their reward."""
    return inspect.isfunction(getattr(cls, "get_reward", None))


def make_foreign_factory(spec: ForeignSpec, instances: ForeignInstances) -> type[ForeignAdapter]:
    """Make the factory of one foreign environment: a class named after it, whose tools are the environment's own.

    Raises:
        SpecError: What the user's factory makes is no TRL environment, or does not take its rows.
    """
    cls, name = instances.environment_class, instances.name
    _check_environment(name, cls, spec)
    functions = tool_functions(cls)
    if owns_reward(cls):
        functions["get_reward"] = cls.get_reward  # type: ignore[attr-defined]  # it has one
    forwarded = {member: _forward(member, function, cls) for member, function in functions.items()}
    own = {"_spec": spec, "_instances": instances, "_warned": set(), "environment": name, "__doc__": cls.__doc__}
    return type(name, (ForeignAdapter,), forwarded | own)


def _check_environment(name: str, cls: type, spec: ForeignSpec) -> None:
    reset = getattr(cls, "reset", None)
    problem = ""
    if not inspect.isfunction(reset):
        problem = "has no method 'reset', so it is no TRL environment; give it one"
    elif inspect.iscoroutinefunction(reset):
        problem = "has a coroutine function 'reset', which TRL does not await; make it a plain function"
    elif "environment" in tool_functions(cls):
        problem = "has a tool 'environment', which is what rows are routed by; rename the method"
    else:
        try:
            inspect.signature(reset).bind(None, **dict.fromkeys(spec.column_names))
        except TypeError as error:
            problem = (
                f"has a 'reset' that does not take its rows ({error}; the columns are "
                f"{', '.join(spec.column_names)}); add **kwargs to it, or rename the columns"
            )
    if problem:
        raise SpecError(f"environment {name!r}: class {cls.__name__} {problem}", environment=name)


def _answer_failed(name: str) -> None:
    """Answer for a failed episode: no reward to the trainer, an error to the policy."""
    if name != "get_reward":
        raise ToolCallError(FAILED_OUTPUT)


def _forward(name: str, original: Callable[..., Any], cls: type) -> Callable[..., Any]:
    """Make the method that calls the instance's own, looking to TRL and transformers like that one.

    In a failed episode it says so: the policy as a text, the trainer as no reward.
    """
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def method(self: ForeignAdapter, /, *args: Any, **arguments: Any) -> Any:
            if self._failure is not None:
                return _answer_failed(name)
            return await getattr(self._in_use_on_loop(name), name)(*args, **arguments)

    else:

        @functools.wraps(original)
        def method(self: ForeignAdapter, /, *args: Any, **arguments: Any) -> Any:
            if self._failure is not None:
                return _answer_failed(name)
            return getattr(self._in_use(name), name)(*args, **arguments)

    if isinstance(inspect.getattr_static(cls, name), staticmethod):
        signature = inspect.signature(original)
        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [receiver, *signature.parameters.values()]
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method
