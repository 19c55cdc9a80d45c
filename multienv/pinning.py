"""Decides which of a mixture's tasks a manifest keeps, and where they are looked for.

Flow: `catalogue` fetches what is declared → here: found again by content, in the whole split if need be → datasets.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multienv.dataset import TaskList
from multienv.errors import EmptyTaskListError, SpecError
from multienv.live import LiveMixture
from multienv.manifest import Manifest, PinnedTask, PinnedTasks, compare_manifests, digest, pairing
from multienv.sessions import EnvironmentClient
from multienv.specs import TaskChoice, is_excluded
from multienv.types import Task, task_id


@dataclass(frozen=True, slots=True)
class Pins:
    """The manifest that pins a mixture's tasks.

    Attributes:
        path: Where it was read.
        manifest: What it says.
    """

    path: str
    manifest: Manifest

    @classmethod
    def read(cls, path: str | os.PathLike[str] | None) -> Pins | None:
        """Read a manifest; None for no path.

        Raises:
            SpecError: It is no path, or there is no manifest that can be read.
        """
        if path is None:
            return None
        if not isinstance(path, str | os.PathLike):
            raise SpecError(f"manifest is of type {type(path).__name__}; accepted: the path of a manifest, or None")
        return cls(os.fspath(path), Manifest.read(path))

    def keep(self, training: Mapping[str, TaskList], found: Mapping[str, Sequence[Task]]) -> dict[str, TaskList]:
        """Return what is trained on: pinned tasks that are still there, and all tasks of environments without pins.

        Args:
            training: The declared tasks of each environment that trains.
            found: Pinned tasks that were found beyond them.

        Raises:
            EmptyTaskListError: None of an environment's pinned tasks is there.
        """
        kept = dict(training)
        for name, tasks in training.items():
            pinned = self.manifest.environments.get(name)
            if pinned is not None and pinned.training is not None:
                wider = replace(tasks, tasks=[*tasks.tasks, *found.get(name, ())])
                kept[name] = self._only(wider, pinned.training)
        return kept

    def _only(self, tasks: TaskList, pinned: PinnedTasks) -> TaskList:
        """Return the pinned ones of some tasks, in the pinned order."""
        pairs = pairing(pinned.contents, as_pinned(tasks).contents)
        row_of = {f"{tasks.split}/{task.index}": row for row, task in enumerate(tasks.tasks)}
        rows = [row_of[pairs[place]] for task in pinned.tasks if (place := f"{pinned.split}/{task.index}") in pairs]
        if not rows:
            raise EmptyTaskListError(
                f"environment {tasks.environment!r}: none of the {len(pinned.tasks)} tasks that manifest {self.path!r} "
                "pins is there any more, so there is nothing to train on; write a new manifest, or leave manifest out",
                environment=tasks.environment,
            )
        prompts = None if tasks.prompts is None else [tasks.prompts[row] for row in rows]
        return replace(tasks, tasks=[tasks.tasks[row] for row in rows], prompts=prompts)

    def warn(self, declared: Manifest) -> None:
        """Say what has changed since the tasks were pinned, if anything has."""
        if changes := compare_manifests(self.manifest, declared):
            warnings.warn(
                f"the training tasks are pinned by {self.path!r}, and what is there now differs. Pinned tasks are "
                "trained on wherever they are now, those added are left out, and an environment that is not in the "
                f"manifest keeps its declared tasks:\n{changes}",
                UserWarning,
                stacklevel=2,
            )


def search(live: LiveMixture, wanted: Manifest, declared: Manifest) -> dict[str, list[Task]]:
    """Look for training tasks of a manifest beyond the declared ones, in the whole split: the catalogue may have grown.

    Nothing is fetched where all of them are declared.

    Args:
        live: The mixture.
        wanted: The manifest.
        declared: What is declared.

    Returns:
        What was found, by environment; no excluded task is among it.
    """
    lost = {name: contents for name in live.clients if (contents := _lost(name, wanted, declared))}
    if not lost:
        return {}

    async def read(client: EnvironmentClient) -> list[Task]:
        choice = client.spec.training
        if choice is None:
            return []
        return (await client.fetch_tasks(TaskChoice(choice.split)))[0]

    found: dict[str, list[Task]] = {}
    for name, tasks in live.everywhere(read, lost).items():
        choice, there = live.clients[name].spec.training, declared.environments[name].training
        if choice is not None and there is not None:
            known = {task.index for task in there.tasks}
            found[name] = [
                task
                for task in tasks
                if task.index not in known and not is_excluded(name, choice, task) and digest(task.spec) in lost[name]
            ]
    return found


def widened(declared: Manifest, found: Mapping[str, Sequence[Task]]) -> Manifest:
    """Return what is declared, with the training tasks that were found beyond it."""
    environments = dict(declared.environments)
    for name, tasks in found.items():
        own = environments[name]
        if own.training is not None:
            more = as_pinned(TaskList(name, own.training.split, tasks)).tasks
            training = own.training.model_copy(update={"tasks": (*own.training.tasks, *more)})
            environments[name] = own.model_copy(update={"training": training})
    return Manifest(environments=environments)


def as_pinned(tasks: TaskList) -> PinnedTasks:
    """Return tasks as a manifest has them; prompts of their own belong to their content."""
    contents: Sequence[Any] = [task.spec for task in tasks.tasks]
    if tasks.prompts is not None:
        contents = [{"task": spec, "prompt": prompt} for spec, prompt in zip(contents, tasks.prompts, strict=True)]
    return PinnedTasks(
        split=tasks.split,
        tasks=tuple(
            PinnedTask(
                index=task.index,
                task_id=task_id(tasks.environment, tasks.split, task.index),
                sha256=digest(content),
            )
            for task, content in zip(tasks.tasks, contents, strict=True)
        ),
    )


def _lost(name: str, wanted: Manifest, declared: Manifest) -> frozenset[str]:
    """Return the contents that a manifest trains on and the declared tasks do not have."""
    pinned, there = wanted.environments.get(name), declared.environments.get(name)
    if pinned is None or there is None or pinned.training is None or there.training is None:
        return frozenset()
    contents = pinned.training.contents
    pairs = pairing(contents, there.training.contents)
    return frozenset(content for place, content in contents.items() if place not in pairs)
