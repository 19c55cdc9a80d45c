"""Decides what is said about a manifest: which pinned tasks are gone, changed or elsewhere, and what a run does then.

Flow: `run` → here, with what the catalogue found of the pinned tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Mixture
from multienv.manifest import TaskChanges

_WRITE_ANEW = "Write a new manifest with spec.write_manifest(path) if that is meant."


def check_pins(mixture: Mixture) -> Iterator[Finding]:
    """Say how the tasks that are there differ from those that are pinned."""
    pins = mixture.pins
    if pins is None:
        return
    for name, changes in pins.changes.training.items():
        yield _training(name, changes, pins.num_kept.get(name), pins.path)
    for name, changes in pins.changes.evaluation.items():
        yield Finding(
            Severity.WARNING if changes.removed or changes.changed else Severity.NOTE,
            name,
            Code.MANIFEST_DIFFERS,
            f"it is evaluated on other tasks than manifest {pins.path!r} says: {changes}. Only training "
            "tasks are pinned.",
            "Choose the tasks with eval_indices, or write a new manifest.",
        )
    for what, names, severity in (
        ("not in the manifest, and trained on as declared", pins.changes.added, Severity.NOTE),
        ("in the manifest, and not in the mixture", pins.changes.removed, Severity.WARNING),
    ):
        if names:
            message = f"manifest {pins.path!r} is of another mixture: {', '.join(names)} {_be(names)} {what}."
            yield Finding(severity, None, Code.MANIFEST_DIFFERS, message, _WRITE_ANEW)


def _training(name: str, changes: TaskChanges, num_kept: int | None, path: str) -> Finding:
    lost = len(changes.removed) + len(changes.changed)
    if not num_kept and lost:
        return Finding(
            Severity.ERROR,
            name,
            Code.MANIFEST_DIFFERS,
            f"none of the tasks that manifest {path!r} pins is there any more, so there is nothing to train on.",
            "Write a new manifest, or leave manifest out.",
        )
    kept = "" if num_kept is None else f" It trains on the {num_kept} pinned tasks that are there."
    return Finding(
        Severity.WARNING if lost else Severity.NOTE,
        name,
        Code.MANIFEST_DIFFERS,
        f"its tasks are not those that manifest {path!r} pins: {changes}.{kept}",
        _WRITE_ANEW if lost else "",
    )


def _be(names: tuple[str, ...]) -> str:
    return "is" if len(names) == 1 else "are"
