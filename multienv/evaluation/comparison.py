"""Decides what two evaluations say of each other: differences on the tasks they share, and whether they are chance.

Flow: two records → `compared` → a table, JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multienv.errors import RecordError
from multienv.evaluation.play import Attempt
from multienv.evaluation.record import read_attempts, read_settings
from multienv.evaluation.results import task_means
from multienv.evaluation.statistics import Estimate, corrected, estimate, paired_p_value
from multienv.reporting import plain


@dataclass(frozen=True, slots=True)
class Change:
    """How one figure differs in one environment, after less before, over the tasks that both have.

    Attributes:
        before: Mean before.
        after: Mean after.
        difference: The mean difference, with its interval.
        p_value: How probable so large a difference is if nothing changed; corrected for the number of environments.
        num_better: Tasks that got better.
        num_worse: Tasks that got worse.
    """

    before: float
    after: float
    difference: Estimate
    p_value: float
    num_better: int
    num_worse: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two evaluations say of each other.

    Attributes:
        before: Who was evaluated before, and where the record is.
        after: Who was evaluated after, and where.
        success: By environment.
        reward: By environment, where both have rewards.
        num_left_out: Tasks that only one of the two has.
    """

    before: str
    after: str
    success: dict[str, Change]
    reward: dict[str, Change]
    num_left_out: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def compared(before: Path, after: Path) -> Comparison:
    """Compare two evaluations, task by task.

    Args:
        before: Directory of one.
        after: Directory of the other.

    Raises:
        RecordError: One of them cannot be read, or they have no task in common.
    """
    pair = read_attempts(before), read_attempts(after)
    tasks = [{one.episode.task_id for one in each if one.is_success is not None} for each in pair]
    if not tasks[0] & tasks[1]:
        raise RecordError(
            f"{before} and {after} have no task in common that both played; compare evaluations of the same tasks"
        )
    names = list(read_settings(before)["settings"].get("environments", {}))
    return Comparison(
        before=_title(before),
        after=_title(after),
        success=_changes(pair, names, "success"),
        reward=_changes(pair, names, "reward"),
        num_left_out=len(tasks[0] ^ tasks[1]),
    )


def _title(directory: Path) -> str:
    return f"{read_settings(directory)['settings'].get('model')} ({directory})"


def _changes(pair: Sequence[Sequence[Attempt]], names: Sequence[str], what: str) -> dict[str, Change]:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name in names:
        before, after = (task_means([one for one in each if one.episode.environment == name], what) for each in pair)
        if common := sorted(before.keys() & after.keys()):
            found[name] = [before[task] for task in common], [after[task] for task in common]
    differences = {name: [b - a for a, b in zip(*values, strict=True)] for name, values in found.items()}
    p_values = corrected([paired_p_value(each) for each in differences.values()])
    return {
        name: Change(
            before=sum(found[name][0]) / len(each),
            after=sum(found[name][1]) / len(each),
            difference=_difference(each),
            p_value=p_value,
            num_better=sum(one > 0 for one in each),
            num_worse=sum(one < 0 for one in each),
        )
        for (name, each), p_value in zip(differences.items(), p_values, strict=True)
    }


def _difference(differences: Sequence[float]) -> Estimate:
    """Estimate a mean difference; that all are 0 or 1 makes them no successes."""
    return estimate(differences, is_share=False)
