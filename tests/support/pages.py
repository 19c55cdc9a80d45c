"""The pages of the documentation: their code, what it says it prints, and what can be told of code that is not run."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if "templates" not in path.parts
}

_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^ *print\(.*\) +# (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block. One whose title begins with "needs" is not run."""

    language: str
    title: str
    code: str

    @property
    def is_run(self) -> bool:
        return self.language == "python" and not self.title.startswith("needs")

    @property
    def printed(self) -> list[str]:
        """What it says its lines print."""
        return _PRINTED.findall(self.code)


def blocks(page: str, language: str = "python") -> list[Block]:
    """The blocks of a page in a language, in order."""
    found = []
    for match in _BLOCK.finditer(PAGES[page]):
        title = re.search(r'title="([^"]*)"', match["rest"])
        found.append(Block(match["language"], title[1] if title else "", match["code"]))
    return [block for block in found if block.language == language]


class Reading(ast.NodeVisitor):
    """Reads code without running it: are its imports there, its names known, its keywords accepted?

    Attributes:
        complaints: What is wrong.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._known: dict[str, Any] = dict(vars(builtins))

    def read(self, code: str) -> None:
        """Read a block, after those before it on the page."""
        tree = ast.parse(code)
        for node in ast.walk(tree):
            self._take_names(node)
        self.visit(tree)

    def _take_names(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._known.setdefault(node.id, None)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._known[node.name] = None
        elif isinstance(node, ast.arg):
            self._known.setdefault(node.arg, None)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self._known[alias.asname or alias.name.partition(".")[0]] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    self.complaints.append(f"{node.module} has no {alias.name}")
                self._known[alias.asname or alias.name] = getattr(module, alias.name, None)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id not in self._known:
            self.complaints.append(f"{node.id} is not known")

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note of which class a name is, so that its attributes can be looked for."""
        self.generic_visit(node)
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            made = self._known.get(value.func.id)
            self._known[target.id] = _Instance(made) if isinstance(made, type) else None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        owner = self._known.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(owner, _Instance) and not hasattr(owner.of, node.attr):
            self.complaints.append(f"{owner.of.__name__} has no {node.attr}")

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self._known.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if callable(called) and called.__module__ != "builtins":
            accepted = _keywords(called)
            given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
            self.complaints += [f"{called.__name__} takes no {name}" for name in sorted(given - accepted)]


@dataclass(frozen=True)
class _Instance:
    of: type


def _keywords(called: Any) -> set[str]:
    """Every keyword that a function takes, or the constructors of a class and its bases."""
    functions = [vars(base).get("__init__") for base in called.__mro__[:-1]] if isinstance(called, type) else [called]
    keywords: set[str] = set(getattr(called, "model_fields", ()))
    for function in filter(None, functions):
        keywords |= set(inspect.signature(function).parameters)
    if not isinstance(called, type) and "options" in keywords:  # a function that hands its options on to what it makes
        made = get_type_hints(called).get("return")
        keywords |= _keywords(made) if isinstance(made, type) else set()
    return keywords
