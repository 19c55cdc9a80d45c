"""WHERE environments live: the only room that knows the ORS SDK.

Flow: `dataset` and `router` → `EnvironmentClient` → a `Source` (a server, or a class in this process).
"""

from multienv.sessions.client import EnvironmentClient
from multienv.sessions.ledger import Ledger, LiveSession, shut_down
from multienv.sessions.loop import session_loop

__all__ = ["EnvironmentClient", "Ledger", "LiveSession", "session_loop", "shut_down"]
