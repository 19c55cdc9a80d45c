"""Decides how a value inside a file is named: by the keys and positions that lead to it.

Flow: `yaml_lines`, `toml_lines` → `Document` → `findings`.
"""

from __future__ import annotations

from typing import TypeAlias

Place: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a value; empty for the whole file."""
