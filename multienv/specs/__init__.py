"""WHAT to train on: frozen declarations, checked before any network.

Flow: user → here → `meta`.
"""

from multienv.specs.choice import TaskChoice, all_excluded, check_excluded_indices, is_excluded, left_over
from multienv.specs.curriculum import Adaptive, CurriculumSpec, Schedule, Stage, curriculum_in_file, declare_curriculum
from multienv.specs.environment import EnvSpec, RewardFunction, Secret
from multienv.specs.foreign import ForeignSpec
from multienv.specs.limits import Limits
from multienv.specs.mixture import TaskSet, check_disjoint, check_held_out, declare
from multienv.specs.presets import PRESETS, Preset, preset
from multienv.specs.reward import Reduction, RewardSpec
from multienv.specs.target import TargetKind, server_identity
from multienv.specs.task_rules import TaskRules

__all__ = [
    "PRESETS",
    "Adaptive",
    "CurriculumSpec",
    "EnvSpec",
    "ForeignSpec",
    "Limits",
    "Preset",
    "Reduction",
    "RewardFunction",
    "RewardSpec",
    "Schedule",
    "Secret",
    "Stage",
    "TargetKind",
    "TaskChoice",
    "TaskRules",
    "TaskSet",
    "all_excluded",
    "check_disjoint",
    "check_excluded_indices",
    "check_held_out",
    "curriculum_in_file",
    "declare",
    "declare_curriculum",
    "is_excluded",
    "left_over",
    "preset",
    "server_identity",
]
