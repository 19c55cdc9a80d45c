"""Decides what `multienv plan` does: ask every environment, read an earlier record, plan, and say whether it can work.

Flow: `cli.plan` → `run_plan` → `planning.make_plan` → tables or JSON, and an exit status.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multienv.commands.plan_table import show_plan
from multienv.commands.planning import earlier_run, make_plan
from multienv.commands.screen import print_json, working
from multienv.reporting import read_episodes
from multienv.rewards import Balance

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec


def run_plan(  # noqa: PLR0913 - the options of the command
    spec: MultiEnvSpec,
    *,
    args: Any,
    num_batches: int = 5,
    record: Path | None = None,
    world_size: int = 1,
    balance: Balance = "none",
    is_batch_fixed: bool = False,
    console: Console,
    is_json: bool = False,
) -> int:
    """Say what a run with `MultiEnvGRPOTrainer` will do, before it does it.

    Args:
        spec: The mixture.
        args: TRL's configuration.
        num_batches: Batches whose mixture is shown.
        record: Output directory of an earlier run, or None.
        world_size: Processes that will train together.
        balance: As in `MultiEnvGRPOTrainer`.
        is_batch_fixed: True where `args` were given a `generation_batch_size`, which is of all processes together;
            otherwise a batch grows with them.
        console: Where it is shown.
        is_json: Show it as JSON instead.

    Returns:
        1 where the run cannot work, else 0.

    Raises:
        RecordError: There is no such record.
        SpecError: `generation_batch_size` cannot be cut into so many processes.
    """
    earlier = None if record is None else earlier_run(read_episodes(record))
    with working("asking every environment"):
        survey = spec.survey(args)
    with working("dealing batches"):
        plan = make_plan(
            spec,
            survey,
            args,
            num_batches=num_batches,
            earlier=earlier,
            num_processes=world_size,
            balance=balance,
            is_batch_fixed=is_batch_fixed,
        )
    if is_json:
        print_json(asdict(plan))
    else:
        show_plan(plan, console)
    return int(bool(plan.problems))
