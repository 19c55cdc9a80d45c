"""Decides how much each environment counts in the loss, and by which factor that becomes the share asked for.

TRL's losses add up rollouts in different ways. By token (`dapo`, its default), an environment with long completions
takes most of the gradient, whatever its rewards are; by rollout (`grpo`), each rollout counts the same. Plain numbers
only: the trainer's tensors stay in `training`.

Flow: `training.advantages` tallies a batch's rows on every rank → the tallies are added up → `weights.Weighing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from multienv.errors import SpecError, nearest

Balance = Literal["none", "rollouts", "tokens"]
"""What an environment's share of the loss is proportional to; "none" leaves it to the loss type."""

_PER_TOKEN: Final = ("dapo", "dr_grpo", "cispo", "vespo", "luspo")
_PER_ROLLOUT: Final = ("grpo", "sapo")
_PER_MICRO_BATCH: Final = ("bnpo",)
LOSS_TYPES: Final = (*_PER_TOKEN, *_PER_ROLLOUT, *_PER_MICRO_BATCH)


def check_balance(balance: str, loss_type: str) -> None:
    """Check that a balance can be struck under a loss type.

    Raises:
        SpecError: There is no such balance, or it is not known how the loss type adds up rollouts.
    """
    known = get_args(Balance)
    if balance not in known:
        hint = nearest(balance, known) if isinstance(balance, str) else ""
        raise SpecError(f"balance={balance!r}{hint}; accepted: {', '.join(known)}")
    if balance != "none":
        loss_weights((), loss_type)


def loss_weights(lengths: Sequence[float], loss_type: str) -> list[float]:
    """Return how much each rollout of one micro-batch counts in the loss, up to a factor common to all micro-batches.

    Args:
        lengths: The number of trained tokens of each rollout.
        loss_type: As in `GRPOConfig`.

    Raises:
        SpecError: It is not known how this loss type adds up rollouts.

    Example:
        >>> loss_weights([10, 30], "dapo"), loss_weights([10, 30], "grpo"), loss_weights([10, 30], "bnpo")
        ([10.0, 30.0], [1.0, 1.0], [0.25, 0.75])

    Source:
        The end of `GRPOTrainer._compute_loss`.
    """
    if loss_type in _PER_TOKEN:
        return [float(length) for length in lengths]
    if loss_type in _PER_ROLLOUT:
        return [1.0 if length else 0.0 for length in lengths]
    if loss_type in _PER_MICRO_BATCH:
        whole = max(math.fsum(lengths), 1.0)
        return [length / whole for length in lengths]
    raise SpecError(
        f"loss_type={loss_type!r} adds up rollouts in a way not known here; known: {', '.join(LOSS_TYPES)}. "
        'Use one of these, or balance="none"'
    )


def carries_signal(rewards: Sequence[float | None], num_generations: int) -> list[bool]:
    """Tell which rollouts are of a group in which rewards differ.

    In any other group the advantage is zero up to rounding, and its size says nothing about the environment.

    Args:
        rewards: One for each rollout, group after group; None is unscored.
        num_generations: How many rollouts a group has.

    Example:
        >>> carries_signal([1.0, 0.0, 1.0, None], num_generations=2)
        [True, True, False, False]
    """
    groups = [rewards[start : start + num_generations] for start in range(0, len(rewards), num_generations)]
    differ = [len({reward for reward in group if reward is not None}) > 1 for group in groups]
    return [differ[row // num_generations] and reward is not None for row, reward in enumerate(rewards)]


@dataclass(frozen=True, slots=True)
class Row:
    """What counts of one rollout of a batch.

    Attributes:
        environment: Whose it is.
        advantage: As TRL normalised it.
        num_tokens: Its trained tokens.
        loss_weight: How much it counts in the loss; see `loss_weights`.
        is_scored: Some reward function gave a number.
        has_signal: See `carries_signal`.
    """

    environment: str
    advantage: float
    num_tokens: int
    loss_weight: float
    is_scored: bool = True
    has_signal: bool = True


@dataclass(frozen=True, slots=True)
class Totals:
    """What the rollouts of one environment come to: those that were scored and have a trained token."""

    num_rollouts: float = 0
    num_tokens: float = 0
    loss_weight: float = 0.0
    num_signals: int = 0
    sum_squares: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        """Add up two parts of a batch."""
        return Totals(
            self.num_rollouts + other.num_rollouts,
            self.num_tokens + other.num_tokens,
            self.loss_weight + other.loss_weight,
            self.num_signals + other.num_signals,
            self.sum_squares + other.sum_squares,
        )


def tally(rows: Iterable[Row]) -> dict[str, Totals]:
    """Add up rows by environment."""
    return add_up(
        {
            row.environment: Totals(
                1, row.num_tokens, row.loss_weight, int(row.has_signal), row.has_signal * row.advantage**2
            )
        }
        for row in rows
        if row.is_scored and row.num_tokens
    )


def add_up(parts: Iterable[Mapping[str, Totals]]) -> dict[str, Totals]:
    """Add up the totals of several parts of a batch, such as those of several ranks."""
    whole: dict[str, Totals] = {}
    for part in parts:
        for name, totals in part.items():
            whole[name] = whole.get(name, Totals()) + totals
    return whole


def balance_factors(totals: Mapping[str, Totals], balance: Balance) -> dict[str, float]:
    """Return the factor that gives each environment its share of the loss, and leaves the loss as large as it was.

    Args:
        totals: What each environment's rollouts come to.
        balance: What the share is proportional to: its scored rollouts, or their trained tokens. "none": nothing is
            changed.

    Example:
        >>> totals = {"short": Totals(4, 28, 28.0), "long": Totals(4, 524, 524.0)}
        >>> {name: round(factor, 2) for name, factor in balance_factors(totals, "rollouts").items()}
        {'short': 9.86, 'long': 0.53}
    """
    if balance == "none":
        return dict.fromkeys(totals, 1.0)
    counted = {name: own for name, own in totals.items() if own.loss_weight}
    asked = {name: own.num_rollouts if balance == "rollouts" else own.num_tokens for name, own in counted.items()}
    whole, weight = math.fsum(asked.values()), math.fsum(own.loss_weight for own in counted.values())
    return {
        name: asked[name] / whole * weight / own.loss_weight if name in counted else 1.0 for name, own in totals.items()
    }


def effective_shares(
    weights: Mapping[str, float],
    num_rollouts: Mapping[str, float],
    lengths: Mapping[str, float],
    loss_type: str,
    balance: Balance = "none",
) -> dict[str, float]:
    """Return each environment's share of the gradient where all have advantages of the same size.

    Args:
        weights: The factor of each environment's advantages; 1 where its weight does not act (`acts_under`).
        num_rollouts: How many rollouts of each a batch holds, on average.
        lengths: How many trained tokens a rollout of each has, on average.
        loss_type: As in `GRPOConfig`.
        balance: As in `MultiEnvGRPOTrainer`.

    Returns:
        Shares that add up to 1; all 0 where nothing acts. The sign of a weight does not count.

    Raises:
        SpecError: The loss type is not known here, or the mappings name different environments.

    Example:
        >>> nominal = {"weights": {"short": 1, "long": 1}, "num_rollouts": {"short": 8, "long": 8}}
        >>> lengths = {"short": 7, "long": 131}
        >>> round(effective_shares(**nominal, lengths=lengths, loss_type="dapo")["short"], 3)
        0.051
        >>> effective_shares(**nominal, lengths=lengths, loss_type="dapo", balance="rollouts")["short"]
        0.5
    """
    if not weights.keys() == num_rollouts.keys() == lengths.keys():
        raise SpecError(
            f"weights name {', '.join(weights)}, num_rollouts {', '.join(num_rollouts)}, lengths {', '.join(lengths)}; "
            "give one value for each environment in each of them"
        )
    each = dict(zip(lengths, loss_weights(list(lengths.values()), loss_type), strict=True))
    totals = {
        name: Totals(num_rollouts[name], num_rollouts[name] * lengths[name], num_rollouts[name] * each[name])
        for name in weights
    }
    factors = balance_factors(totals, balance)
    parts = {name: abs(weights[name]) * factors[name] * totals[name].loss_weight for name in weights}
    whole = math.fsum(parts.values())
    return {name: part / whole if whole else 0.0 for name, part in parts.items()}
