"""Decides what of a mixture lives in one process: its connections and sessions, the limits on them, and their end.

Flow: `MultiEnvSpec.live` → the trainers' questions about sessions → `EnvironmentClient`, `ForeignEnvironment`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, TypeVar

from multienv.errors import ServerError, SessionLimitError, SpecError
from multienv.foreign import ForeignEnvironment
from multienv.router import Presentation, Route, task_key
from multienv.sessions import EnvironmentClient, Ledger, all_or_first_error, session_loop, shut_down
from multienv.specs import EnvSpec, ForeignSpec
from multienv.types import ToolListing

_CLOSE_PATIENCE_S: Final = 30.0
T = TypeVar("T")


class LiveMixture:
    """The part of a mixture that does not travel to another process.

    Args:
        specs: The declarations by name.
        max_sessions: Most sessions of all environments open at once; None for no limit.
        max_concurrent_starts: Most sessions of all environments being opened at once; None for no limit.

    Attributes:
        ledger: All connections and open sessions.
        clients: The ORS environments by name.
        foreign: The environments that know nothing of ORS, by name.
        num_generations: Rollouts in a group, where a trainer of this library says so; None else.
        max_tool_calls: Horizons of the curriculum's stage by environment, instead of `limits.max_tool_calls`.
    """

    def __init__(
        self,
        specs: Mapping[str, EnvSpec | ForeignSpec],
        *,
        max_sessions: int | None = None,
        max_concurrent_starts: int | None = None,
    ) -> None:
        self.num_generations: int | None = None
        self.max_tool_calls: dict[str, int] = {}
        self.ledger = Ledger(max_sessions=max_sessions, max_concurrent_starts=max_concurrent_starts)
        self.clients = {
            name: EnvironmentClient(name, spec, self.ledger)
            for name, spec in specs.items()
            if isinstance(spec, EnvSpec)
        }
        self.foreign = {
            name: ForeignEnvironment(name, spec) for name, spec in specs.items() if isinstance(spec, ForeignSpec)
        }

    def everywhere(
        self, fetch: Callable[[EnvironmentClient], Coroutine[Any, Any, T]], among: Collection[str] | None = None
    ) -> dict[str, T]:
        """Fetch one thing from all ORS environments at once; the first error is raised as soon as it is known.

        Args:
            fetch: Fetches it from one.
            among: The environments that are asked; None for all.
        """
        asked = {name: client for name, client in self.clients.items() if among is None or name in among}
        for client in asked.values():
            client.prepare()
        if not asked:
            return {}
        fetching = {name: fetch(client) for name, client in asked.items()}
        return session_loop().run(all_or_first_error(fetching))

    def where_it_can_be_had(
        self, fetch: Callable[[EnvironmentClient], Coroutine[Any, Any, T]]
    ) -> dict[str, T | ServerError]:
        """Fetch one thing from all ORS environments at once; a server's failure stands for what it did not send."""

        async def attempt(client: EnvironmentClient) -> T | ServerError:
            try:
                return await fetch(client)
            except ServerError as error:
                return error

        return self.everywhere(attempt)

    def route(self, name: str, listing: ToolListing, presentation: Presentation) -> Route:
        """Return what the router knows of an ORS environment; see `MultiEnvSpec.route`."""
        client = self.clients[name]
        spec = client.spec
        if spec.use_group_reward and not listing.supports_score_group:
            raise SpecError(
                f"environment {name!r}: use_group_reward=True, but it does not score groups; leave the option out, or "
                "have the environment implement score_group",
                environment=name,
            )
        return Route(
            name,
            spec.first_choice.split,
            listing,
            client.open,
            spec.limits,
            presentation,
            scores_groups=spec.use_group_reward,
            horizon=lambda: self.max_tool_calls.get(name, spec.limits.max_tool_calls),
        )

    def take_messages(self, *, is_on: bool) -> None:
        """Fetch prompts as conversations from now on, where environments have them; or as one message."""
        for client in self.clients.values():
            client.takes_messages = is_on

    def share_among(self, num_ranks: int) -> None:
        """Keep one process's share of all limits on counts and rates; before the first session.

        Args:
            num_ranks: How many processes train together.
        """
        self.ledger.share_among(num_ranks)
        for client in self.clients.values():
            client.share_among(num_ranks)

    def check_sessions(self, needed: Mapping[str, int]) -> None:
        """Check that a batch's sessions can all be open at once, before any is opened.

        Args:
            needed: Sessions needed at once in this process, by environment; a foreign environment needs none.

        Raises:
            SessionLimitError: They cannot; it names the need, the limit and what to change.
        """
        if error := self._shortage(needed):
            raise error

    def has_room_for(self, needed: Mapping[str, int]) -> bool:
        """Tell whether so many sessions may be open at once in this process, by environment."""
        return self._shortage(needed) is None

    def _shortage(self, needed: Mapping[str, int]) -> SessionLimitError | None:
        limits = {name: client.opener.max_sessions for name, client in self.clients.items()}
        return shortage(needed, limits, self.ledger.max_sessions)

    def open_ahead(self, environment: str, row: Mapping[str, Any]) -> None:
        """Start opening a session that the next `reset` with this row will get; a foreign environment has none.

        Raises:
            RoutingError: The row has no task of this environment.
        """
        if (client := self.clients.get(environment)) is not None:
            client.open_ahead(task_key(row, environment, client.spec.first_choice.split))

    def drop_ahead(self) -> None:
        """Close the sessions that were opened ahead and that nobody asked for."""
        for client in self.clients.values():
            client.drop_ahead()

    def check_open(self) -> None:
        """Check that nothing was closed.

        Raises:
            OrderError: It was; a closed mixture opens no new session.
        """
        for client in self.clients.values():
            client.check_open()
        for foreign in self.foreign.values():
            foreign.check_open()

    def close(self) -> None:
        """Close every session, connection and foreign instance; nothing new is opened after that."""
        for client in self.clients.values():
            client.close()
        try:
            for foreign in self.foreign.values():
                foreign.close(_CLOSE_PATIENCE_S)
        finally:
            shut_down(self.ledger, _CLOSE_PATIENCE_S)


def shortage(
    needed: Mapping[str, int], limits: Mapping[str, int | None], max_sessions: int | None
) -> SessionLimitError | None:
    """Return the error that says which limit of one process is too low for the sessions of a batch; None for none.

    Args:
        needed: Sessions needed at once, by environment; one without a limit of its own has no sessions.
        limits: The process's share of each ORS environment's limit; None for no limit.
        max_sessions: Its share of the mixture's limit; None for no limit.

    Example:
        >>> str(shortage({"seta": 8}, {"seta": 4}, None)).split(",")[0]
        "a batch needs 8 sessions of environment 'seta' at once in this process"
    """
    needed = {name: need for name, need in needed.items() if name in limits}
    each = [(f"environment {name!r}", need, limits[name]) for name, need in needed.items()]
    each.append(("the whole mixture", sum(needed.values()), max_sessions))
    for what, need, limit in each:
        if limit is not None and need > limit:
            return SessionLimitError(
                f"a batch needs {need} sessions of {what} at once in this process, and its share of max_sessions is "
                f"{limit}; raise the limit, or lower per_device_train_batch_size or steps_per_generation, in an "
                "evaluation per_device_eval_batch_size"
            )
    return None
