from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")
os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("OPENREWARD_LOG_LEVEL", "CRITICAL")
for variable in ("OPENREWARD_API_KEY", "OPENREWARD_URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
    os.environ.pop(variable, None)

import pytest  # noqa: E402 - the variables above are read on import
from hypothesis import HealthCheck, settings  # noqa: E402 - see above

from tests.support.servers import ORSServer  # noqa: E402 - see above

for profile, num_examples in (("default", 50), ("thorough", 500)):  # --hypothesis-profile=thorough
    settings.register_profile(
        profile, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=num_examples
    )
settings.load_profile("default")


@pytest.fixture(scope="session")
def echo_server() -> Iterator[ORSServer]:
    from tests.support.environments import EchoEnvironment

    with ORSServer([EchoEnvironment]) as server:
        yield server


@pytest.fixture(scope="session")
def climb_server() -> Iterator[ORSServer]:
    from tests.support.environments import ClimbEnvironment

    with ORSServer([ClimbEnvironment]) as server:
        yield server


@pytest.fixture(scope="session")
def pair_server() -> Iterator[ORSServer]:
    """One server that holds two environments."""
    from tests.support.environments import OneEnvironment, TwoEnvironment

    with ORSServer([OneEnvironment, TwoEnvironment]) as server:
        yield server
