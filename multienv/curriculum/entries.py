"""Decides what the curriculum knows of an environment, and whether a declaration can be followed with those there are.

Flow: `training.sampling` → `Entry` → `Curriculum`, which checks here at once what a plan would say later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from multienv.errors import SessionLimitError, SpecError
from multienv.specs import CurriculumSpec, TaskRules


@dataclass(frozen=True, slots=True)
class Entry:
    """What the curriculum knows of an environment.

    Attributes:
        name: Its name in the mixture.
        num_tasks: How many tasks it has.
        sampling_weight: Its weight in the mixture `"weights"`.
        rules: How its tasks follow one another.
        expected: How likely a success is before anything was observed, one number or None per task; empty for unknown.
        ids: The identities of its tasks, by which a checkpoint knows them; empty for their places.
        max_groups: Most groups of it in a batch; None for no limit.
    """

    name: str
    num_tasks: int
    sampling_weight: float = 1.0
    rules: TaskRules = field(default_factory=TaskRules)
    expected: Sequence[float | None] = ()
    ids: Sequence[str] = ()
    max_groups: int | None = None


def by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the environments that have tasks, by name.

    Raises:
        SpecError: Two have one name, or none has a task.
    """
    own: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in own:
            raise SpecError(
                f"there are two environments {entry.name!r}; give each its own name", environment=entry.name
            )
        if entry.num_tasks:
            own[entry.name] = entry
    if not own:
        raise SpecError("the curriculum has no environment with a task; there is nothing to train on")
    return own


def check_followed(
    entries: Mapping[str, Entry], spec: CurriculumSpec, num_groups: int, priors: Mapping[str, float]
) -> None:
    """Check that every part of the training has something to train on, and room for it.

    Args:
        entries: The environments by name.
        spec: The declaration.
        num_groups: Groups of a batch.
        priors: The shares of the mixture.

    Raises:
        SpecError: A part has nothing to train on, or a stage waits for what is not there.
        SessionLimitError: The limits hold fewer groups than a batch has.
    """
    for entry in entries.values():
        if entry.max_groups == 0:
            raise SpecError(
                f"environment {entry.name!r} may not have as many sessions at once as one group needs; raise its "
                "limits.max_sessions to at least num_generations, or leave it out",
                environment=entry.name,
            )
    points = {} if spec.schedule is None else spec.schedule.points
    parts = {f"step {step} of the schedule": weights for step, weights in points.items()}
    parts |= {f"stage {place}": stage.weights for place, stage in enumerate(spec.stages)}
    for what, weights in (parts or {"the mixture": {}}).items():
        _check_part(entries, what, weights or priors, num_groups)
    for place, stage in enumerate(spec.stages):
        if missing := sorted(stage.until.keys() - entries.keys()):
            raise SpecError(
                f"stage {place} waits for {missing[0]!r}, which has no task to train on, and so never ends; give it "
                "tasks, or leave it out of until",
                environment=missing[0],
            )


def _check_part(entries: Mapping[str, Entry], what: str, weights: Mapping[str, float], num_groups: int) -> None:
    names = [name for name in entries if weights.get(name)]
    if not names:
        raise SpecError(
            f"{what} trains on {', '.join(map(repr, weights))} only, which have no task to train on; give them tasks, "
            f"or name another environment of {', '.join(entries)}"
        )
    caps = [entries[name].max_groups for name in names]
    room = sum(num_groups if cap is None else cap for cap in caps)
    if room < num_groups:
        raise SessionLimitError(
            f"a batch has {num_groups} groups, and in {what} the limits let {', '.join(names)} hold {room} at once; "
            "raise limits.max_sessions, or make the batch smaller"
        )
