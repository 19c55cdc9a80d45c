"""Decides how often each task is a row of the dataset, for trainers that know nothing of sampling weights.

Flow: `MultiEnvSpec.train_dataset` → `repeated_rows` → rows for TRL's own sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from multienv.curriculum.outcomes import Pick
from multienv.curriculum.quotas import Quotas
from multienv.curriculum.shares import base_weights, normalised
from multienv.errors import SpecError
from multienv.specs import CurriculumSpec

_MOST_ROWS: Final = 5_000_000


def repeated_rows(
    environments: Sequence[str], spec: CurriculumSpec, sampling_weights: Mapping[str, float]
) -> list[int]:
    """Return which rows of a dataset of tasks to take, and in which order.

    Args:
        environments: The environment of each row.
        spec: The declared mixture.
        sampling_weights: By environment.
    """
    own: dict[str, list[int]] = {}
    for row, name in enumerate(environments):
        own.setdefault(name, []).append(row)
    if spec.is_left_to_trl and len({sampling_weights[name] for name in own}) == 1:
        return list(range(len(environments)))
    num_tasks = {name: len(rows) for name, rows in own.items()}
    weights = base_weights(spec, {name: sampling_weights[name] for name in own}, num_tasks)
    return [own[pick.environment][pick.task] for pick in repeated_tasks(num_tasks, weights)]


def repeated_tasks(num_tasks: Mapping[str, int], weights: Mapping[str, float]) -> list[Pick]:
    """Repeat tasks until each environment has its share of the rows, every task at least once.

    In any first part of the rows, an environment has its share up to one row.

    Args:
        num_tasks: Tasks of each environment, at least one.
        weights: Sampling weight of each environment, above 0.

    Raises:
        SpecError: That would take millions of rows.

    Example:
        >>> [pick.task for pick in repeated_tasks({"a": 4, "b": 1}, {"a": 1.0, "b": 1.0}) if pick.environment == "b"]
        [0, 0, 0, 0]
    """
    shares = normalised(weights)
    needed = {name: num / shares[name] for name, num in num_tasks.items()}
    largest = max(needed, key=lambda name: needed[name])
    if needed[largest] > _MOST_ROWS:
        raise SpecError(
            f"to give {largest!r} with its {num_tasks[largest]} tasks a share of {shares[largest]:.2g}, the dataset "
            f"would have {needed[largest]:.3g} rows; accepted: up to {_MOST_ROWS:,}. Give it fewer tasks or a larger "
            "sampling_weight, or use MultiEnvGRPOTrainer, which repeats no rows",
            environment=largest,
        )
    quotas, counts = Quotas(), dict.fromkeys(num_tasks, 0)
    picks: list[Pick] = []
    num_rows = math.ceil(needed[largest] - 1e-9)
    while len(picks) < num_rows or any(counts[name] < num for name, num in num_tasks.items()):
        (name,) = quotas.take(shares, 1)
        picks.append(Pick(name, counts[name] % num_tasks[name]))
        counts[name] += 1
    return picks
