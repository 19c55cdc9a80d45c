"""Decides how a person steps an episode: where lines come from, what is shown after each, and what is left at the end.

Flow: `cli.play` → `run_play` → the adapter that training uses → results as the policy would read them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.rule import Rule

from multienv.commands.lines import HELP, Command, MistakeError, Word, completions, named_tools, read_line
from multienv.commands.screen import notes, print_json
from multienv.commands.tasks import named, opened_episode
from multienv.commands.texts import as_shown, put, show_messages
from multienv.errors import SpecError
from multienv.reporting import plain
from multienv.reporting.lines import Line, to_line
from multienv.reporting.record import append, parsed
from multienv.rewards import episode_reward, episode_status, is_success
from multienv.router.presentation import text_of
from multienv.router.toolbox import ShownTool
from multienv.sessions import session_loop
from multienv.sessions.keys import secrets_of
from multienv.specs import RewardSpec
from multienv.types import Column, Episode, EpisodeStatus, JSONObject, Step, ToolCallError

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec
    from multienv.router import EnvironmentAdapter

_RUN: Final = "play"
"""What the lines of a record call the run, so that all episodes of a file are read together."""


def run_play(
    spec: MultiEnvSpec,
    *,
    environment: str | None,
    task: int | str | None = None,
    console: Console,
    lines: Iterable[str] | None = None,
    record: Path | None = None,
    is_json: bool = False,
) -> int:
    """Step an episode by hand.

    Args:
        spec: The mixture.
        environment: The environment; None where there is one only.
        task: Index of the task, or its task id; None for the first.
        console: Where it is shown.
        lines: What is typed; None for standard input. Where they end, the policy stops.
        record: File to add the episode to, a line as in `episodes.jsonl`; it holds nothing but episodes played by hand.
        is_json: Show nothing but the episode, as JSON, at the end; on a terminal, the rest goes to standard error.

    Returns:
        0, or 1 where infrastructure ended the episode.

    Raises:
        SpecError: There is no such environment or task, or the record cannot be written.
        SessionError: Its session cannot be opened.
        RewardFunctionError: A function of the environment's rule broke its contract.
    """
    row = named(spec, environment, task)
    declared: Any = spec.environments[row[Column.ENVIRONMENT]]
    if record is not None:
        _check_record(record)
    if is_json:
        console = notes() if lines is None and sys.stdin.isatty() else type(console)(quiet=True)
    spec.live.take_messages(is_on=True)
    with opened_episode(spec, row) as opened:
        hand = _Hand(opened.adapter, declared.reward, console)
        console.print(Rule(as_shown(row[Column.TASK_ID]), align="left"))
        show_messages(console, opened.messages)
        console.print(Rule("help shows what can be typed", align="left"))
        put(console, named_tools(hand.tools))
        hand.play(_typed(hand.tools, is_json=is_json) if lines is None else lines)
    episode = hand.episode
    if record is not None:
        _add(record, [to_line(Line(_RUN, 0, episode), secrets_of(spec.environments))])
    if is_json:
        print_json({**plain(asdict(episode)), "is_success": is_success(episode, declared.reward)})
    else:
        _show_end(episode, declared.reward, console)
        if declared.use_group_reward:
            console.print("a training scores this environment's groups as a whole instead", style="dim")
    return int(episode.status in (EpisodeStatus.FAILED, EpisodeStatus.REFUSED))


@dataclass(slots=True)
class _Hand:
    """A person's hand in the policy's place.

    Attributes:
        adapter: The episode.
        rule: What it is worth.
        console: Where results are shown.
        completion: What the policy would have written and been shown.
    """

    adapter: EnvironmentAdapter
    rule: RewardSpec
    console: Console
    completion: list[JSONObject] = field(default_factory=list)

    @property
    def tools(self) -> Mapping[str, ShownTool]:
        return self.adapter._offered().shown  # noqa: SLF001 - hidden from TRL only

    @property
    def episode(self) -> Episode:
        """What has happened, judged by the rule."""
        episode = replace(self.adapter.episode, completion=tuple(map(plain, self.completion)), is_evaluation=True)
        return replace(episode, status=episode_status(episode, self.rule), reward=episode_reward(episode, self.rule))

    def play(self, lines: Iterable[str]) -> None:
        """Understand line after line until the episode is over, the lines are, or the person stops."""
        for line in lines:
            try:
                command = read_line(line, self.tools)
            except MistakeError as mistake:
                put(self.console, str(mistake), style="yellow")
                continue
            if command is None:
                continue
            if command.word is Word.QUIT:
                return
            if command.word in (Word.HELP, Word.TOOLS):
                self._help(command.tool)
                continue
            self._do(command)
            if command.word is Word.SAY or self._is_over():
                return

    def _is_over(self) -> bool:
        adapter = self.adapter
        return adapter.finished or not adapter.episode.is_scorable or adapter._is_idle()  # noqa: SLF001 - see `tools`

    def _do(self, command: Command) -> None:
        """Do what the policy would do, and show what comes of it."""
        num_before = len(self.adapter.episode.steps)
        if command.word is Word.SAY:
            self.completion.append({"role": "assistant", "content": command.text})
            session_loop().run(self.adapter._grade(command.text))  # noqa: SLF001 - see `tools`
        else:
            function = {"name": command.tool, "arguments": command.arguments}
            call = {"type": "function", "function": function}
            self.completion.append({"role": "assistant", "content": "", "tool_calls": [call]})
            try:
                called = self.adapter._call_shown(command.tool, command.arguments)  # noqa: SLF001 - see `tools`
                result, style = session_loop().run(called), ""
            except ToolCallError as error:
                result, style = str(error), "yellow"
            self.completion.append({"role": "tool", "name": command.tool, "content": result})
            put(self.console, text_of(result), style=style)
        for step in self.adapter.episode.steps[num_before:]:
            if step.terminal:
                put(self.console, f"{step.tool} graded it: {step.text}")
            self._show_step(step)

    def _show_step(self, step: Step) -> None:
        said = "refused" if step.refused else "no result came" if step.lost else f"reward {step.reward}"
        told = [said, f"{step.duration_s:.2f} s", *(["finished"] if step.finished else [])]
        told.append(f"the episode so far counts {episode_reward(self.adapter.episode, self.rule)}")
        put(self.console, " · ".join(told), style="dim")

    def _help(self, tool: str) -> None:
        if tool:
            put(self.console, json.dumps(self.tools[tool].function["function"], indent=2, ensure_ascii=False))
        else:
            put(self.console, f"{HELP}\n{named_tools(self.tools)}")


def _check_record(path: Path) -> None:
    """Find out before the episode whether it can be written down, and that it comes between no run and its readers.

    Raises:
        SpecError: The file cannot be written, or is the record of a run.
    """
    _add(path, ())
    if any(line is None or line.run != _RUN for _, line in parsed(path)):
        raise SpecError(f"{path} holds more than episodes that were played by hand; choose another file")


def _add(path: Path, lines: Iterable[bytes]) -> None:
    try:
        append(path, lines)
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"the record {path} cannot be written: {reason}; choose another file") from None


def _typed(tools: Mapping[str, ShownTool], *, is_json: bool) -> Iterator[str]:
    """Yield what is typed; on a terminal with a prompt, a history, and completion of names."""
    try:
        if not sys.stdin.isatty():
            yield from sys.stdin
            return
        _complete(tools)
        is_shared = is_json or not sys.stdout.isatty()  # where `input` would write its prompt among the results
        while True:
            if is_shared:
                sys.stderr.write("> ")
                sys.stderr.flush()
            yield input("" if is_shared else "> ")
    except EOFError:
        return
    except UnicodeDecodeError as error:
        raise SpecError(f"what is typed is no text in {error.encoding}: {error.reason}") from None


def _complete(tools: Mapping[str, ShownTool]) -> None:
    """Have the Tab key complete names."""
    with suppress(ImportError):  # not everywhere
        import readline  # noqa: PLC0415 - changes how input() reads

        def complete(text: str, number: int) -> str | None:
            before = readline.get_line_buffer()[: readline.get_begidx()]
            found = [word for word in completions(before, tools) if word.startswith(text)]
            if number >= len(found):
                return None
            return found[number] if found[number].endswith("=") else f"{found[number]} "

        readline.set_completer(complete)
        readline.set_completer_delims(" \t")
        readline.parse_and_bind("tab: complete")


def _show_end(episode: Episode, rule: RewardSpec, console: Console) -> None:
    console.print(Rule(align="left"))
    put(console, f"{episode.status}{f': {episode.reason}' if episode.reason else ''}")
    told = f"reward {episode.reward}, success {is_success(episode, rule)}, {len(episode.steps)} steps"
    put(console, told)
