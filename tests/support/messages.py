"""Everything the package says: its messages with `…` for what is filled in, and what says them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.pages import ROOT

HOLE = "…"
_NUM_OWN_CHARS = 12
"""So many characters of its own a message needs for a quotation with other words in its holes to be of it."""


@dataclass(frozen=True)
class Message:
    """A text of the package.

    Attributes:
        text: With `…` for each hole.
        kind: The exception or the warning it is given to, `WARNING:<logger>:` for the log; empty for any other text.
    """

    text: str
    kind: str = ""

    def is_quoted_by(self, quotation: str) -> bool:
        """True for a part of it, or for all of it with some holes filled; what fills a hole may be nothing."""
        if quotation.replace(HOLE, "") in self.text.replace(HOLE, ""):
            return True
        first, *others = self.text.split(HOLE)
        if not others or not quotation.startswith(first) or len(first) + sum(map(len, others)) < _NUM_OWN_CHARS:
            return False
        return re.fullmatch(".+".join(map(re.escape, (first, *others))), quotation, re.DOTALL) is not None


def messages() -> set[Message]:
    """All of the package."""
    found = set()
    for path in sorted((ROOT / "multienv").rglob("*.py")):
        logger = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = {id(text): kind for node in ast.walk(tree) for text, kind in _said(node, logger)}
        for node in ast.walk(tree):
            if (text := _text(node)) is not None:
                found.add(Message(_with_holes(text), kinds.get(id(node), "")))
    return found


def _said(node: ast.AST, logger: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield the texts that a call is given first, with the kind of what is called."""
    if not isinstance(node, ast.Call) or not node.args:
        return
    called = ast.unparse(node.func).rpartition(".")[2]
    if called == "warn":
        called = ast.unparse(node.args[1]) if len(node.args) > 1 else "UserWarning"
    elif called == "warning":
        called = f"WARNING:{logger}:"
    if called.endswith(("Error", "Warning", ":")):
        yield node.args[0], called


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    return None


def _with_holes(text: str) -> str:
    """Join neighbouring holes; a logger's `%s` is one as well."""
    return re.sub(rf"(?:{HOLE}|%[rsdg])+", HOLE, text)
