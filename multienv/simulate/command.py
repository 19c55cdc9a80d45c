"""Decides what `multienv simulate` does with its options: one curriculum in detail, or several side by side.

Flow: `cli.simulate` → `run_simulate` → `SimulationSpec.run` → `show`, `plot` and a JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from multienv.curriculum.simulation import Simulation
from multienv.errors import SpecError, nearest
from multienv.simulate.plot import check_plot, draw
from multienv.simulate.reading import read_simulation
from multienv.simulate.show import show, show_comparison
from multienv.specs import CurriculumSpec
from multienv.specs.curriculum import PRESETS

if TYPE_CHECKING:
    from rich.console import Console

DECLARED: Final = "file"
"""The name of the curriculum that the file declares."""

_KNOWN: Final = (DECLARED, *(preset for preset in PRESETS if preset != "dataset"))


def run_simulate(  # noqa: PLR0913 - the options of the command
    file: Path,
    *,
    curricula: Sequence[str] = (),
    seed: int | None = None,
    num_batches: int | None = None,
    goal: float = 0.8,
    plot: Path | None = None,
    json_file: Path | None = None,
    is_json: bool = False,
    console: Console,
) -> dict[str, Simulation]:
    """Simulate the mixture of a file, show how it went, and write what was asked for.

    Args:
        file: The YAML file.
        curricula: Names of presets, and `"file"` for the declared one, which is the default.
        seed: Another seed than the declared one.
        num_batches: Another number of batches than the declared one.
        goal: The success that the worst environment is to reach.
        plot: Where to draw it.
        json_file: Where to write all figures.
        is_json: Print all figures as one JSON document, and nothing else.
        console: Where to show it.

    Returns:
        How each curriculum went, by its name.

    Raises:
        SpecError: The file or an option cannot be right.
        MultiEnvError: There is no matplotlib to draw with.
    """
    if unknown := [name for name in curricula if name not in _KNOWN]:
        raise SpecError(
            f"curriculum={unknown[0]!r}{nearest(unknown[0], _KNOWN)}; accepted: {', '.join(_KNOWN[1:])}, or "
            f"{DECLARED!r} for the one that the file declares"
        )
    if plot is not None:
        check_plot(plot)
    _check_files(file, plot, json_file)
    spec = read_simulation(file)
    chosen: dict[str, CurriculumSpec | str | None] = {
        name: None if name == DECLARED else name for name in curricula or (DECLARED,)
    }
    simulations = {name: spec.run(each, seed=seed, num_batches=num_batches) for name, each in chosen.items()}
    figures: dict[str, Any] = {name: each.to_dict() for name, each in simulations.items()}
    if is_json:
        console.quiet = True
        print(json.dumps(figures, indent=1))  # noqa: T201 - the result of a command
    if len(simulations) > 1:
        show_comparison(simulations, spec, goal, console)
    else:
        for name, simulation in simulations.items():
            show(simulation, spec, name=name, goal=goal, console=console)
    try:
        if plot is not None:
            draw(simulations, plot, goal)
            console.print(f"plot: {plot}", highlight=False, markup=False)
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            console.print(f"figures: {json_file}", highlight=False, markup=False)
    except OSError as error:
        where = error.filename or " or ".join(str(each) for each in (plot, json_file) if each is not None)
        raise SpecError(f"{where} cannot be written: {error.strerror}; choose another file") from None
    return simulations


def _check_files(file: Path, plot: Path | None, json_file: Path | None) -> None:
    """Check that what is written has a folder, and replaces neither the mixture nor the other file."""
    taken = [file.resolve()]
    for written in (plot, json_file):
        if written is None:
            continue
        if not written.parent.is_dir():
            raise SpecError(f"there is no folder {str(written.parent)!r} to write {written.name!r} to; make it first")
        if written.resolve() in taken:
            what = "the mixture" if written.resolve() == taken[0] else "the plot"
            raise SpecError(f"json_file={str(written)!r} is {what} itself, and would replace it; choose another file")
        taken.append(written.resolve())
