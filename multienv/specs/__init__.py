"""WHAT to train on: frozen declarations, checked before any network.

Flow: user → here → `meta`.
"""

from multienv.specs.choice import TaskChoice, check_excluded_indices, is_excluded, left_over
from multienv.specs.environment import EnvSpec, RewardFunction, Secret
from multienv.specs.foreign import ForeignSpec
from multienv.specs.limits import Limits
from multienv.specs.mixture import TaskSet, check_disjoint, check_held_out, declare
from multienv.specs.reward import Reduction, RewardSpec
from multienv.specs.target import TargetKind, server_identity

__all__ = [
    "EnvSpec",
    "ForeignSpec",
    "Limits",
    "Reduction",
    "RewardFunction",
    "RewardSpec",
    "Secret",
    "TargetKind",
    "TaskChoice",
    "TaskSet",
    "check_disjoint",
    "check_excluded_indices",
    "check_held_out",
    "declare",
    "is_excluded",
    "left_over",
    "server_identity",
]
