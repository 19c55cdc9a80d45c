"""WHAT to train on: frozen declarations, checked before any network.

Flow: user → here → `meta`.
"""

from multienv.specs.environment import EnvSpec, RewardFunction, Secret
from multienv.specs.foreign import ForeignSpec
from multienv.specs.limits import Limits
from multienv.specs.mixture import TaskSet, check_disjoint, declare
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
    "TaskSet",
    "check_disjoint",
    "declare",
    "server_identity",
]
