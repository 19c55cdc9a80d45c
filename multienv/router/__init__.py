"""WHICH environment a rollout belongs to, and driving it.

Flow: TRL → `make_factory` / `make_meta_factory` → adapters → sessions; the record goes to `rewards`.
"""

from multienv.router.adapter import EnvironmentAdapter
from multienv.router.dispatch import MetaEnvironment, make_meta_factory
from multienv.router.factory import make_factory
from multienv.router.foreign import ForeignAdapter, instance_of, make_foreign_factory, owns_reward
from multienv.router.grading import grade_last_messages
from multienv.router.groups import score_groups
from multienv.router.instances import ForeignInstances
from multienv.router.presentation import Presentation, check_policy
from multienv.router.routes import Route, task_key
from multienv.router.spelling import reserved_texts

__all__ = [
    "EnvironmentAdapter",
    "ForeignAdapter",
    "ForeignInstances",
    "MetaEnvironment",
    "Presentation",
    "Route",
    "check_policy",
    "grade_last_messages",
    "instance_of",
    "make_factory",
    "make_foreign_factory",
    "make_meta_factory",
    "owns_reward",
    "reserved_texts",
    "score_groups",
    "task_key",
]
