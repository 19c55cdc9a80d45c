"""Decides what a mixture may be made of: its environments' names, the values a name may map to, disjoint task sets.

Flow: `MultiEnvSpec` hands its mapping here and gets one declaration per name; after the servers have been asked,
`check_disjoint` looks again with what they said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from multienv.errors import OverlappingTasksError, SpecError
from multienv.specs.choice import TaskChoice
from multienv.specs.environment import EnvSpec
from multienv.specs.foreign import ForeignSpec, as_foreign_spec
from multienv.specs.target import has_reset, is_environment_class, server_identity
from multienv.types import RESERVED_NAMES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_OPEN_REWARD_OPTIONS = (
    "num_tasks",
    "split",
    "indices",
    "api_key",
    "secrets",
    "env_name",
    "include_metadata",
    "discover_task_tools",
    "task_tools_discovery_index",
)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks one environment of the mixture trains on, or is evaluated on.

    Attributes:
        name: The environment's name in the mixture.
        server: The server's identity, see `server_identity`.
        environment: The environment on that server, folded; empty for the server's default.
        split: The split.
        indices: The task indices.
    """

    name: str
    server: str
    environment: str
    split: str
    indices: range | frozenset[int]


def declare(environments: Mapping[str, Any]) -> dict[str, EnvSpec | ForeignSpec]:
    """Check a user's mapping and turn every value into an `EnvSpec` or a `ForeignSpec`.

    Args:
        environments: From a unique name to an `EnvSpec`, a target, a TRL `OpenRewardSpec`, or a foreign environment.

    Returns:
        One declaration per name, in the order of the mapping.

    Raises:
        SpecError: No environments, a bad or reserved or duplicate name, a value of another kind.
        OverlappingTasksError: Two entries declare the same tasks of the same server, or one is evaluated on what one
            trains on.
    """
    if not isinstance(environments, Mapping):
        raise SpecError(
            f"environments is of type {type(environments).__name__}; accepted: a mapping such as "
            '{"seta": EnvSpec("Eigent/SETA", num_tasks=64), "terminals": "kanishk/EndlessTerminals"}'
        )
    if not environments:
        raise SpecError('environments is empty; name at least one, as in {"seta": EnvSpec("Eigent/SETA")}')
    check_names(environments)
    declared = {name: as_spec(name, value) for name, value in environments.items()}
    own = {name: spec for name, spec in declared.items() if isinstance(spec, EnvSpec)}
    # What is excluded by an id is known once the servers have been asked.
    chosen = ((name, spec, spec.training) for name, spec in own.items() if not spec.exclude)
    training = [_declared_tasks(name, spec, choice) for name, spec, choice in chosen if choice is not None]
    check_disjoint(training)
    evaluation = ((name, spec, spec.evaluation) for name, spec in own.items())
    check_held_out(
        training, [_declared_tasks(name, spec, choice) for name, spec, choice in evaluation if choice is not None]
    )
    return declared


def check_names(names: Iterable[Any]) -> None:
    """Check the names of a mixture's environments.

    Raises:
        SpecError: A name that is malformed, reserved, or equal to another one when case is ignored.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError(
                f"environment name {name!r} is malformed; accepted: letters, digits, '.', '_' and '-', "
                "beginning with a letter or a digit"
            )
        if name.casefold() in RESERVED_NAMES:
            raise SpecError(
                f"environment name {name!r} is reserved for TRL's columns and keywords "
                f"({', '.join(sorted(RESERVED_NAMES))}); choose another"
            )
        if (first := seen.setdefault(name.casefold(), name)) != name:
            raise SpecError(f"environment names {first!r} and {name!r} differ only in case; choose distinct ones")


def as_spec(name: str, value: Any) -> EnvSpec | ForeignSpec:
    """Turn one value of a user's mapping into a declaration.

    Raises:
        SpecError: A value of another kind, or one whose parameters cannot be right.
    """
    if isinstance(value, EnvSpec | str) or is_environment_class(value) or _is_open_reward_spec(value):
        return as_env_spec(name, value)
    try:
        foreign = as_foreign_spec(name, value)
    except SpecError as error:
        raise SpecError(f"environment {name!r}: {error}", environment=name) from None
    return as_env_spec(name, value) if foreign is None else foreign


def as_env_spec(name: str, value: Any) -> EnvSpec:
    """Turn one value of a user's mapping into an `EnvSpec`.

    Args:
        name: The environment's name, for the error.
        value: An `EnvSpec`, a target, or a TRL `OpenRewardSpec`, whose parameters are taken over.

    Raises:
        SpecError: A value of another kind, or one whose parameters cannot be right.
    """
    if isinstance(value, EnvSpec):
        return value
    try:
        if isinstance(value, str) or is_environment_class(value):
            return EnvSpec(value)
        if _is_open_reward_spec(value):
            # TRL keeps a spec's parameters private; a contract test pins their names.
            options = {option: getattr(value, f"_{option}") for option in _OPEN_REWARD_OPTIONS}
            return EnvSpec(value._target, **options)  # noqa: SLF001 - see above
    except SpecError as error:
        raise SpecError(f"environment {name!r}: {error}", environment=name) from None
    cls = type(value)
    if is_environment_class(cls) or has_reset(cls):
        raise SpecError(
            f"environment {name!r} is an instance of {cls.__name__}; give the class {cls.__name__}, not an instance",
            environment=name,
        )
    what = (
        f"class {value.__name__}, which is neither an ORS Environment nor has a method 'reset'"
        if isinstance(value, type)
        else f"of type {cls.__name__}"
    )
    raise SpecError(
        f"environment {name!r} is {what}; accepted: EnvSpec, a target (catalogue name, URL or "
        "Environment class), TRL's OpenRewardSpec, ForeignSpec, an object with train_dataset, environment_factory and "
        "reward_funcs such as TRL's HarborSpec, or a TRL environment class (one with a method 'reset')",
        environment=name,
    )


def _is_open_reward_spec(value: object) -> bool:
    return any(
        base.__name__ == "OpenRewardSpec" and base.__module__.startswith("trl.experimental.openreward")
        for base in type(value).__mro__
    )


def _declared_tasks(name: str, spec: EnvSpec, choice: TaskChoice) -> TaskSet:
    if choice.indices is not None:
        indices: range | frozenset[int] = frozenset(choice.indices)
    else:
        indices = range(choice.num_tasks if choice.num_tasks is not None else 2**62)
    return TaskSet(name, server_identity(spec.target), spec.served_name, choice.split, indices)


def check_disjoint(task_sets: Iterable[TaskSet]) -> None:
    """Check that no task belongs to two environments of the mixture.

    Raises:
        OverlappingTasksError: Two of them share a server, an environment, a split and an index.
    """
    for one, other in combinations(task_sets, 2):
        if (shared := _first_shared(one, other)) is not None:
            raise OverlappingTasksError(
                f"environments {one.name!r} and {other.name!r} both hold task {shared} of split {one.split!r} at "
                f"{one.server}; accepted: disjoint indices, different splits, or different environments of the "
                "server. Use indices=range(...) for each, or env_name to choose another environment",
                environment=other.name,
            )


def check_held_out(training: Iterable[TaskSet], evaluation: Iterable[TaskSet]) -> None:
    """Check that no environment is evaluated on a task that it, or another one of the mixture, trains on.

    Raises:
        OverlappingTasksError: One is.
    """
    for trained, evaluated in product(training, evaluation):
        if (shared := _first_shared(trained, evaluated)) is not None:
            raise OverlappingTasksError(
                f"environment {evaluated.name!r} is evaluated on task {shared} of split {evaluated.split!r}, on which "
                f"{'it' if trained.name == evaluated.name else f'environment {trained.name!r}'} trains; accepted: "
                f"other tasks for each. Leave it out of the training with exclude=[{shared}], evaluate on another "
                "split with eval_split, or choose with num_tasks, indices and eval_indices",
                environment=evaluated.name,
            )


def _first_shared(one: TaskSet, other: TaskSet) -> int | None:
    """Return the lowest index of a task that two sets share; None for disjoint ones."""
    if (one.server, one.environment, one.split) != (other.server, other.environment, other.split):
        return None
    ours, theirs = one.indices, other.indices
    if isinstance(ours, range) and isinstance(theirs, range):
        start = max(ours.start, theirs.start)
        return start if start < min(ours.stop, theirs.stop) else None
    small, large = (theirs, ours) if isinstance(ours, range) else (ours, theirs)
    return min((index for index in small if index in large), default=None)
