"""Decides how a person steps an episode: which lines are understood, and what is shown after each.

Flow: `cli.play` → `run_play` → the adapter that training uses → results as the policy would read them.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.rule import Rule

from multienv.commands.screen import print_json
from multienv.commands.tasks import named
from multienv.errors import SessionError, nearest
from multienv.reporting import plain
from multienv.rewards import episode_reward, is_success
from multienv.router.conversations import whole_prompt
from multienv.sessions import session_loop
from multienv.specs import RewardSpec
from multienv.types import Column, ToolCallError

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec
    from multienv.router import EnvironmentAdapter

_HELP: Final = """\
TOOL {"name": "value"}     call a tool with its arguments in JSON
TOOL name=value ...        the same; a value is JSON where it can be, else text
say TEXT                   the policy's last plain message; ends the episode
tools, help TOOL           the tools; the schema of one
quit                       stop here"""


class _MistakeError(Exception):
    """A line that is not understood; nothing was sent."""


def run_play(
    spec: MultiEnvSpec,
    *,
    environment: str | None,
    task: str,
    console: Console,
    lines: Iterable[str] | None = None,
    is_json: bool = False,
) -> int:
    """Step an episode by hand.

    Args:
        spec: The mixture.
        environment: The environment; None where there is one only.
        task: Index of the task, or its task id.
        console: Where it is shown.
        lines: What is typed; None for standard input.
        is_json: Show nothing but the episode, as JSON, at the end.

    Returns:
        0, or 1 where infrastructure ended the episode.

    Raises:
        SpecError: There is no such environment or task.
        SessionError: Its session cannot be opened.
    """
    row = named(spec, environment, task)
    name = row[Column.ENVIRONMENT]
    declared: Any = spec.environments[name]
    factory: Any = spec.environment_factory[name]
    adapter: EnvironmentAdapter = factory()
    console.quiet = is_json
    try:
        content = adapter.reset(**row)
        if not adapter.episode.is_scorable:
            raise SessionError(adapter.episode.reason, environment=name)
        console.print(Rule(escape(str(row[Column.TASK_ID])), align="left"))
        for message in whole_prompt(row, adapter._play.conversation, content):  # noqa: SLF001 - hidden from TRL only
            console.print(f"[bold]{message['role']}[/bold]")
            console.print(str(message["content"]), markup=False, highlight=False, soft_wrap=True)
        console.print(Rule("help shows what can be typed", align="left"), _named_tools(adapter), highlight=False)
        _steps(adapter, declared.reward, console, _typed(adapter) if lines is None else iter(lines))
    finally:
        adapter._close()  # noqa: SLF001 - see above
    return _end(adapter, declared.reward, console, is_json=is_json)


def _steps(adapter: EnvironmentAdapter, rule: RewardSpec, console: Console, lines: Iterator[str]) -> None:
    """Understand line after line until the episode is over, the lines are, or the person stops."""
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        try:
            if not word or word.startswith("#"):
                continue
            if word in ("quit", "exit"):
                return
            if word == "say":
                session_loop().run(adapter._grade(rest.strip()))  # noqa: SLF001 - see `run_play`
                return
            if word in ("help", "?", "tools"):
                _help(adapter, rest.strip() if word != "tools" else "", console)
                continue
            _call(adapter, rule, word, rest.strip(), console)
        except _MistakeError as mistake:
            console.print(str(mistake), style="yellow", markup=False, highlight=False)
        if adapter.finished or not adapter.episode.is_scorable or adapter._is_idle():  # noqa: SLF001 - see `run_play`
            return


def _call(adapter: EnvironmentAdapter, rule: RewardSpec, tool: str, rest: str, console: Console) -> None:
    known = adapter._offered().shown  # noqa: SLF001 - see `run_play`
    if tool not in known:
        raise _MistakeError(
            f"no tool {tool!r}{nearest(tool, known)}; {_named_tools(adapter)}; help shows what can be typed"
        )
    arguments = _arguments(rest)
    num_before = len(adapter.episode.steps)
    try:
        shown = session_loop().run(adapter._call_shown(tool, arguments))  # noqa: SLF001 - see `run_play`
        style = ""
    except ToolCallError as error:
        shown, style = str(error), "yellow"
    console.print(str(shown), style=style, markup=False, highlight=False, soft_wrap=True)
    for step in adapter.episode.steps[num_before:]:
        said = ["refused" if step.refused else f"reward {step.reward}", f"{step.duration_s:.2f} s"]
        said += ["finished"] if step.finished else []
        said.append(f"the episode so far counts {episode_reward(adapter.episode, rule)}")
        console.print(" · ".join(said), style="dim", highlight=False)


def _arguments(rest: str) -> dict[str, Any]:
    """Read a tool's arguments: a JSON object, or `name=value` words."""
    if not rest:
        return {}
    if rest.startswith("{"):
        try:
            read: Any = json.loads(rest)
        except ValueError as error:
            raise _MistakeError(f"the arguments are no JSON: {error}; nothing was sent") from None
        return dict(read)
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise _MistakeError(f"the arguments cannot be read: {error}; nothing was sent") from None
    arguments = {}
    for word in words:
        name, is_pair, value = word.partition("=")
        if not is_pair or not name:
            raise _MistakeError(f"{word!r} is no name=value; nothing was sent")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _help(adapter: EnvironmentAdapter, tool: str, console: Console) -> None:
    shown = adapter._offered().shown  # noqa: SLF001 - see `run_play`
    if not tool:
        console.print(_HELP, markup=False, highlight=False)
        console.print(_named_tools(adapter), markup=False, highlight=False)
    elif tool in shown:
        console.print_json(json.dumps(shown[tool].function["function"]))
    else:
        raise _MistakeError(f"no tool {tool!r}{nearest(tool, shown)}; {_named_tools(adapter)}")


def _named_tools(adapter: EnvironmentAdapter) -> str:
    return f"tools: {', '.join(adapter._offered().shown) or 'none'}"  # noqa: SLF001 - see `run_play`


def _typed(adapter: EnvironmentAdapter) -> Iterator[str]:
    """Yield what is typed; on a terminal with a prompt, a history, and completion of the tools' names."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: PLC0415 - changes how input() reads

    words = [*adapter._offered().shown, "say", "tools", "help", "quit"]  # noqa: SLF001 - see `run_play`

    def complete(text: str, number: int) -> str | None:
        found = [word for word in words if word.startswith(text)]
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def _end(adapter: EnvironmentAdapter, rule: RewardSpec, console: Console, *, is_json: bool) -> int:
    episode = adapter.episode
    reward, success = episode_reward(episode, rule), is_success(episode, rule)
    if is_json:
        print_json({**plain(asdict(episode)), "reward": reward, "is_success": success})
    else:
        console.print(Rule(align="left"))
        why = f": {episode.reason}" if episode.reason else ""
        console.print(f"{episode.status}{why}", markup=False, highlight=False)
        console.print(f"reward {reward}, success {success}, {len(episode.steps)} steps", highlight=False)
    return 0 if episode.is_scorable else 1
