"""Decides how an adapter's class is made: one per environment, its tools on it.

Flow: `meta` → `make_factory` → TRL, which calls the factory once per rollout it needs at the same time.
"""

from __future__ import annotations

from multienv.router.adapter import RESERVED_MEMBERS, EnvironmentAdapter
from multienv.router.routes import Route
from multienv.router.tools import bind_tools


def make_factory(route: Route) -> type[EnvironmentAdapter]:
    """Make the factory of one environment: a class, whose call without arguments makes an adapter.

    Args:
        route: The environment.

    Returns:
        A subclass of `EnvironmentAdapter` named after the environment, with one public method per tool.
    """
    tools = bind_tools(route.listing.tools, spelling=route.presentation.spelling, taken=RESERVED_MEMBERS)
    namespace = {tool.name: tool.method for tool in tools}
    return type(
        route.name,
        (EnvironmentAdapter,),
        {
            **namespace,
            "__doc__": f"Adapter of environment {route.name!r}.",
            "_route": route,
            "_method_names": {tool.spec.name: tool.name for tool in tools},
            "environment": route.name,
        },
    )
