"""Decides how a file is written so that nobody reads half of it.

Flow: manifests, reports, records of evaluations, what was run → `write_whole` → a file.
"""

from __future__ import annotations

import uuid
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file; whoever reads it meanwhile finds the old file or the new one, never a part.

    Args:
        path: The file; its folder is made if missing.
        text: What it is to hold.

    Raises:
        OSError: It cannot be written; what was there is there still.
        ValueError: No file can have this name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
