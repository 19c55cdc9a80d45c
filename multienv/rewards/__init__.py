"""HOW an episode becomes a number.

Flow: TRL calls the functions made here with a batch; each row's number comes from its own environment.
"""

from multienv.rewards.batches import Batches
from multienv.rewards.foreign import ForeignRows, foreign_reward
from multienv.rewards.functions import Columns, LogColumns, callable_name, is_function, routed
from multienv.rewards.mixture import check_distinct, environment_functions, several_functions
from multienv.rewards.outcome import (
    environment_reward,
    episode_reward,
    episode_status,
    is_success,
    mixture_reward,
)
from multienv.rewards.reduce import discounted
from multienv.rewards.weights import weights_notice

__all__ = [
    "Batches",
    "Columns",
    "ForeignRows",
    "LogColumns",
    "callable_name",
    "check_distinct",
    "discounted",
    "environment_functions",
    "environment_reward",
    "episode_reward",
    "episode_status",
    "foreign_reward",
    "is_function",
    "is_success",
    "mixture_reward",
    "routed",
    "several_functions",
    "weights_notice",
]
