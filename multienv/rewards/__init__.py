"""HOW an episode becomes a number.

Flow: TRL calls the functions made here with a batch; each row's number comes from its own environment.
"""

from multienv.rewards.batches import Batches
from multienv.rewards.foreign import ForeignRows, foreign_reward
from multienv.rewards.functions import Columns, LogColumns, callable_name, is_function, routed
from multienv.rewards.mixture import check_distinct, environment_functions, several_functions
from multienv.rewards.outcome import environment_reward, mixture_reward
from multienv.rewards.weights import weights_notice

__all__ = [
    "Batches",
    "Columns",
    "ForeignRows",
    "LogColumns",
    "callable_name",
    "check_distinct",
    "environment_functions",
    "environment_reward",
    "foreign_reward",
    "is_function",
    "mixture_reward",
    "routed",
    "several_functions",
    "weights_notice",
]
