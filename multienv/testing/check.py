"""Decides whether an environment keeps the Open Reward Standard, by using it as a training run does.

Flow: the author of an environment → `check_environment` → the library's own sources and sessions → `Report`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from multienv.errors import MultiEnvError, ServerError, SpecError
from multienv.sessions import Ledger, LiveSession, session_loop, shut_down
from multienv.sessions.client import make_source
from multienv.sessions.protocol import Catalogue, Source
from multienv.specs import EnvSpec, Limits, TargetKind
from multienv.testing.report import Check, Finding, Report
from multienv.types import ToolRefused, ToolSpec

_NAME: Final = "checked"
_LIMITS: Final = Limits(
    connect_timeout_s=10.0, open_timeout_s=60.0, prompt_timeout_s=60.0, tool_timeout_s=60.0, close_timeout_s=15.0
)
_NUM_COMPARED: Final = 4
_NO_SUCH_TOOL: Final = "no_such_tool"


def check_environment(
    target: str | type,
    *,
    split: str | None = None,
    task_index: int = 0,
    finishing_call: tuple[str, Mapping[str, Any]] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Report:
    """Check that an environment does what a training run needs of it. Opens two sessions, and closes them.

    Args:
        target: URL of an ORS server, catalogue name, or an ORS `Environment` class.
        split: The split to check; None for `train`, or the first one where there is none of that name.
        task_index: The task whose sessions are opened.
        finishing_call: Name and arguments of a call that finishes that task; without it, what follows the end is not
            checked. No other tool is run.
        limits: How long each phase may take; None for a minute each.
        **options: Other options of `EnvSpec`: `env_name`, `api_key`, `secrets`.

    Returns:
        One finding per `Check`. What the environment breaks is reported, never raised.

    Raises:
        SpecError: The arguments cannot be right.

    Example:
        >>> from multienv.testing import FaultServer, check_environment
        >>> with FaultServer() as server:
        ...     check_environment(server.url, finishing_call=("win", {})).ok
        True
    """
    if finishing_call is not None and (isinstance(finishing_call, str) or len(finishing_call) != 2):  # noqa: PLR2004 - a pair
        raise SpecError(
            f"finishing_call={finishing_call!r}; accepted: a tool's name and its arguments, ('submit', {{}})"
        )
    spec = EnvSpec(target, split=split or "train", limits=limits or _LIMITS, **options)
    ledger = Ledger()
    inspection = _Inspection(spec, ledger, task_index, finishing_call, is_split_given=split is not None)
    try:
        findings = session_loop().run(inspection.run())
    finally:
        shut_down(ledger, spec.limits.close_timeout_s)
    return Report(target if isinstance(target, str) else target.__name__, tuple(findings))


class _Broken(Exception):  # noqa: N818 - no error: what a check found
    """The environment does not pass."""


class _NotChecked(Exception):  # noqa: N818 - no error: why there is nothing to say
    """There is nothing to say."""


class _Inspection:
    """One run through all checks. Its coroutines run on the session loop."""

    def __init__(
        self,
        spec: EnvSpec,
        ledger: Ledger,
        task_index: int,
        finishing_call: tuple[str, Mapping[str, Any]] | None,
        *,
        is_split_given: bool,
    ) -> None:
        self._spec = spec
        self._ledger = ledger
        self._task_index = task_index
        self._finishing_call = finishing_call
        self._is_split_given = is_split_given
        self._split = spec.split
        self._total = 0
        self._tools: tuple[ToolSpec, ...] = ()
        self._source: Source | None = None
        self._first: LiveSession | None = None
        self._second: LiveSession | None = None

    async def run(self) -> list[Finding]:
        """Run every check, and report what each found."""
        checks: dict[Check, Callable[[], Awaitable[str]]] = {
            Check.CONNECTS: self._connects,
            Check.SPLITS: lambda: self._in_catalogue(self._splits),
            Check.NUM_TASKS: lambda: self._in_catalogue(self._num_tasks),
            Check.TASKS: lambda: self._in_catalogue(self._tasks),
            Check.TOOLS: self._tools_are_described,
            Check.OPENS: self._opens,
            Check.PROMPT: self._prompt,
            Check.UNKNOWN_TOOL: self._unknown_tool,
            Check.BAD_ARGUMENTS: self._bad_arguments,
            Check.INDEPENDENT: self._independent,
            Check.CLOSES: self._closes,
            Check.FINISHES: self._finishes,
        }
        return [await self._finding(check, look) for check, look in checks.items()]

    async def _finding(self, check: Check, look: Callable[[], Awaitable[str]]) -> Finding:
        try:
            return Finding(check, ok=True, detail=await look())
        except _NotChecked as reason:
            return Finding(check, ok=None, detail=f"not checked: {reason}")
        except (_Broken, MultiEnvError) as error:
            if isinstance(error, ServerError):
                self._first = None  # it closes by itself; the next check opens another one
            return Finding(check, ok=False, detail=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the environment made it happen
            return Finding(check, ok=False, detail=f"{type(error).__name__}: {error}")

    async def _connects(self) -> str:
        source = make_source(_NAME, self._spec)
        await self._ledger.connect(source)
        self._source = source
        return source.environment

    def _connected(self) -> Source:
        if self._source is None:
            raise _NotChecked("it cannot be reached")
        return self._source

    async def _in_catalogue(self, look: Callable[[Catalogue], Awaitable[str]]) -> str:
        async with asyncio.timeout(self._spec.limits.prompt_timeout_s), self._connected().catalogue() as catalogue:
            return await look(catalogue)

    async def _splits(self, catalogue: Catalogue) -> str:
        splits = list(await catalogue.list_splits())
        if not splits or not all(splits) or len(set(splits)) < len(splits):
            raise _Broken(f"splits are {splits}; expected at least one, under different names")
        if self._split not in splits:
            if self._is_split_given:
                raise _Broken(f"splits are {splits}; {self._split!r} was asked for")
            self._split = splits[0]
        return ", ".join(splits)

    async def _num_tasks(self, catalogue: Catalogue) -> str:
        total = await catalogue.num_tasks(self._split)
        if total < 1:
            raise _Broken(f"split {self._split!r} has {total} tasks")
        self._total = total
        return f"{total} in split {self._split!r}"

    async def _tasks(self, catalogue: Catalogue) -> str:
        num_compared = min(self._total, _NUM_COMPARED)
        if not num_compared:
            raise _NotChecked("there are no tasks")
        by_range = await catalogue.task_range(self._split, 0, num_compared)
        if len(by_range) != num_compared:
            raise _Broken(f"tasks 0 to {num_compared - 1} were asked for, {len(by_range)} came")
        for index, task in enumerate(by_range):
            single = await self._single_task(catalogue, index)
            if single != task:
                raise _Broken(f"task {index} is {single!r} on its own, and {task!r} in a range")
        return f"{num_compared} compared"

    async def _single_task(self, catalogue: Any, index: int) -> Any:
        """Return the task that a session for this index would get."""
        if self._spec.kind is not TargetKind.IN_PROCESS:
            return (await catalogue.request("POST", "/task", {"split": self._split, "index": index}))["task"]
        from openreward.environments.utils import run_user_callable  # noqa: PLC0415 - imports the SDK

        from multienv.sessions.inprocess import through_json  # noqa: PLC0415 - see above

        source: Any = self._connected()
        get_task = getattr(self._spec.target, "get_task")  # noqa: B009 - mypy knows the target as any class
        return through_json(await source.run(run_user_callable(get_task, self._split, index), f"reading task {index}"))

    async def _tools_are_described(self) -> str:
        async with asyncio.timeout(self._spec.limits.prompt_timeout_s):
            listing = await self._connected().list_tools()
        _check_tools(listing.tools)
        self._tools = listing.tools
        return ", ".join(tool.name for tool in listing.tools) or "none that all tasks share"

    async def _opens(self) -> str:
        self._first = await self._open()
        listing = await self._first.list_tools()
        _check_tools(listing.tools)
        if not listing.tools and listing.terminal_tool is None:
            raise _Broken(f"task {self._task_index} has no tools and no terminal tool: nothing can be won")
        self._tools = listing.tools
        return f"task {self._task_index}, session {self._first.id}"

    async def _open(self) -> LiveSession:
        source, spec = self._connected(), self._spec
        if not self._total:
            raise _NotChecked("there are no tasks")
        return await self._ledger.open(_NAME, source, spec.limits, split=self._split, index=self._task_index)

    async def _session(self) -> LiveSession:
        """Return the first session, or another one where an earlier check has broken it."""
        if self._first is None:
            try:
                self._first = await self._open()
            except MultiEnvError:
                raise _NotChecked("no session opens") from None
        return self._first

    async def _prompt(self) -> str:
        live = await self._session()
        await live.fetch_prompt()
        parts = [part for message in live.prompt for part in message.parts]
        if not any(part.strip() if isinstance(part, str) else part.data for part in parts):
            raise _Broken("the prompt holds nothing")
        return f"{sum(len(part) for part in parts if isinstance(part, str))} characters"

    async def _unknown_tool(self) -> str:
        return await self._is_refused(_NO_SUCH_TOOL, {})

    async def _bad_arguments(self) -> str:
        await self._session()
        tool = next((tool for tool in self._tools if tool.input_schema.get("required")), None)
        if tool is None:
            raise _NotChecked("no tool has an argument that must be given")
        return await self._is_refused(tool.name, {})

    async def _is_refused(self, tool: str, arguments: dict[str, Any]) -> str:
        live = await self._session()
        try:
            output = await live.call(tool, arguments)
        except ToolRefused as refusal:
            await live.fetch_prompt()
            return f"{refusal.reason}: {refusal.detail}"
        except ServerError as error:
            self._first = None  # see _finding
            raise _Broken(f"calling {tool!r} with {arguments} ended the session: {error}") from error
        raise _Broken(f"calling {tool!r} with {arguments} gave {output.text!r}; expected a refusal")

    async def _independent(self) -> str:
        first = await self._session()
        second = await self._open()
        if first.id == second.id:
            raise _Broken(f"both sessions have the id {first.id!r}")
        await second.fetch_prompt()
        await first.close()
        try:
            await second.fetch_prompt()
        except ServerError as error:
            raise _Broken(f"closing one session ended the other one: {error}") from error
        self._second = second
        return ""

    async def _closes(self) -> str:
        live = await self._session()
        await live.close()
        try:
            await live.fetch_prompt()
        except ServerError:
            return ""
        raise _Broken(f"session {live.id} still answers")

    async def _finishes(self) -> str:
        if self._second is None:
            raise _NotChecked("there is no second session")
        if self._finishing_call is None:
            raise _NotChecked("give finishing_call=(tool, arguments)")
        tool, arguments = self._finishing_call
        try:
            output = await self._second.call(tool, dict(arguments))
        except ToolRefused as refusal:
            raise _Broken(f"{tool!r} is refused: {refusal.reason}: {refusal.detail}") from refusal
        if not output.finished:
            raise _Broken(f"{tool!r} does not finish the episode: it gave {output.text!r}")
        try:
            await self._second.call(tool, dict(arguments))
        except ToolRefused as refusal:
            return f"reward {output.reward}, then {refusal.reason}"
        raise _Broken(f"{tool!r} finished the episode and was run again")


def _check_tools(tools: tuple[ToolSpec, ...]) -> None:
    names = [tool.name for tool in tools]
    if not all(names) or len(set(names)) < len(names):
        raise _Broken(f"the tools are {names}; expected different names")
    for tool in tools:
        schema = tool.input_schema
        if schema and not (schema.get("type") == "object" and isinstance(schema.get("properties", {}), Mapping)):
            raise _Broken(f"the schema of tool {tool.name!r} is {schema!r}; expected a JSON Schema of an object")
