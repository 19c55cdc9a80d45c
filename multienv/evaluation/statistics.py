"""Decides what a number of attempts says of a policy, and how sure that is.

Tasks are drawn, attempts at one task are alike: everything here resamples tasks, never attempts.

Flow: `results`, `compare` → plain numbers with their intervals.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from multienv.errors import MultiEnvError

CONFIDENCE: Final = 0.95
_SEED: Final = 0
_NUM_RESAMPLES: Final = 2_000
_MOST_EXACT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and where the truth probably is.

    Attributes:
        value: The estimate.
        low: Lower end of the 95 % interval; NaN where one task says nothing of others.
        high: Upper end.
        num_tasks: Tasks it stands on.
    """

    value: float
    low: float
    high: float
    num_tasks: int


def pass_at_k(num_attempts: int, num_successes: int, k: int) -> float:
    """Estimate without bias how likely at least one of k attempts at a task succeeds.

    Args:
        num_attempts: Attempts at the task, at least k.
        num_successes: Those that succeeded.
        k: How many one would make.

    Source:
        Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1.

    Example:
        >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4), pass_at_k(4, 0, 2)
        (0.25, 1.0, 0.0)
    """
    if num_attempts < k:
        raise ValueError(f"k={k} is more than the {num_attempts} attempts")
    return 1.0 - math.comb(num_attempts - num_successes, k) / math.comb(num_attempts, k)


def estimate(values: Sequence[float], *, is_share: bool = True) -> Estimate:
    """Estimate a mean over tasks.

    Args:
        values: One number a task, at least one.
        is_share: False where 0 and 1 do not mean that a task failed or succeeded.

    Returns:
        The mean with an interval: Wilson's where every task either succeeded or failed, else a bootstrap over tasks.
    """
    num_tasks, mean = len(values), math.fsum(values) / len(values)
    if is_share and all(value in (0, 1) for value in values):
        interval = stats().binomtest(int(sum(values)), num_tasks).proportion_ci(CONFIDENCE, method="wilson")
        return Estimate(mean, float(interval.low), float(interval.high), num_tasks)
    if len(set(values)) == 1:  # nothing to draw from, and no certainty either
        is_known = is_share and 0 <= values[0] <= 1 and num_tasks > 1
        low, high = _wilson(values[0], num_tasks) if is_known else (math.nan, math.nan)
    else:
        low, high = _bootstrapped(values)
    return Estimate(mean, low, high, num_tasks)


def estimate_of_means(groups: Sequence[Sequence[float]]) -> Estimate:
    """Estimate the mean over environments of their means over tasks; each environment counts the same.

    Args:
        groups: For each environment one number a task, at least one.
    """
    each = [estimate(values) for values in groups]
    value = math.fsum(one.value for one in each) / len(each)
    num_tasks = sum(one.num_tasks for one in each)
    # Environments are fixed and their tasks are drawn apart, so variances add; a half-width stands for each.
    down = math.sqrt(math.fsum((one.value - one.low) ** 2 for one in each)) / len(each)
    up = math.sqrt(math.fsum((one.high - one.value) ** 2 for one in each)) / len(each)
    return Estimate(value, value - down, value + up, num_tasks)


def paired_p_value(differences: Sequence[float]) -> float:
    """Test whether differences, one a task, could be chance: their signs are exchangeable if nothing changed.

    Returns:
        The two-sided p-value, exact where there are few tasks; 1.0 where nothing differs.
    """
    changed = [difference for difference in differences if difference]
    if not changed:
        return 1.0
    if len({abs(difference) for difference in changed}) == 1:  # a sign test, which is McNemar's exact one
        return float(stats().binomtest(sum(difference > 0 for difference in changed), len(changed)).pvalue)
    import numpy as np  # noqa: PLC0415 - comes with scipy

    resamples = np.inf if 2 ** len(changed) <= _MOST_EXACT else _NUM_RESAMPLES * 5
    tested = stats().permutation_test(
        (np.asarray(changed),),
        lambda sample, axis: np.sum(sample, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        rng=np.random.default_rng(_SEED),
    )
    return min(1.0, float(tested.pvalue))


def corrected(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, as Holm does; the order stays.

    Example:
        >>> corrected([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, p_values[place] * (len(p_values) - rank)))
        found[place] = least
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that a share of all do not exceed; NaN for none.

    Example:
        >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.95)
        (2.0, 3.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def stats() -> Any:
    """Return `scipy.stats`.

    Raises:
        MultiEnvError: It is not installed.
    """
    try:
        from scipy import stats as found  # noqa: PLC0415 - an extra
    except ImportError:
        raise MultiEnvError(
            "intervals and tests need scipy, which is not installed; install it with: pip install 'multienv[eval]'"
        ) from None
    return found


def _wilson(share: float, num: int) -> tuple[float, float]:
    """Return Wilson's interval of a share, which need not be a whole number of so many."""
    z = float(stats().norm.ppf((1 + CONFIDENCE) / 2))
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, middle - half), min(1.0, middle + half)


def _bootstrapped(values: Sequence[float]) -> tuple[float, float]:
    import numpy as np  # noqa: PLC0415 - comes with scipy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, of samples whose interval degenerates; found out below
        found = stats().bootstrap(
            (np.asarray(values),),
            np.mean,
            confidence_level=CONFIDENCE,
            n_resamples=_NUM_RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(_SEED),
        )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
