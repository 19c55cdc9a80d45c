"""A page of a report in a real browser that can reach nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


class Tab:
    """A page in a browser that can reach nothing, and what it did.

    Attributes:
        tab: The page.
        said: What it wrote to the console, and what its program failed with.
        asked: The addresses it wanted something from.
        sent: Those of them that its own policy did not forbid, its own file aside.
    """

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.said: list[str] = []
        self.asked: list[str] = []
        self.sent: list[str] = []
        tab.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        tab.on("request", lambda request: self.asked.append(request.url))
        tab.route(re.compile(r"^(?!file:)"), self._refuse)

    def show(self, path: Path) -> Any:
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("#episodes")
        assert self.asked == [path.as_uri()]
        return self.tab

    def rows(self) -> int:
        return int(self.tab.locator(".list li").count())

    def counts(self, number: int) -> bool:
        """Wait until so many episodes are said to fit; typing takes effect a moment later."""
        self.tab.locator(".count", has_text=re.compile(f"^{number:,} of ")).wait_for()
        return self.rows() == min(number, 40)

    def _refuse(self, route: Any) -> None:
        self.sent.append(route.request.url)
        route.abort()
