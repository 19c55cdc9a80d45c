"""Decides how an environment on an ORS server is driven: the SDK's client, with its known defects kept out.

The SDK opens, keeps alive, prompts and closes; a tool call is posted by `calls.post_call`, because the SDK's own may
run a tool twice and loses white space.

Flow: `connect` → `HttpSource` → `HttpSession` → the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp
import openreward
from openreward.api._session.http import request_retryable
from openreward.api.environments.client import AsyncEnvironment, AsyncSession, matrix_sid_provider
from openreward.api.sandboxes.secrets import WELL_KNOWN_SECRETS

from multienv.errors import AuthenticationError, ServerError, UnknownEnvironmentError, nearest
from multienv.sessions.blocks import parse_listing, parse_messages, parse_output, parse_prompt
from multienv.sessions.calls import post_call
from multienv.sessions.candidates import parse_scores
from multienv.sessions.faults import translated
from multienv.sessions.http_client import make_client
from multienv.sessions.keys import api_key_for, is_same_site, secret_values, session_secrets
from multienv.sessions.probe import probe
from multienv.sessions.toolsets import toolset_class
from multienv.specs import EnvSpec, TargetKind
from multienv.types import JSONObject, Prompt, ToolListing, ToolOutput

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_GONE: Final = frozenset({404, 410})
_CANNOT_LIST: Final = frozenset({400, 404, 405})


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
    async def catalogue(self) -> AsyncIterator[_HttpCatalogue]:
        """Give access to splits and tasks under one short-lived session id.

        Source:
            `POST /create_session`, `POST /delete_session`; the platform routes on the id.
        """
        sdk = self._connected()
        async with AsyncExitStack() as stack:
            with self._translated("reading the catalogue"):
                provider = matrix_sid_provider(sdk.client, sdk.deployment_name, self._key)
                sid = await stack.enter_async_context(provider)
            yield _HttpCatalogue(sdk, sid, self._translated)

    async def list_tools(self) -> ToolListing:
        """Return the tools all tasks share.

        Source:
            `GET /{environment}/tools`.
        """
        sdk = self._connected()
        with self._translated("listing the tools"):
            async with matrix_sid_provider(sdk.client, sdk.deployment_name, self._key) as sid:
                listed = await _HttpCatalogue(sdk, sid, self._translated).request("GET", "/tools")
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
            session = _Session(
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


class _Session(AsyncSession):  # type: ignore[misc]  # the SDK is untyped here
    """The SDK's session, which deletes in silence, made to remember a deletion that failed."""

    delete_error: Exception | None = None

    async def _pre_delete(self) -> None:
        self.delete_error = None
        try:
            await super()._pre_delete()
        except Exception as error:
            self.delete_error = error
            raise


class HttpSession:
    """One session on a server."""

    def __init__(self, name: str, sdk: _Session, translated: Callable[[str], AbstractContextManager[None]]) -> None:
        self._name = name
        self._sdk = sdk
        self._translated = translated

    @property
    def id(self) -> str:
        """The session id, as the server logs it."""
        return str(self._sdk.sid)

    async def prompt(self) -> Prompt:
        """Return the prompt as one user message.

        Source:
            `GET /{environment}/prompt`.
        """
        with self._translated("fetching the prompt"):
            return parse_prompt(await self._get("/prompt"))

    async def messages(self) -> Prompt:
        """Return the prompt as a conversation.

        Source:
            `GET /{environment}/messages`.
        """
        with self._translated("fetching the prompt"):
            return parse_messages(await self._get("/messages"))

    async def _get(self, path: str) -> Any:
        """Ask for something of the session, until it is known to be dead."""
        sdk = self._sdk
        return await sdk._run_or_die(  # noqa: SLF001 - a contract test pins it
            request_retryable(
                sdk.client,
                "GET",
                sdk._env_path(path),  # noqa: SLF001 - see above
                expect_json=True,
                sid=sdk.sid,
                deployment=sdk.deployment,
                token=sdk.api_key,
            )
        )

    async def list_tools(self) -> ToolListing:
        """Return the tools of this session's task.

        Source:
            `GET /{environment}/task_tools`, or `/tools` where the server does not have it.
        """
        with self._translated("listing the task's tools"):
            try:
                return parse_listing(await self._get("/task_tools"), self._name)
            except aiohttp.ClientResponseError as error:
                if error.status != 404:  # noqa: PLR2004 - not found
                    raise
            return parse_listing(await self._get("/tools"), self._name)

    async def call(self, tool: str, arguments: JSONObject) -> ToolOutput:
        """Call a tool, at most once.

        Raises:
            ToolRefused: The policy's own mistake; the session lives.

        Source:
            `POST /{environment}/call`.
        """
        with self._translated(f"calling tool {tool!r}"):
            return parse_output(await self._post("/call", {"name": tool, "input": arguments}))

    async def score_group(self, candidates: Sequence[JSONObject]) -> list[float]:
        """Return one score per candidate, in order.

        Source:
            `POST /{environment}/score_group`.
        """
        with self._translated("scoring a group"):
            return parse_scores(await self._post("/score_group", {"candidates": list(candidates)}), len(candidates))

    async def _post(self, path: str, body: JSONObject) -> JSONObject:
        """Have the environment do something that may take long, at most once."""
        sdk = self._sdk
        headers = {"X-Session-ID": self.id, "X-Deployment": sdk.env.deployment_name}
        if sdk.api_key:
            headers["X-API-Key"] = sdk.api_key
        return await post_call(sdk.client, sdk._env_path(path), headers, body)  # noqa: SLF001 - a contract test pins it

    async def close(self) -> None:
        """Tear the session down and stop its pings.

        Raises:
            ServerError: The server did not carry it out; it may be asked again.

        Source:
            `POST /delete`, `POST /delete_session`.
        """
        with self._translated("closing the session"):
            await self._sdk.__aexit__()
            error = self._sdk.delete_error
            if error is not None and getattr(error, "status", None) not in _GONE:
                raise error


class _HttpCatalogue:
    """The stateless routes of one environment, under one session id."""

    def __init__(
        self, sdk: AsyncEnvironment, sid: str, translated: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._sdk = sdk
        self._sid = sid
        self._translated = translated

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        sdk = self._sdk
        return await request_retryable(
            sdk.client,
            method,
            path if sdk.variant is None else f"/{sdk.variant}{path}",
            expect_json=True,
            token=sdk.api_key,
            json=dict(body) if body is not None else None,
            sid=self._sid,
            deployment=sdk.deployment_name,
        )

    async def list_splits(self) -> list[str]:
        """Return the names of the splits."""
        with self._translated("reading the catalogue"):
            answer = await self.request("GET", "/splits")
            return [split["name"] if isinstance(split, dict) else str(split) for split in answer]

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""
        with self._translated("reading the catalogue"):
            return int((await self.request("POST", "/num_tasks", {"split": split}))["num_tasks"])

    async def task_range(self, split: str, start: int, stop: int) -> list[Any]:
        """Return task specs by range, else from the whole list, else one by one, as the server can."""
        with self._translated("reading the catalogue"):
            return await self._task_range(split, start, stop)

    async def _task_range(self, split: str, start: int, stop: int) -> list[Any]:
        body = {"split": split, "start": start, "stop": stop}
        if (answer := await self._try("/task_range", body)) is None:
            if (answer := await self._try("/tasks", {"split": split})) is None:
                return await self._tasks_one_by_one(split, range(start, stop))
            return list(answer["tasks"])[start:stop]
        return list(answer["tasks"])

    async def _tasks_one_by_one(self, split: str, indices: range) -> list[Any]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def read(index: int) -> Any:
            async with gate:
                return (await self.request("POST", "/task", {"split": split, "index": index}))["task"]

        return list(await asyncio.gather(*map(read, indices)))

    async def _try(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            return await self.request("POST", path, body)
        except aiohttp.ClientResponseError as error:
            if error.status in _CANNOT_LIST:
                return None
            raise
