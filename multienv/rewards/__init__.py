"""HOW an episode becomes a number, and how much a number counts.

Flow: TRL calls the functions made here with a batch; each row's number comes from its own environment.
"""

from multienv.rewards.batches import Batches
from multienv.rewards.foreign import ForeignRows, foreign_reward
from multienv.rewards.functions import Columns, LogColumns, callable_name, is_function, routed
from multienv.rewards.groups import group_reward
from multienv.rewards.mixture import check_distinct, environment_functions, several_functions
from multienv.rewards.outcome import (
    environment_reward,
    episode_reward,
    episode_status,
    is_scorable,
    is_success,
    mixture_reward,
)
from multienv.rewards.reduce import discounted
from multienv.rewards.scale import RunningScale
from multienv.rewards.shares import (
    Balance,
    Row,
    add_up,
    carries_signal,
    check_balance,
    effective_shares,
    loss_weights,
    tally,
)
from multienv.rewards.weights import Weighing, acts_under, check_applied_once, row_factors, weights_notice

__all__ = [
    "Balance",
    "Batches",
    "Columns",
    "ForeignRows",
    "LogColumns",
    "Row",
    "RunningScale",
    "Weighing",
    "acts_under",
    "add_up",
    "callable_name",
    "carries_signal",
    "check_applied_once",
    "check_balance",
    "check_distinct",
    "discounted",
    "effective_shares",
    "environment_functions",
    "environment_reward",
    "episode_reward",
    "episode_status",
    "foreign_reward",
    "group_reward",
    "is_function",
    "is_scorable",
    "is_success",
    "loss_weights",
    "mixture_reward",
    "routed",
    "row_factors",
    "several_functions",
    "tally",
    "weights_notice",
]
