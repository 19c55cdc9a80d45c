"""The README's code runs, and what it says is printed is printed."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python( needs-gpu)?\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_code_blocks_run_in_order_and_print_what_they_say() -> None:
    names: dict[str, Any] = {}
    for needs_gpu, code in BLOCKS:
        program = compile(code, "README.md", "exec")
        if needs_gpu:
            continue
        printed = io.StringIO()
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(program, names)
        expected = re.findall(r"^ *print\(.*\) +# (.*)$", code, re.MULTILINE)
        assert printed.getvalue().splitlines() == expected


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) < 200
    assert len(BLOCKS) >= 4


def test_every_file_it_names_exists() -> None:
    root = Path(__file__).parent.parent
    for path in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", README):
        assert (root / path).exists() or (root / "multienv" / path).exists(), path
