"""HOW an episode becomes a number.

Flow: TRL calls the functions made here with a batch; each row's number comes from its own environment.
"""

from multienv.rewards.batches import Batches
from multienv.rewards.foreign import ForeignRows, foreign_reward
from multienv.rewards.functions import Columns, LogColumns, callable_name, is_function, routed
from multienv.rewards.outcome import environment_reward, mixture_reward
from multienv.rewards.weights import weights_notice

__all__ = [
    "Batches",
    "Columns",
    "ForeignRows",
    "LogColumns",
    "callable_name",
    "environment_reward",
    "foreign_reward",
    "is_function",
    "mixture_reward",
    "routed",
    "weights_notice",
]
