"""WHERE environments live: the only room that knows the ORS SDK.

Flow: `dataset` and `router` → `EnvironmentClient` → a `Source` (a server, or a class in this process).
"""

from multienv.sessions.client import EnvironmentClient, SessionClient
from multienv.sessions.ledger import Ledger
from multienv.sessions.loop import session_loop

__all__ = ["EnvironmentClient", "Ledger", "SessionClient", "session_loop"]
