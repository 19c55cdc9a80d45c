"""Decides how environments that know nothing of ORS are declared: TRL's own kind, with their own data and rewards.

Flow: the user's `ForeignSpec`, object with TRL's three attributes, or class → `as_foreign_spec` → `multienv.foreign`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Final

from multienv.errors import SpecError
from multienv.specs.curriculum import check_sampling_weight
from multienv.specs.environment import RewardFunction, check_functions
from multienv.specs.target import has_reset, is_environment_class
from multienv.specs.task_rules import TaskRules

_ATTRIBUTES: Final = ("train_dataset", "environment_factory", "reward_funcs")
_MISSING: Final = object()
_NO_RULES: Final = TaskRules()
_IMAGES: Final = ("image", "images")

TRAIN_SPLIT: Final = "train"
"""The split in the `task_id` of foreign rows, which have none of their own."""
EVAL_SPLIT: Final = "eval"
"""The same for rows to evaluate on."""


@dataclass(frozen=True, repr=False, eq=False)
class ForeignSpec:
    """One environment of the mixture that is no ORS environment, composed as it is.

    Its instances are reset and called as TRL would reset and call them, with the columns of their own rows only. A
    public method `close()` is not shown to the policy: it is called once when the mixture is closed.

    Attributes:
        environment_factory: A TRL environment class, or a callable without arguments that makes an instance. May be
            given by position.
        train_dataset: Its rows, a map-style `datasets.Dataset`; None if the environment owns its data.
        eval_dataset: Rows of its own to evaluate on, a map-style `datasets.Dataset`; None for no evaluation.
        num_tasks: Without a dataset: how many rows with an empty prompt to train on; 1 by default.
        reward_funcs: Its TRL reward functions; each sees this environment's rows, columns and instances only. One alone
            is logged under the environment's name.
        reward_weight: What `MultiEnvGRPOTrainer` multiplies its advantages by. With TRL's own trainer, the weight of
            its reward functions in `spec.reward_weights`; what `get_reward` returns has weight 1 there.
        system_prompt: System message of its prompts, instead of the mixture's, where they have none of their own.
        sampling_weight: How often it is trained on, in relation to the others; None for 1.0 where another one has one.
        task_rules: How its tasks follow one another.

    Raises:
        SpecError: An option cannot be right.

    Example:
        >>> class Guess:
        ...     def reset(self, **row):
        ...         return "Guess a number."
        ...
        ...     def guess(self, number: int) -> str: ...
        ...
        ...     def get_reward(self) -> float:
        ...         return 1.0
        >>> ForeignSpec(Guess, num_tasks=8)
        ForeignSpec(Guess, num_tasks=8)
    """

    environment_factory: Callable[[], Any]
    _: KW_ONLY
    train_dataset: Any = None
    eval_dataset: Any = None
    num_tasks: int | None = None
    reward_funcs: Any = ()
    reward_weight: float = 1.0
    system_prompt: str | None = None
    sampling_weight: float | None = None
    task_rules: TaskRules = _NO_RULES

    def __post_init__(self) -> None:
        """Check the options."""
        _check_factory(self.environment_factory)
        _check_dataset(self.train_dataset)
        _check_dataset(self.eval_dataset, "eval_dataset")
        _check_num_tasks(self.num_tasks, has_dataset=self.train_dataset is not None)
        object.__setattr__(self, "reward_funcs", _functions(self.reward_funcs))
        weight: Any = self.reward_weight
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise SpecError(f"reward_weight={weight!r}; accepted: a finite number, 1.0 leaves the rewards as they are")
        try:
            object.__setattr__(self, "sampling_weight", check_sampling_weight(self.sampling_weight))
        except ValueError as error:
            raise SpecError(str(error)) from None
        if not isinstance(self.task_rules, TaskRules):
            raise SpecError(f"task_rules is of type {type(self.task_rules).__name__}; accepted: a TaskRules")
        if self.system_prompt is not None and not isinstance(self.system_prompt, str):
            raise SpecError(
                f"system_prompt is of type {type(self.system_prompt).__name__}; accepted: a string, or None"
            )

    @property
    def num_rows(self) -> int:
        """Number of its rows in the mixture's dataset."""
        return (self.num_tasks or 1) if self.train_dataset is None else len(self.train_dataset)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of its own rows, those to evaluate on included."""
        own = ("prompt",) if self.train_dataset is None else self.train_dataset.column_names
        return tuple(dict.fromkeys([*own, *(() if self.eval_dataset is None else self.eval_dataset.column_names)]))

    def rows(self) -> list[dict[str, Any]]:
        """Return all of its own rows to train on, in order."""
        return (
            [self.row(index) for index in range(self.num_rows)]
            if self.train_dataset is None
            else [dict(row) for row in self.train_dataset]
        )

    def eval_row(self, index: int) -> dict[str, Any]:
        """Return one of its own rows to evaluate on."""
        return dict(self.eval_dataset[index])

    def row(self, index: int) -> dict[str, Any]:
        """Return one of its own rows, as its `reset` and its reward functions get it.

        Without a dataset the row is what TRL gives an environment that owns its data: an empty user message.
        """
        if self.train_dataset is None:
            return {"prompt": [{"role": "user", "content": ""}]}
        return dict(self.train_dataset[index])

    def __repr__(self) -> str:
        """Show the factory and the number of rows."""
        size = f"num_tasks={self.num_tasks or 1}" if self.train_dataset is None else f"{self.num_rows} rows"
        return f"{type(self).__name__}({getattr(self.environment_factory, '__name__', '...')}, {size})"


class AttributesSpec(ForeignSpec):
    """An object with TRL's three attributes; each is read once, when it is first needed.

    Args:
        source: The object.
        name: The environment's name, for errors.
    """

    def __init__(self, source: Any, name: str) -> None:
        self.__dict__.update(source=source, name=name)

    @cached_property
    def environment_factory(self) -> Any:
        """The object's, checked."""
        return self._read("environment_factory", _check_factory)

    @cached_property
    def train_dataset(self) -> Any:
        """The object's, checked."""
        return self._read("train_dataset", _check_dataset)

    @cached_property
    def reward_funcs(self) -> Any:
        """The object's, checked: a tuple."""
        return self._read("reward_funcs", _functions)

    def _read(self, attribute: str, check: Callable[[Any], Any]) -> Any:
        name = self.__dict__["name"]
        source = self.__dict__["source"]
        try:
            value = getattr(source, attribute)
        except Exception as error:
            error.add_note(f"raised by {attribute!r} of environment {name!r}, a {type(source).__name__}")
            raise
        try:
            checked = check(value)
        except SpecError as error:
            raise SpecError(f"environment {name!r}: {error}", environment=name) from None
        return value if checked is None else checked

    def __getstate__(self) -> dict[str, Any]:
        """Keep the object; what was read off it is read anew."""
        return {key: self.__dict__[key] for key in ("source", "name")}

    def __repr__(self) -> str:
        """Show the object's type; nothing is read for it."""
        return f"ForeignSpec(of {type(self.__dict__['source']).__name__})"


def as_foreign_spec(name: str, value: Any) -> ForeignSpec | None:
    """Turn a value of a user's mapping into a `ForeignSpec`; None if it is nothing of that kind.

    Nothing is loaded: the attributes of an object are found without reading them.
    """
    if isinstance(value, ForeignSpec):
        return value
    if isinstance(value, type):
        return ForeignSpec(value) if has_reset(value) and not is_environment_class(value) else None
    found = [inspect.getattr_static(value, attribute, _MISSING) for attribute in _ATTRIBUTES]
    if any(attribute is _MISSING for attribute in found):
        return None
    if isinstance(found[1], Mapping):
        _check_factory(found[1])
    return AttributesSpec(value, name)


def _check_factory(factory: Any) -> None:
    if isinstance(factory, Mapping):
        raise SpecError(
            f"environment_factory holds several environments ({', '.join(map(str, factory))}); give its environments "
            "one by one, each as ForeignSpec(its factory, train_dataset=its rows, reward_funcs=...)"
        )
    if is_environment_class(factory):
        raise SpecError(f"environment_factory is {factory.__name__}, an ORS Environment class; give the class itself")
    if not callable(factory):
        raise SpecError(
            f"environment_factory is of type {type(factory).__name__}; accepted: a TRL environment class, or a "
            "callable without arguments that makes an instance"
        )
    if isinstance(factory, type) and not has_reset(factory):
        raise SpecError(f"class {factory.__name__} has no method 'reset', so it is no TRL environment; give it one")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise SpecError(
            f"environment_factory cannot be called without arguments ({error}); give a functools.partial with them"
        ) from None
    except ValueError:  # made in C, and so without a signature
        pass


def _check_dataset(dataset: Any, option: str = "train_dataset") -> None:
    if dataset is None:
        return
    kinds = {base.__name__ for base in type(dataset).__mro__ if base.__module__.partition(".")[0] == "datasets"}
    if "IterableDataset" in kinds:
        raise SpecError(
            f"{option} is streaming; accepted: a map-style dataset. Load it with streaming=False, or keep its first "
            f"rows with Dataset.from_list(list({option}.take(1000)))"
        )
    if "DatasetDict" in kinds:
        raise SpecError(f"{option} has the splits {', '.join(dataset)}; choose one, as in {option}['train']")
    if "Dataset" not in kinds:
        raise SpecError(
            f"{option} is of type {type(dataset).__name__}; accepted: a datasets.Dataset, or None if the "
            "environment owns its data. Make one with Dataset.from_list(rows)"
        )
    if not len(dataset):
        raise SpecError(f"{option} has no rows; give it one, or leave it out if the environment owns its data")
    if images := [name for name in _IMAGES if name in dataset.column_names]:
        raise SpecError(
            f"{option} has the column {images[0]!r}, which would make every row of a batch multimodal in TRL; "
            "rename it, and let the environment return images as content blocks from reset or a tool"
        )


def _check_num_tasks(num_tasks: Any, *, has_dataset: bool) -> None:
    if num_tasks is None:
        return
    if has_dataset:
        raise SpecError(
            f"num_tasks={num_tasks!r} and train_dataset exclude each other; for the first rows of a dataset give "
            "train_dataset.select(range(n))"
        )
    if isinstance(num_tasks, bool) or not isinstance(num_tasks, int) or num_tasks < 1:
        raise SpecError(f"num_tasks={num_tasks!r}; accepted: an int from 1, or None for one row")


def _functions(value: Any) -> tuple[RewardFunction, ...]:
    hint = "A reward model is for all environments: give it to MultiEnvSpec(reward_funcs=...)"
    functions = check_functions(() if value is None else value, hint)
    for function in functions:
        if hasattr(function, "state_dict"):
            raise SpecError(f"reward_funcs holds a model, a {type(function).__name__}; accepted: functions. {hint}")
    return functions
