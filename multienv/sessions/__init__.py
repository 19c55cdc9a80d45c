"""WHERE environments live: the only room that knows the ORS SDK.

Flow: `dataset` and `router` → `EnvironmentClient` → a `Source` (a server, or a class in this process).
"""

from multienv.sessions.candidates import candidate
from multienv.sessions.client import EnvironmentClient
from multienv.sessions.ledger import Ledger, LiveSession, shut_down
from multienv.sessions.loop import all_or_first_error, session_loop, within
from multienv.sessions.tasks import Outline

__all__ = [
    "EnvironmentClient",
    "Ledger",
    "LiveSession",
    "Outline",
    "all_or_first_error",
    "candidate",
    "session_loop",
    "shut_down",
    "within",
]
