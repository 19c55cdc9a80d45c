"""PLANNING: what a run will do, counted before it does it.

Flow: `multienv plan` → `make_plan` → the real curriculum, the survey, an earlier record → `Plan`.
"""

from multienv.commands.planning.dealing import Dealt, deal, largest_need, rollouts_by_rank
from multienv.commands.planning.earlier import Earlier, Played, earlier_run
from multienv.commands.planning.length import Length, length_of
from multienv.commands.planning.opening import batch_opening_s, opening_s
from multienv.commands.planning.plan import MOST_DEALT, make_plan
from multienv.commands.planning.values import BatchPlan, EnvironmentPlan, Plan, Seconds

__all__ = [
    "MOST_DEALT",
    "BatchPlan",
    "Dealt",
    "Earlier",
    "EnvironmentPlan",
    "Length",
    "Plan",
    "Played",
    "Seconds",
    "batch_opening_s",
    "deal",
    "earlier_run",
    "largest_need",
    "length_of",
    "make_plan",
    "opening_s",
    "rollouts_by_rank",
]
