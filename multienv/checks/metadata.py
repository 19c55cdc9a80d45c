"""Decides what is said about metadata that the dataset keeps in the column `task` only.

Flow: `run` → here, with the first declared task of each ORS environment; `multienv.dataset` looks at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from multienv.checks.findings import Code, Finding, Severity, joined, quoted
from multienv.checks.looks import Mixture
from multienv.dataset import can_be_column, is_column_name
from multienv.specs import EnvSpec
from multienv.types import Column


def check_metadata(mixture: Mixture) -> Iterator[Finding]:
    """Name the keys of task specs that cannot be columns, with the type each environment gives them."""
    owners: dict[str, dict[str, Any]] = {}
    for name, outline in mixture.outlines.items():
        spec = mixture.specs[name]
        if isinstance(spec, EnvSpec) and spec.include_metadata and isinstance(outline.first.spec, Mapping):
            for key, value in outline.first.spec.items():
                if value is not None:
                    owners.setdefault(key, {})[name] = value
    dropped = [
        f"{quoted(key)} ({_types(values) if is_column_name(key) else 'the name is not free'})"
        for key, values in sorted(owners.items())
        if not can_be_column(key, list(values.values()))
    ]
    if dropped:
        yield Finding(
            Severity.NOTE,
            None,
            Code.COLUMN_DROPPED,
            f"metadata that gets no column of its own, judged by the first tasks: {joined(dropped)}.",
            f"Read it from the column {Column.TASK.value!r}, which holds each task's whole spec as JSON.",
        )


def _types(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{type(value).__name__} in {name}" for name, value in values.items())
