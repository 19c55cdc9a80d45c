"""Decides how simulations are drawn: success and shares over the batches, one column per curriculum.

Flow: `command` → `check_plot` before anything is simulated → `draw` → a picture file.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from multienv.curriculum.simulation import Simulation
from multienv.errors import MultiEnvError, SpecError

_SUFFIXES: Final = (".svg", ".png")
_MOST_INSIDE: Final = 10
_INCHES_OF_LETTER: Final = 0.1
_INCHES_OF_LINE: Final = 0.25


def check_plot(path: Path) -> None:
    """Check that a picture can be drawn and where it is to go.

    Raises:
        SpecError: It has another suffix, or there is no such folder.
        MultiEnvError: matplotlib is not installed, or broken.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise SpecError(f"plot={str(path)!r} ends in {path.suffix!r}; accepted: {', '.join(_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MultiEnvError(
            "drawing a plot needs matplotlib, which is not installed; install it with: pip install 'multienv[plots]'"
        )
    try:
        importlib.import_module("matplotlib.figure")
    except Exception as error:  # noqa: BLE001 - whatever it raises while it is imported
        raise MultiEnvError(
            f"drawing a plot needs matplotlib, which cannot be imported: {error}; mend it, or leave the plot out"
        ) from None


def draw(simulations: Mapping[str, Simulation], path: Path, goal: float) -> None:
    """Draw simulations to a file; the same ones give the same SVG.

    Args:
        simulations: How curricula went, by name.
        path: The file; its suffix says which format.
        goal: The success that is marked.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    names = list(next(iter(simulations.values())).final)
    is_crowded = len(names) > _MOST_INSIDE
    width, height = 1.5 + 4.5 * len(simulations), 6.0
    if is_crowded:
        width, height = width + 1 + _INCHES_OF_LETTER * max(map(len, names)), max(height, _INCHES_OF_LINE * len(names))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(2, len(simulations), sharex=True, sharey="row", squeeze=False)
    for column, (title, simulation) in enumerate(simulations.items()):
        success, share = axes[0][column], axes[1][column]
        for name in simulation.final:
            success.plot([each[name] for each in simulation.successes], label=name)
            share.step(
                range(len(simulation.moments)),
                [moment.asked.get(name, 0.0) for moment in simulation.moments],
                where="post",
            )
        success.axhline(goal, color="grey", linewidth=0.8, linestyle="--")
        until = simulation.batches_until(goal)
        success.set_title(title if until is None else f"{title}: all at {goal:.0%} at batch {until}")
        share.set_xlabel("batch")
        for each in (success, share):
            each.set_ylim(0, 1.02)
    axes[0][0].set_ylabel("success")
    axes[1][0].set_ylabel("share asked for")
    if is_crowded:
        figure.legend(*axes[0][-1].get_legend_handles_labels(), loc="outside right upper")
    else:
        axes[0][-1].legend(loc="lower right")
    is_svg = path.suffix.lower() == ".svg"
    with mpl.rc_context({"svg.hashsalt": "multienv"}):
        figure.savefig(path, metadata={"Date": None} if is_svg else None)
