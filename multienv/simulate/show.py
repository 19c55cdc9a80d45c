"""Decides how a simulation is shown on a terminal: mixture and success over the batches, the account, small plots.

Flow: `command` → `show` for one curriculum, `show_comparison` for several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from multienv.curriculum.simulation import Simulation
from multienv.reporting import account_table
from multienv.simulate.declaration import SimulationSpec

_NUM_ROWS: Final = 10
_NUM_COLUMNS: Final = 40
_PADDING: Final = 10
_PADDING_OF_COLUMN: Final = 2
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.:-=+*#"


def show(simulation: Simulation, spec: SimulationSpec, *, name: str, goal: float, console: Console) -> None:
    """Show how one curriculum went.

    Args:
        simulation: How it went.
        spec: What was simulated.
        name: Name of the curriculum.
        goal: The success that the worst environment is to reach.
        console: Where to.
    """
    for names in _abreast(list(simulation.final), console.width):
        console.print(_course(simulation, names, f"curriculum: {name}"))
    console.print(account_table(simulation.account.lines, "account"))
    console.print()
    console.print(_plots(simulation, console))
    console.print(reached(simulation, spec, goal), highlight=False, markup=False)


def show_comparison(simulations: Mapping[str, Simulation], spec: SimulationSpec, goal: float, console: Console) -> None:
    """Show how several curricula went, a row for each.

    Args:
        simulations: How they went, by name.
        spec: What was simulated.
        goal: The success that the worst environment is to reach.
        console: Where to.
    """
    table = _table(
        "curricula compared", "curriculum", f"all at {goal:.0%} at batch", "worst at the end", "mean", "signal"
    )
    for column in ("groups", "tokens"):
        table.add_column(column, justify="right", overflow="fold")
    for name, each in simulations.items():
        lines = each.account.lines.values()
        until, scored = each.batches_until(goal), sum(line.scored for line in lines)
        table.add_row(
            name,
            "never" if until is None else str(until),
            f"{each.worst} {each.final[each.worst]:.0%}",
            f"{sum(each.final.values()) / len(each.final):.0%}",
            f"{sum(line.nonzero for line in lines) / scored:.0%}" if scored else "-",
            f"{sum(line.dispatched for line in lines):,}",
            f"{sum(line.tokens for line in lines):,}",
        )
    console.print(table)
    for name, each in simulations.items():
        console.print(f"{name}: {reached(each, spec, goal)}", highlight=False, markup=False)


def reached(simulation: Simulation, spec: SimulationSpec, goal: float) -> str:
    """Say when the worst environment reached a success, or why it did not.

    Args:
        simulation: How the curriculum went.
        spec: What was simulated.
        goal: The success.
    """
    until = simulation.batches_until(goal)
    if until is not None:
        return f"the worst environment reaches {goal:.0%} at batch {until}"
    low = {name: each.learner.ceiling for name, each in spec.environments.items() if each.learner.ceiling < goal}
    if low:
        name = min(low, key=lambda one: low[one])
        return f"the worst environment cannot reach {goal:.0%}: the ceiling of {name!r} is {low[name]:.0%}"
    worst = simulation.worst
    return (
        f"the worst environment does not reach {goal:.0%} in {len(simulation.moments)} batches: {worst!r} is at "
        f"{simulation.final[worst]:.0%}"
    )


def sparkline(values: Sequence[float], characters: str = _BLOCKS, most: int = _NUM_COLUMNS) -> str:
    """Draw values from 0 to 1 as a line of characters, the mean of several where there are many.

    Args:
        values: The values.
        characters: From the lowest to the highest.
        most: Most characters of the line.

    Example:
        >>> sparkline([0.0, 0.25, 0.5, 1.0])
        '▁▃▅█'
    """
    width = min(most, len(values))
    edges = [len(values) * column // width for column in range(width + 1)] if width else [0]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    return "".join(characters[min(len(characters) - 1, int(mean * len(characters)))] for mean in means)


def _abreast(names: Sequence[str], width: int) -> Iterable[Sequence[str]]:
    """Cut names into those whose columns fit beside each other."""
    own = 2 * (_PADDING_OF_COLUMN + max(len("success"), *map(len, names)))
    num = max(1, (width - _PADDING) // own)
    return (names[start : start + num] for start in range(0, len(names), num))


def _course(simulation: Simulation, names: Sequence[str], title: str) -> Table:
    """Return about ten batches in a row each: share asked for, and success."""
    table = _table(title, "batch", *(f"{name}\n{figure}" for name in names for figure in ("share", "success")))
    num_batches = len(simulation.moments)
    numbers = sorted({round(num_batches * row / _NUM_ROWS) for row in range(_NUM_ROWS + 1)})
    for number in numbers:
        asked = {} if number == num_batches else simulation.moments[number].asked
        success = simulation.successes[number]
        cells = ((f"{asked.get(name, 0.0):.0%}" if asked else "", f"{success[name]:.0%}") for name in names)
        table.add_row(str(number), *(cell for pair in cells for cell in pair))
    return table


def _plots(simulation: Simulation, console: Console) -> Table:
    """Return a line of characters per environment for its success, and one for its share."""
    characters = _ASCII if console.options.ascii_only else _BLOCKS
    left = console.width - max(len("environment"), *map(len, simulation.final)) - _PADDING
    most = max(1, min(_NUM_COLUMNS, left // 2))
    table = _table("from the first batch to the last", "environment")
    for column in ("success", "share"):
        table.add_column(column, no_wrap=True)
    for name in simulation.final:
        success = sparkline([each[name] for each in simulation.successes], characters, most)
        share = sparkline([moment.asked.get(name, 0.0) for moment in simulation.moments], characters, most)
        table.add_row(name, success, share)
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table
