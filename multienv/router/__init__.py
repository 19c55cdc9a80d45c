"""WHICH environment a rollout belongs to, and driving it.

Flow: TRL → `make_factory` / `make_meta_factory` → adapters → sessions; the record goes to `rewards`.
"""

from multienv.router.adapter import EnvironmentAdapter
from multienv.router.dispatch import MetaEnvironment, make_meta_factory
from multienv.router.factory import make_factory
from multienv.router.routes import Route

__all__ = ["EnvironmentAdapter", "MetaEnvironment", "Route", "make_factory", "make_meta_factory"]
