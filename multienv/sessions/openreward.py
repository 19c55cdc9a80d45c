"""Decides how an environment on an ORS server is reached and chosen, with which key, and how its sessions are opened.

Flow: `connect` → `HttpSource` → `HttpSession` and `HttpCatalogue` → the server.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager

import aiohttp
import openreward
from openreward.api.environments.client import AsyncEnvironment, matrix_sid_provider
from openreward.api.sandboxes.secrets import WELL_KNOWN_SECRETS

from multienv.errors import AuthenticationError, ServerError, UnknownEnvironmentError, nearest
from multienv.sessions.blocks import parse_listing
from multienv.sessions.faults import translated
from multienv.sessions.http_catalogue import HttpCatalogue
from multienv.sessions.http_client import make_client
from multienv.sessions.http_session import HttpSession, SDKSession
from multienv.sessions.keys import api_key_for, is_same_site, secret_values, session_secrets
from multienv.sessions.probe import probe
from multienv.sessions.toolsets import toolset_class
from multienv.specs import EnvSpec, TargetKind
from multienv.types import ToolListing

logger = logging.getLogger(__name__)


class HttpSource:
    """One environment on one server. Coroutines run on the session loop.

    Args:
        name: Name of the environment in the mixture.
        spec: Its declaration; the target is a URL or a catalogue name.
    """

    def __init__(self, name: str, spec: EnvSpec) -> None:
        self._name = name
        self._spec = spec
        self._url = ""
        self._key: str | None = None
        self._variant: str | None = None
        self._client: aiohttp.ClientSession | None = None
        self._sdk: AsyncEnvironment | None = None

    @property
    def environment(self) -> str:
        """The environment on its server, folded; empty for the server's default."""
        return self._variant or ""

    async def connect(self) -> None:
        """Reach the server, choose the environment on it, and build the client.

        Raises:
            ServerUnreachableError: Nobody answers.
            AuthenticationError: The key is missing or refused.
            UnknownEnvironmentError: The server does not hold the declared `env_name`.
            ProtocolError: The server does not speak ORS.
        """
        toolset_class(self._name, self._spec.toolset)
        target = str(self._spec.target)
        if self._spec.kind is TargetKind.CATALOGUE:
            self._url = openreward.AsyncOpenReward(api_key="unused").session_base_url
            self._key = api_key_for(self._name, self._spec, self._url)
            self._variant = self._spec.served_name or None
            namespace, _, deployment = target.partition("/")
        else:
            self._url = target
            self._key = api_key_for(self._name, self._spec, self._url)
            patience_s = self._spec.limits.connect_timeout_s
            secrets = secret_values(self._spec, self._key)
            listed = await probe(
                self._url, environment=self._name, api_key=self._key, patience_s=patience_s, secrets=secrets
            )
            self._variant = self._choose(listed)
            namespace, deployment = None, self._spec.env_name or self._variant or "env"
        self._client = make_client(self._url)
        self._sdk = AsyncEnvironment(namespace, deployment, self._variant, self._client, api_key=self._key)

    def _choose(self, listed: Sequence[str] | None) -> str | None:
        """Choose among a server's environments; its first one is the default, as for the server itself."""
        wanted = self._spec.variant or self._spec.env_name
        if listed is None:
            return wanted and wanted.casefold()
        if wanted is None:
            if len(listed) > 1:
                logger.warning(
                    "environment %r: %s holds %s; its first one is used, set env_name= to choose",
                    self._name,
                    self._url,
                    ", ".join(listed),
                )
            return listed[0].lower()
        if wanted.casefold() not in (name.casefold() for name in listed):
            raise UnknownEnvironmentError(
                f"environment {self._name!r}: {self._url} holds no environment {wanted!r}{nearest(wanted, listed)}; "
                f"known: {', '.join(listed)}; set env_name=",
                environment=self._name,
            )
        return wanted.lower()

    @asynccontextmanager
    async def catalogue(self) -> AsyncIterator[HttpCatalogue]:
        """Give access to splits and tasks under one short-lived session id.

        Source:
            `POST /create_session`, `POST /delete_session`; the platform routes on the id.
        """
        sdk = self._connected()
        async with AsyncExitStack() as stack:
            with self._translated("reading the catalogue"):
                provider = matrix_sid_provider(sdk.client, sdk.deployment_name, self._key)
                sid = await stack.enter_async_context(provider)
            yield HttpCatalogue(sdk, sid, self._translated)

    async def list_tools(self) -> ToolListing:
        """Return the tools all tasks share.

        Source:
            `GET /{environment}/tools`.
        """
        sdk = self._connected()
        with self._translated("listing the tools"):
            async with matrix_sid_provider(sdk.client, sdk.deployment_name, self._key) as sid:
                listed = await HttpCatalogue(sdk, sid, self._translated).request("GET", "/tools")
                return parse_listing(listed, self._name)

    async def open(self, split: str, index: int) -> HttpSession:
        """Open a session for one task; what a failed opening left on the server is deleted.

        Source:
            `POST /create_session`, then `POST /create {split, index}`.
        """
        sdk = self._connected()
        with self._translated(f"opening a session for task {index} of split {split!r}"):
            secrets = session_secrets(self._spec, self._key, self._url, WELL_KNOWN_SECRETS)
            # The SDK adds a key it is given to the secrets; only the platform's own environments may have it there.
            in_secrets = self._key if self._spec.kind is TargetKind.CATALOGUE else None
            overrides = {key: value.get_secret_value() for key, value in (self._spec.env_overrides or {}).items()}
            session = SDKSession(
                sdk,
                secrets=secrets,
                api_key=in_secrets,
                split=split,
                index=index,
                toolset_name=self._spec.toolset,
                env_overrides=overrides or None,
            )
            session.api_key = self._key
            try:
                await session.__aenter__()
            except BaseException:
                await session.__aexit__()
                raise
            return HttpSession(self._name, session, self._translated)

    async def list_required_secrets(self) -> tuple[str, ...]:
        """Return the names of the secrets a session needs; none for a server that is reached by its URL.

        Raises:
            AuthenticationError: The platform's API is on a host that the key does not belong to.
            ServerError: It cannot be reached, or answers wrongly.

        Source:
            `GET /v1/environments/{owner}/{name}/required-secrets` of the platform's API.
        """
        sdk = self._connected()
        if self._spec.kind is not TargetKind.CATALOGUE:
            return ()
        url = str(openreward.AsyncOpenReward(api_key="unused").base_url)
        if not is_same_site(self._url, url):
            raise AuthenticationError(
                f"environment {self._name!r}: the key for {self._url} is not sent to {url}, which would say what "
                "secrets it needs; for a platform elsewhere set OPENREWARD_URL, which leads to both of its hosts",
                environment=self._name,
            )
        with translated(self._name, url, "asking which secrets it needs", secret_values(self._spec, self._key)):
            async with make_client(url) as client:
                asked = AsyncEnvironment(
                    sdk.namespace, sdk.name, sdk.variant, client, api_key=self._key, api_client=client
                )
                return tuple(str(name) for name in await asked.list_required_secrets())

    async def aclose(self) -> None:
        """Close the HTTP client."""
        if self._client is not None:
            await self._client.close()

    def _translated(self, doing: str) -> AbstractContextManager[None]:
        return translated(self._name, self._url, doing, secret_values(self._spec, self._key))

    def _connected(self) -> AsyncEnvironment:
        if self._sdk is None:
            raise ServerError(f"environment {self._name!r} is used before connect()", environment=self._name)
        return self._sdk
