"""Plays public ORS environments, all of them in one mixture, end to end through the adapters that a trainer drives.

Run as `python benchmarks/public_environments.py CHECKOUT [CHECKOUT ...] [--calls 3] [--tasks 2]`, on checkouts made by
`git clone https://github.com/EnvCommons/ICUCoordinator`, `.../PortManager`, `.../FoodDelivery`, `.../ATC`,
`.../Chernobyl` and `git clone https://github.com/GeneralReasoning/env-zebra`. Each checkout's `server.py` runs in a
process of its own, with this interpreter and the user's rights, on a loopback port; what it requires beyond this
library must be installed. Every tool is called with arguments that its published schema allows, until the environment
ends the episode. A checkout that cannot be served is named with the reason and skipped. The exit status is 1 if an
episode failed, if this library refused a call, or if nothing could be played.

Flow: `main` → `serving` → `composed` → `play` for each environment → the table.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import math
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final

import httpx
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from multienv import EnvSpec, MultiEnvSpec, ToolCallError
from multienv.errors import MultiEnvError
from multienv.router import EnvironmentAdapter
from multienv.types import Episode

# The checkout's own main program decides what is served; only where it listens is decided here, whatever it asks for.
_BOOTSTRAP: Final = """
import os, runpy, socket, sys, threading, uvicorn
given, path = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
def run(app, *_, **__):
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[given])
def leave_with_parent():
    while os.read(0, 4096):  # not sys.stdin: a thread inside it would crash the interpreter's exit
        pass
    os._exit(0)
threading.Thread(target=leave_with_parent, daemon=True).start()
uvicorn.run, sys.argv = run, [path]
sys.path.insert(0, os.path.dirname(path))
runpy.run_path(path, run_name="__main__")
"""
_QUIET: Final = {"OPENREWARD_DISABLE_UPDATE_CHECK": "1", "OPENREWARD_LOG_LEVEL": "CRITICAL", "OMP_NUM_THREADS": "1"}
_STOP_PATIENCE_S: Final = 5.0
_OUR_REFUSALS: Final = ("argument ", "unknown argument", "the arguments are not valid JSON")
_NAMES: Final = re.compile(r"\b(?=[\w-]*[\d_])(?=[\w-]*[A-Za-z])[\w-]+\b")  # `F0001`, `13L`, `south_flow`
_DEEPEST: Final = 6
_COLUMNS: Final = (
    *("environment", "tasks", "tools", "calls", "refused by it", "refused by multienv"),
    *("steps with reward", "episode rewards", "status", "seconds"),
)


class Arguments:
    """Arguments that a JSON Schema allows, the same for the same seed and text; keywords rare in tools are not read.

    Args:
        root: The schema, for its `$defs`.
        seed: What the choices depend on.
        said: What the environment last said: names that occur in it are used where a schema leaves a string open.
    """

    def __init__(self, root: Mapping[str, Any], seed: str, said: str) -> None:
        self._root, self._random, self._said = root, random.Random(seed), said

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that the schema allows; past some depth the shortest, for schemas may refer to themselves."""
        schema = self._merged(schema if isinstance(schema, Mapping) else {})  # `true` allows anything
        is_deep = depth >= _DEEPEST
        if "const" in schema or "enum" in schema:
            return self._random.choice(schema.get("enum") or [schema["const"]])
        if options := schema.get("anyOf") or schema.get("oneOf"):
            short = [option for option in options if not is_deep or option.get("type") in ("null", "string")]
            return self.value(self._random.choice(short or options), depth + 1)
        if "default" in schema and (is_deep or self._random.random() < 0.25):
            return schema["default"]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        return self._typed(self._random.choice(kind) if isinstance(kind, list) else kind, schema, depth)

    def _typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        low, high = _bounds(schema, 1 if kind == "integer" else 0)
        values: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(schema, depth),
            "array": lambda: self._array(schema, depth),
            "string": lambda: self._string(schema),
            "integer": lambda: self._random.randint(math.ceil(low), math.floor(high)),
            "number": lambda: low + (high - low) * self._random.randint(1, 9) / 10,
            "boolean": lambda: self._random.random() < 0.5,
            "null": lambda: None,
        }
        return values[kind]()

    def _merged(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put what `$ref` and `allOf` refer to beside the schema's own keywords."""
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            path = filter(None, schema["$ref"].removeprefix("#").split("/"))
            parts.append(reduce(lambda found, part: found[part], path, self._root))
        own = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        return {key: value for part in parts for key, value in self._merged(part).items()} | own

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self.value(of, depth + 1)
            for name, of in schema.get("properties", {}).items()
            if name in required or (depth < _DEEPEST and self._random.random() < 0.75)
        }

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        if "prefixItems" in schema:  # a tuple of pydantic's; nothing may follow
            return [self.value(item, depth + 1) for item in schema["prefixItems"]]
        least = schema.get("minItems", 0)
        most = least if depth >= _DEEPEST else min(schema.get("maxItems", least + 2), least + 2)
        return [self.value(schema.get("items", {}), depth + 1) for _ in range(self._random.randint(least, most))]

    def _string(self, schema: Mapping[str, Any]) -> str:
        """Return a name from the description, or else from what was said, that fits; or else any text that fits."""
        pattern, least, most = schema.get("pattern", ""), schema.get("minLength", 0), schema.get("maxLength", 1000)
        names: list[str] = _NAMES.findall(schema.get("description", "")) or _NAMES.findall(self._said)
        fitting = sorted({name for name in names if least <= len(name) <= most and re.search(pattern, name)})
        if fitting:
            return self._random.choice(fitting)
        return matching(pattern, least, most) if pattern else "text".ljust(least, "x")[:most]


@cache
def matching(pattern: str, least: int, most: int) -> str:
    """Return the simplest text that matches."""
    from hypothesis import find, settings, strategies

    texts, quiet = strategies.from_regex(pattern), settings(database=None, deadline=None)
    return find(texts, lambda text: least <= len(text) <= most, settings=quiet, random=random.Random(0))


def _bounds(schema: Mapping[str, Any], gap: int) -> tuple[float, float]:
    """Return the least and the greatest allowed number: small positive ones where the schema has no bounds."""
    lows = [schema[key] + more for key, more in (("minimum", 0), ("exclusiveMinimum", gap)) if key in schema]
    highs = [schema[key] - less for key, less in (("maximum", 0), ("exclusiveMaximum", gap)) if key in schema]
    low = max(lows) if lows else min([1, *(high - 4 for high in highs)])
    return low, min(highs) if highs else low + 4


def start(path: Path, log_path: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a checkout's server; return its process and its URL, where it may not answer yet."""
    found = sorted(path.rglob("server.py"), key=lambda server: (len(server.parts), server))
    if not found:
        raise FileNotFoundError(f"{path} holds no server.py")
    # Made with IPPROTO_TCP as in serve.py, and handed over bound: the port cannot be lost to another process.
    given = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with given, log_path.open("wb") as log:
        given.bind(("127.0.0.1", 0))
        process = subprocess.Popen(
            [sys.executable, "-B", "-c", _BOOTSTRAP, str(given.fileno()), str(found[0])],
            cwd=path,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | _QUIET,
            pass_fds=[given.fileno()],
            start_new_session=True,  # Ctrl-C must not reach the servers before their sessions are closed
        )
        return process, f"http://127.0.0.1:{given.getsockname()[1]}"


def problem(process: subprocess.Popen[bytes], url: str, patience_s: float) -> str:
    """Wait until a server answers; return why it never will, or an empty text."""
    until = time.monotonic() + patience_s
    with httpx.Client(trust_env=False, timeout=_STOP_PATIENCE_S) as client:
        while process.poll() is None:
            try:
                client.get(f"{url}/health").raise_for_status()
            except httpx.HTTPError as error:
                if time.monotonic() > until:
                    return f"no answer to /health within {patience_s:g} s: {error}"
                time.sleep(0.1)
            else:
                return ""
    return f"the server ended with status {process.returncode}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process by closing its standard input, on which it leaves, or by SIGKILL if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def serving(paths: Iterable[Path], patience_s: float, skipped: dict[str, str]) -> Iterator[dict[str, str]]:
    """Start all servers at once, yield their URLs by name, end them on leaving; those that fail go to `skipped`."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = {}
        for path in dict.fromkeys(path.resolve() for path in paths):
            name = path.name if path.name not in started else f"{path.parent.name}-{path.name}"
            try:
                started[name] = start(path, logs / name)
            except OSError as error:
                skipped[name] = str(error)
            else:
                stack.callback(stop, started[name][0])
        for name, (process, url) in started.items():
            if reason := problem(process, url, patience_s):
                said = (logs / name).read_text(errors="replace").split("\n")
                skipped[name] = f"{reason}; last said: {next(filter(str.strip, reversed(said)), 'nothing').strip()}"
        yield {name: url for name, (_, url) in started.items() if name not in skipped}


def composed(urls: Mapping[str, str], num_tasks: int, skipped: dict[str, str]) -> MultiEnvSpec | None:
    """Compose all environments whose tasks and tools can be fetched; the others go to `skipped` with the reason."""
    left = dict(urls)
    while left:
        spec = MultiEnvSpec({name: EnvSpec(url, num_tasks=num_tasks) for name, url in left.items()})
        try:
            _ = spec.train_dataset, spec.environment_factory
        except MultiEnvError as error:
            spec.close()
            if error.environment not in left:
                raise
            skipped[error.environment] = str(error)
            del left[error.environment]
        else:
            return spec
    return None


@dataclass(frozen=True, slots=True)
class Tool:
    """A published tool, and the adapter's method that stands for it."""

    method: str
    name: str
    description: str
    schema: Mapping[str, Any]

    def arguments(self, environment: str, number: int, said: str) -> dict[str, Any]:
        """Return arguments for a call by their published names."""
        seed, said = f"{environment}/{self.name}/{number}", f"{self.description} {said}"
        return dict(Arguments(self.schema, seed, said).value(self.schema))


def tools_of(factory: Any, url: str) -> list[Tool]:
    """Ask the server which tools it publishes; the adapter has a method for each, in the same order."""
    methods = [name for name, member in vars(factory).items() if inspect.isfunction(member)]
    with httpx.Client(trust_env=False, follow_redirects=True, timeout=_STOP_PATIENCE_S) as client:
        published = client.get(f"{url}/tools").raise_for_status().json()["tools"]
    return [
        Tool(method, tool["name"], tool.get("description") or "", {"type": "object"} | (tool["input_schema"] or {}))
        for method, tool in zip(methods, published, strict=False)  # tools that only some tasks have come last
    ]


def call(adapter: EnvironmentAdapter, tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Call a tool as a trainer does, by the names the adapter shows; return what the policy would read."""
    method = getattr(adapter, tool.method)
    shown = dict(zip(tool.schema.get("properties", {}), inspect.signature(method).parameters, strict=True))
    with suppress(ToolCallError):  # the record has it
        method(**{shown[name]: value for name, value in arguments.items()})
    return adapter.last_output


def play(factory: Any, tools: Sequence[Tool], rows: Iterable[dict[str, Any]], num_calls: int) -> list[Episode]:
    """Play one episode per row: every tool in turn, so many rounds, or until the episode is over."""
    adapter, episodes, ending = factory(), list[Episode](), set[str]()
    for row in rows:
        said = str(adapter.reset(**row))
        # A tool that has ended an episode comes last in the next one, so that the others have their turn.
        in_turn = sorted(tools, key=lambda tool: tool.name in ending)
        for number, tool in itertools.product(range(num_calls), in_turn):
            if adapter.finished or not adapter.episode.is_scorable:
                break
            said = call(adapter, tool, tool.arguments(factory.environment, number, said))
            if adapter.finished:
                ending.add(tool.name)
        episodes.append(adapter.episode)
    return episodes


def num_refused_by_us(episodes: Iterable[Episode]) -> int:
    """Count the calls that this library refused before the environment saw them."""
    refused = (step.text for episode in episodes for step in episode.steps if step.refused)
    return sum(text.startswith(_OUR_REFUSALS) for text in refused)


def last_reward(episode: Episode) -> str:
    """Show the episode reward as the adapter has it: the last one given, none for a failed episode."""
    rewards = [step.reward for step in episode.steps if step.reward is not None]
    return f"{rewards[-1]:.3g}" if rewards and episode.is_scorable else "none"


def figures(name: str, num_tools: int, episodes: Sequence[Episode], duration_s: float) -> list[str]:
    """Return one environment's figures, in the order of the table's columns."""
    steps = [step for episode in episodes for step in episode.steps]
    statuses = Counter(episode.status.value for episode in episodes).items()
    called = f"{len({step.tool for step in steps})}/{num_tools}"
    num_ours = num_refused_by_us(episodes)
    num_theirs = sum(step.refused for step in steps) - num_ours
    cells = [name, len(episodes), called, len(steps), num_theirs, num_ours]
    cells += [sum(step.reward is not None for step in steps), ", ".join(map(last_reward, episodes))]
    cells += [", ".join(f"{count} {status}" for status, count in statuses), f"{duration_s:.1f}"]
    return [str(cell) for cell in cells]


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the checkouts named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Play public ORS environments through multienv.")
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT", help="a folder that holds a server.py")
    parser.add_argument("--calls", type=int, default=3, help="calls of each tool in an episode")
    parser.add_argument("--tasks", type=int, default=2, help="tasks, and so episodes, of each environment")
    parser.add_argument("--patience", type=float, default=90.0, help="longest wait for a server, in seconds")
    given = parser.parse_args(arguments)
    table = Table(title="Public environments, one mixture", title_justify="left", box=SIMPLE_HEAD)
    for heading in _COLUMNS:
        table.add_column(heading, justify="left" if heading in ("environment", "status") else "right")
    skipped: dict[str, str] = {}
    played: list[Episode] = []
    with ExitStack() as stack:
        urls = stack.enter_context(serving(given.checkouts, given.patience, skipped))
        spec = composed(urls, given.tasks, skipped)
        rows = [dict(row) for row in stack.enter_context(spec).train_dataset] if spec else []
        for name, factory in spec.environment_factory.items() if spec else ():
            started = time.perf_counter()
            tools = tools_of(factory, urls[name])
            episodes = play(factory, tools, [row for row in rows if row["environment"] == name], given.calls)
            table.add_row(*figures(name, len(tools), episodes, time.perf_counter() - started))
            played += episodes
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    failed = [episode for episode in played if not episode.is_scorable]
    for episode in failed:
        console.print(f"{episode.task_id} {episode.status}: {episode.reason}")
    for name, reason in skipped.items():
        console.print(f"skipped {name}: {reason}")
    return 1 if failed or not played or num_refused_by_us(played) else 0


if __name__ == "__main__":
    sys.exit(main())
