"""Decides which tasks a mixture trains on and evaluates on.

Flow: `MultiEnvSpec` → fetch the chosen tasks → leave out the excluded → keep the pinned → datasets → TRL.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from multienv.dataset import TaskList, build_dataset
from multienv.errors import EmptyTaskListError, OrderError, SpecError
from multienv.live import LiveMixture
from multienv.manifest import (
    Manifest,
    ManifestChanges,
    PinnedChanges,
    PinnedEnvironment,
    compare_manifests,
    pairing,
)
from multienv.pinning import Pins, as_pinned, search, widened
from multienv.sessions import EnvironmentClient
from multienv.specs import EnvSpec, ForeignSpec, TaskSet, check_disjoint, check_held_out, left_over
from multienv.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

_Fetched: TypeAlias = dict[str, tuple[tuple[str, list[Task]], TaskSet]]
"""Under `training` and `evaluation`: the split and its chosen tasks, and where they were read."""

_NONE_TRAINS: Final = (
    "there is nothing to train on: {names} {is_are} evaluation_only; leave the option out of one environment. To "
    "evaluate without training, give the trainer a train_dataset of your own, such as one of spec.eval_dataset"
)


@dataclass(frozen=True, slots=True)
class MixtureTasks:
    """The tasks of a mixture, as rows.

    Attributes:
        rows: The training rows, one environment after the other; no row where none trains.
        evaluation: The evaluation rows by environment, with the same columns.
        columns: The metadata columns that each environment's own task specs have.
        manifest: What is trained and evaluated on.
        declared: What would be trained on without a pinning manifest, and where pinned tasks were found beyond that.
    """

    rows: Dataset
    evaluation: Mapping[str, Dataset]
    columns: Mapping[str, frozenset[str]]
    manifest: Manifest
    declared: Manifest


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The tasks of one environment: what is trained on, what is evaluated on, and where it lives."""

    training: TaskList | None
    evaluation: TaskList | None
    target: str
    served_name: str = ""

    def pinned(self) -> PinnedEnvironment:
        """Return it as a manifest has it."""
        return PinnedEnvironment(
            target=self.target,
            served_name=self.served_name,
            training=None if self.training is None else as_pinned(self.training),
            evaluation=None if self.evaluation is None else as_pinned(self.evaluation),
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Where the tasks of a mixture come from.

    Attributes:
        specs: The declarations by name.
        live: What of the mixture lives in this process.
        system_prompt: System message of environments without one of their own.
        pins: The manifest that says what is trained on, or None.
    """

    specs: Mapping[str, EnvSpec | ForeignSpec]
    live: LiveMixture
    system_prompt: str | None = None
    pins: Pins | None = None

    def read(self) -> MixtureTasks:
        """Read the tasks of all environments and make their rows.

        Raises:
            SpecError: A declaration does not fit its server, or what is there.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        chosen = self._fetch()
        declared = Manifest(environments={name: own.pinned() for name, own in chosen.items()})
        manifest = declared
        if self.pins is not None:
            found = search(self.live, self.pins.manifest, declared)
            declared = widened(declared, found)
            self.pins.warn(declared)
            kept = self.pins.keep({name: own.training for name, own in chosen.items() if own.training}, found)
            chosen = {name: replace(own, training=kept.get(name)) for name, own in chosen.items()}
            manifest = Manifest(environments={name: own.pinned() for name, own in chosen.items()})
        self._check_apart(chosen)
        training = [own.training for own in chosen.values() if own.training is not None]
        evaluation = {name: own.evaluation for name, own in chosen.items() if own.evaluation is not None}
        dataset, columns = build_dataset([*training, *evaluation.values()])
        start = sum(len(tasks.tasks) for tasks in training)
        rows = dataset.select(range(start)) if evaluation else dataset
        held_out: dict[str, Dataset] = {}
        for name, tasks in evaluation.items():
            held_out[name] = dataset.select(range(start, start + len(tasks.tasks)))
            start += len(tasks.tasks)
        return MixtureTasks(rows, held_out, columns, manifest, declared)

    def compare(self, tasks: MixtureTasks, path: str | os.PathLike[str]) -> ManifestChanges:
        """Say how what the mixture declares differs from a manifest.

        Raises:
            SpecError: There is no manifest that can be read.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        wanted = Manifest.read(path)
        return compare_manifests(wanted, widened(tasks.declared, search(self.live, wanted, tasks.declared)))

    def compare_pins(self, names: Collection[str]) -> PinnedChanges:
        """Say what has become of the pinned tasks of some ORS environments.

        Args:
            names: The environments; the others are not asked.

        Raises:
            OrderError: Nothing is pinned.
            SpecError: A declaration does not fit its server.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        if self.pins is None:
            raise OrderError("compare_pins() was called on a mixture without a manifest; give it one with manifest=")
        chosen = self._chosen(self.live.everywhere(_fetch_chosen, names))
        declared = Manifest(environments={name: own.pinned() for name, own in chosen.items()})
        pinned = self.pins.manifest.environments
        known = {name: own for name, own in pinned.items() if name in chosen or name not in self.specs}
        wanted = Manifest(environments=known)
        there = widened(declared, search(self.live, wanted, declared))
        num_kept = {}
        for name in chosen:
            before, now = known[name].training if name in known else None, there.environments[name].training
            if before is not None and now is not None:
                num_kept[name] = len(pairing(before.contents, now.contents))
        return PinnedChanges(self.pins.path, compare_manifests(wanted, there), num_kept)

    def is_evaluated(self) -> bool:
        """Tell whether there is anything to evaluate on; nobody is asked."""
        return any(
            spec.evaluation is not None if isinstance(spec, EnvSpec) else spec.eval_dataset is not None
            for spec in self.specs.values()
        )

    def check_trains(self, tasks: MixtureTasks) -> None:
        """Check that there is a training row.

        Raises:
            EmptyTaskListError: There is none.
        """
        if not len(tasks.rows):
            names = ", ".join(map(repr, self.specs))
            raise EmptyTaskListError(_NONE_TRAINS.format(names=names, is_are="are" if len(self.specs) > 1 else "is"))

    def _fetch(self) -> dict[str, _Chosen]:
        fetched = self._chosen(self.live.everywhere(_fetch_chosen))
        chosen: dict[str, _Chosen] = {}
        for name, spec in self.specs.items():
            if not isinstance(spec, ForeignSpec):
                chosen[name] = fetched[name]
                continue
            factory = spec.environment_factory
            target = f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', '?')}"
            foreign = self.live.foreign[name]
            chosen[name] = _Chosen(
                foreign.task_list(self.system_prompt), foreign.evaluation_list(self.system_prompt), target
            )
        return chosen

    def _chosen(self, fetched: Mapping[str, _Fetched]) -> dict[str, _Chosen]:
        """Return the tasks of ORS environments by name."""
        chosen: dict[str, _Chosen] = {}
        for name, own in fetched.items():
            parts = {part: self._as_list(name, self.live.clients[name].spec, tasks) for part, (tasks, _) in own.items()}
            where = next(iter(own.values()))[1]
            chosen[name] = _Chosen(parts.get("training"), parts.get("evaluation"), where.server, where.environment)
        return chosen

    def _as_list(self, name: str, spec: EnvSpec, tasks: tuple[str, Sequence[Task]]) -> TaskList:
        system_prompt = spec.system_prompt if spec.system_prompt is not None else self.system_prompt
        return TaskList(name, *tasks, system_prompt, spec.include_metadata)

    def _check_apart(self, chosen: Mapping[str, _Chosen]) -> None:
        ors = {name: own for name, own in chosen.items() if name in self.live.clients}
        training = [_task_set(own, own.training) for own in ors.values() if own.training is not None]
        check_disjoint(training)
        check_held_out(training, [_task_set(own, own.evaluation) for own in ors.values() if own.evaluation is not None])


async def _fetch_chosen(client: EnvironmentClient) -> _Fetched:
    """Fetch what one environment trains on and is evaluated on, excluded tasks left out."""
    fetched: _Fetched = {}
    for part, choice in (("training", client.spec.training), ("evaluation", client.spec.evaluation)):
        if choice is not None:
            tasks, task_set = await client.fetch_tasks(choice)
            try:
                left = left_over(client.name, choice, tasks)
            except SpecError as error:
                message = f"environment {client.name!r}: {error}"
                raise type(error)(message, environment=client.name) from None
            fetched[part] = (choice.split, left), task_set
    return fetched


def _task_set(own: _Chosen, tasks: TaskList) -> TaskSet:
    indices = frozenset(task.index for task in tasks.tasks)
    return TaskSet(tasks.environment, own.target, own.served_name, tasks.split, indices)
