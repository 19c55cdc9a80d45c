r"""Decides what a replica's `bash` understands: a harmless part of a shell, played on the session's file tree.

`echo`, `cat`, `ls`, `pwd`, `mkdir`, `rm`, `grep` and `true`, with quotes, `>`, `>>`, `&&`, `;` and line ends. Nothing
is expanded, a pattern is taken as a plain string, and no process is started: anything else is a command not found.

Flow: the tool `bash` of a replica → `run` → its `FileTree`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from multienv.testing.replicas.tree import FileTree, TreeError

_TOKEN: Final = re.compile(
    r"""[ \t\r]*(?:(?P<word>(?:[^\s'"\\&|;<>()`$]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+)|(?P<operator>&&|>>|.))""", re.DOTALL
)
_PIECE: Final = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPE: Final = re.compile(r"""\\(["\\$`])""")
_SEPARATORS: Final = ("&&", ";", "\n")
_NOT_FOUND: Final = 127


class _FailedError(Exception):
    """A command failed.

    Args:
        text: What it says.
        code: Its exit code.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class _Command:
    """One simple command; `separator` is what stands before it."""

    separator: str
    words: list[str] = field(default_factory=list)
    redirect: str = ""
    target: str = ""


def run(line: str, tree: FileTree) -> str:
    r"""Run a command line.

    Args:
        line: What the policy wrote.
        tree: The session's file tree.

    Returns:
        What was printed, and the exit code in the last line.

    Example:
        >>> run("echo amber > a.txt && cat a.txt", FileTree("/app", {}))
        'amber\nexit code 0'
    """
    printed: list[str] = []
    code = 0
    try:
        for command in _parse(line):
            if command.separator == "&&" and code:
                continue
            text, code = _outcome(command, tree)
            printed += [text.removesuffix("\n")] if text else []
    except _FailedError as error:
        printed, code = [str(error)], error.code
    return "\n".join([*printed, f"exit code {code}"])


def _parse(line: str) -> list[_Command]:
    """Split a line into commands, before any of them runs."""
    line = line.strip()
    commands = [_Command(";")]
    position, awaited = 0, ""
    while position < len(line):
        match = _TOKEN.match(line, position)
        assert match is not None  # noqa: S101 - the operator may be any character
        position = match.end()
        word, operator = match["word"], match["operator"]
        current = commands[-1]
        if word is not None and awaited:
            current.redirect, current.target, awaited = awaited, _unquoted(word), ""
        elif word is not None:
            current.words.append(_unquoted(word))
        elif not awaited and operator in (">", ">>") and current.words and not current.redirect:
            awaited = operator
        elif not awaited and operator in _SEPARATORS and (current.words or operator == "\n"):
            commands += [_Command(operator)] if current.words else []
        else:
            raise _not_found(operator)
    if awaited or (not commands[-1].words and commands[-1].separator == "&&"):
        raise _not_found(awaited or "&&")
    return [command for command in commands if command.words]


def _not_found(name: str) -> _FailedError:
    return _FailedError(f"bash: {name}: command not found", _NOT_FOUND)


def _unquoted(word: str) -> str:
    def plain(match: re.Match[str]) -> str:
        single, double, escaped = match.groups()
        if double is not None:
            return _ESCAPE.sub(r"\1", double)
        return str(escaped if single is None else single)

    return _PIECE.sub(plain, word)


def _outcome(command: _Command, tree: FileTree) -> tuple[str, int]:
    name, *arguments = command.words
    try:
        if name not in _COMMANDS:
            raise _not_found(name)
        text = _COMMANDS[name](arguments, tree)
        if not command.redirect:
            return text, 0
        _redirect(command, text, tree)
    except TreeError as error:
        return f"{name}: {error}", 1
    except _FailedError as error:
        return str(error), error.code
    return "", 0


def _redirect(command: _Command, text: str, tree: FileTree) -> None:
    before = ""
    if command.redirect == ">>" and tree.path(command.target) in tree.files:
        before = tree.read(command.target)
    tree.write(command.target, before + text, makes_folders=False)


def _split_flags(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the letters of all flags, and the operands."""
    flags = [argument for argument in arguments if argument.startswith("-") and argument != "-"]
    return "".join(flags).replace("-", ""), [argument for argument in arguments if argument not in flags]


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _echo(arguments: list[str], _: FileTree) -> str:
    return " ".join(arguments[1:]) if arguments[:1] == ["-n"] else _lines([" ".join(arguments)])


def _cat(arguments: list[str], tree: FileTree) -> str:
    _, paths = _split_flags(arguments)
    if not paths:
        raise _FailedError("cat: missing operand")
    return "".join(map(tree.read, paths))


def _ls(arguments: list[str], tree: FileTree) -> str:
    _, paths = _split_flags(arguments)
    return _lines(name for path in paths or ["."] for name in tree.listing(path))


def _pwd(_: list[str], tree: FileTree) -> str:
    return _lines([tree.folder])


def _mkdir(arguments: list[str], tree: FileTree) -> str:
    _, paths = _split_flags(arguments)
    if not paths:
        raise _FailedError("mkdir: missing operand")
    for path in paths:
        tree.make_folder(path)
    return ""


def _rm(arguments: list[str], tree: FileTree) -> str:
    flags, paths = _split_flags(arguments)
    if not paths and "f" not in flags:
        raise _FailedError("rm: missing operand")
    for path in paths:
        try:
            tree.remove(path, is_recursive="r" in flags.lower())
        except TreeError:
            if "f" not in flags or tree.path(path) in tree.folders:
                raise
    return ""


def _grep(arguments: list[str], tree: FileTree) -> str:
    flags, operands = _split_flags(arguments)
    if not operands:
        raise _FailedError("grep: missing operand", 2)
    pattern, *paths = operands
    if "r" in flags.lower():
        texts = [file for path in paths or ["."] for file in tree.under(path)]
    else:
        texts = [(path, tree.read(path)) for path in paths]
    has_names = len(texts) > 1 or "r" in flags.lower()
    found = [
        f"{path}:{line}" if has_names else line for path, text in texts for line in text.splitlines() if pattern in line
    ]
    if not found:
        raise _FailedError("")
    return _lines(found)


_COMMANDS: Final[Mapping[str, Callable[[list[str], FileTree], str]]] = {
    "cat": _cat,
    "echo": _echo,
    "grep": _grep,
    "ls": _ls,
    "mkdir": _mkdir,
    "pwd": _pwd,
    "rm": _rm,
    "true": lambda _arguments, _tree: "",
}
