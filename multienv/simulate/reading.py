"""Decides how a simulation is read from a file.

Flow: `multienv simulate FILE` → `read_simulation` → `SimulationSpec`.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from multienv.files import Document, explained
from multienv.simulate.declaration import DECLARATIONS, SimulationSpec


def read_simulation(path: str | PathLike[str]) -> SimulationSpec:
    """Read a simulation from a YAML or TOML file.

    Args:
        path: The file.

    Raises:
        SpecError: It cannot be read, or says something that cannot be right: each finding with its line.
    """
    document = Document.read(Path(path))
    document.check_mapping(SimulationSpec.model_fields)
    return explained(document, DECLARATIONS, lambda: SimulationSpec(**document.values))
