"""Decides what a published name is called in Python: itself where it can be, a near neighbour where it cannot.

Flow: `tools.bind_tools` names tools and parameters; the way back is kept beside each method.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable

_NOT_WORD = re.compile(r"\W", re.ASCII)  # a superscript is a word character, but no identifier


def python_names(published: Iterable[str], *, taken: Collection[str], suffix: str) -> dict[str, str]:
    """Give every published name a Python name of its own; none is dropped.

    A name that can stay stays, so a renamed one never takes the place of a published one.

    Args:
        published: Distinct names, in order.
        taken: Names that are in use already.
        suffix: What is put behind a name that is taken or a keyword.

    Returns:
        From published to Python name, in the order given.

    Example:
        >>> python_names(["run-tests", "reset", "_x", "run_tests"], taken={"reset"}, suffix="_tool")
        {'run-tests': 'run_tests_tool', 'reset': 'reset_tool', '_x': 'x', 'run_tests': 'run_tests'}
    """
    order = list(published)
    names = {name: name for name in order if _is_free(name, taken)}
    used = {*taken, *names}
    for name in order:
        if name not in names:
            names[name] = _new_name(name, used, suffix)
            used.add(names[name])
    return {name: names[name] for name in order}


def _is_free(name: str, taken: Collection[str]) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_") and name not in taken


def _new_name(name: str, used: Collection[str], suffix: str) -> str:
    base = _NOT_WORD.sub("_", name).strip("_")
    if not base or not base.isidentifier():
        base = f"{suffix.strip('_') or 'name'}_{base}".rstrip("_")
    if keyword.iskeyword(base) or base in used:
        base = f"{base}{suffix}"
    candidate, count = base, 2
    while not _is_free(candidate, used):
        candidate, count = f"{base}_{count}", count + 1
    return candidate
