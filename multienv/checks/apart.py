"""Decides what is said about tasks that are in the mixture twice: in two environments, or in training and evaluation.

Flow: `run` → here, with the chosen tasks of every environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multienv.checks.findings import Code, Finding, Severity, advised
from multienv.checks.looks import Mixture
from multienv.errors import OverlappingTasksError
from multienv.sessions import Outline
from multienv.specs import EnvSpec, TaskSet, check_disjoint, check_held_out, server_identity


def check_apart(mixture: Mixture) -> Iterator[Finding]:
    """Say which tasks are trained on twice, or trained on and evaluated on."""
    training = _sets(mixture, mixture.outlines, is_training=True)
    evaluation = _sets(mixture, mixture.held_out, is_training=False)
    try:
        check_disjoint(training)
        check_held_out(training, evaluation)
    except OverlappingTasksError as error:
        message, fix = advised(error, "Choose other tasks for each.")
        yield Finding(Severity.ERROR, error.environment, Code.DECLARATION_WRONG, message, fix)


def _sets(mixture: Mixture, outlines: Mapping[str, Outline], *, is_training: bool) -> list[TaskSet]:
    found = []
    for name, outline in outlines.items():
        spec = mixture.specs[name]
        choice = (spec.training if is_training else spec.evaluation) if isinstance(spec, EnvSpec) else None
        if isinstance(spec, EnvSpec) and choice is not None:
            where = server_identity(spec.target)
            found.append(TaskSet(name, where, outline.served_name, choice.split, frozenset(outline.chosen)))
    return found
