"""Decides how a command writes a file: whole or not at all, and with one sentence where it cannot.

Flow: every command that writes → here.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from multienv.errors import SpecError
from multienv.reporting import plain


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document.

    Args:
        path: The file; its folder is made if missing.
        document: Anything; what JSON cannot say is written as text.

    Raises:
        SpecError: It cannot be written.
    """
    write_text(path, json.dumps(plain(document), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file; whoever reads it meanwhile sees the old one or the new one.

    Raises:
        SpecError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(partial).chmod(0o644)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}; choose another place") from None
