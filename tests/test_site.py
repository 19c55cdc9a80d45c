"""The documentation as a site: it builds without a warning, needs no other host, and its links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.pages import PAGES, ROOT

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "use": "href",
    "image": "href",
}
"""What a browser fetches by itself, by the attribute that says where from; a `link` is fetched whatever it is."""


class Page(HTMLParser):
    """What a built page loads, links to, and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self._is_style = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "link" or (tag in LOADS and LOADS[tag] in values):
            self.loads.append(values["href" if tag == "link" else LOADS[tag]])
        self.loads += of_style(values.get("style", ""))
        self.loads += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self._is_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.loads += of_style(data)


def of_style(css: str) -> list[str]:
    """What a style sheet loads, but for what it holds itself."""
    found = re.findall(r"""(?:url\(\s*|@import\s+)["']?([^"')\s]+)""", css)
    return [where for where in found if not where.startswith(("data:", "#"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; it takes three to five seconds."""
    directory = tmp_path_factory.mktemp("site")
    # A proxy that is not there: whatever asked another host for something would fail.
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
        env=os.environ | proxies | {"NO_MKDOCS_2_WARNING": "1"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "WARNING" not in said
    return directory


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_built_and_the_tools_of_the_site_are_not(site: Path, built: dict[Path, Page]) -> None:
    for page in PAGES:
        assert site / Path(page).with_suffix(".html") in built
    assert [path for path in site.rglob("*") if path.suffix in (".py", ".jinja", ".md")] == []


def test_no_page_and_no_style_sheet_loads_anything_from_another_host(site: Path, built: dict[Path, Page]) -> None:
    loads = {path: page.loads for path, page in built.items()}
    loads |= {path: of_style(path.read_text(encoding="utf-8")) for path in site.rglob("*.css")}
    assert sum(map(len, loads.values())) > len(PAGES), "style sheets and scripts are found"
    for path, addresses in loads.items():
        for address in addresses:
            assert not urlsplit(address).netloc, f"{path} loads {address}"
            if urlsplit(address).path and path.name != "404.html":  # whose addresses are those of the site's root
                assert (path.parent / urlsplit(address).path).is_file(), f"{path} loads {address}"


def test_what_a_page_loads_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link href="//a/f"><script src=https://b/x.js></script><style>@import "http://c/s.css";</style>'
        "<p style=\"background: url('http://d/i.png')\"><img srcset='http://e/1 1x, e2 2x'><a id=x href=http://f>"
    )
    page = Page(tmp_path / "a.html")
    assert page.loads == ["//a/f", "https://b/x.js", "http://c/s.css", "http://d/i.png", "http://e/1", "e2"]
    assert (page.links, page.anchors) == (["http://f"], {"x"})


def test_every_link_inside_the_site_leads_to_a_page_and_to_a_place_in_it(built: dict[Path, Page]) -> None:
    num_places = 0
    for path, page in built.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target in built, f"{path.name} links to {link}"
            if place := unquote(parts.fragment):
                num_places += 1
                assert place in built[target].anchors, f"{path.name} links to {link}"
    assert num_places > 100


def test_the_search_knows_the_pages_also_where_no_server_is(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8").removeprefix("var __index = ")
    found = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    assert {Path(page).with_suffix(".html").as_posix() for page in PAGES} <= found
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text(encoding="utf-8")
