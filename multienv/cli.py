"""Decides what the command `multienv` offers.

Flow: the shell → `main` → a room; heavy packages are imported only by the command that needs them.
"""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from multienv.errors import MultiEnvError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one language model on many Open Reward Standard environments in a single TRL GRPO run.",
)


@app.callback()
def _root() -> None:
    """Keep the commands named even while there is one."""


@app.command()
def demo(
    max_steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model, its warm-up and the training.")] = 0,
    output_dir: Annotated[Path, typer.Option(help="Where the trained model, the record and the log go.")] = Path(
        "multienv-demo"
    ),
    curriculum: Annotated[
        str, typer.Option(help="Preset of the mixture: uniform, adaptive, weights, proportional, temperature, dataset.")
    ] = "uniform",
) -> None:
    """Train a tiny model on three environments, all made on the spot: no key, no download, no GPU."""
    from multienv.demo.run import run_demo  # noqa: PLC0415 - imports torch, transformers and trl

    run_demo(max_steps=max_steps, seed=seed, output_dir=output_dir, console=Console(), curriculum=curriculum)


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(help="The mixture, a YAML file such as examples/mixture.yaml.")],
    curriculum: Annotated[
        list[str] | None,
        typer.Option(
            help="weights, uniform, proportional, temperature or adaptive instead of the file's curriculum, which is "
            '"file" here. Give several to compare them.'
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, instead of the file's.")] = None,
    num_batches: Annotated[int | None, typer.Option(min=1, help="Number of batches, instead of the file's.")] = None,
    goal: Annotated[float, typer.Option(min=0, max=1, help="Success that the worst environment is to reach.")] = 0.8,
    plot: Annotated[Path | None, typer.Option(help="Draw success and shares to this .svg or .png file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Play a mixture against simulated learners: no model, no server, no key."""
    from multienv.simulate.command import run_simulate  # noqa: PLC0415 - keeps --help fast

    run_simulate(
        file,
        curricula=curriculum or (),
        seed=seed,
        num_batches=num_batches,
        goal=goal,
        plot=plot,
        json_file=json_file,
        console=Console(),
    )


def main() -> None:
    """Run the command line; an error of this library is shown as its message, without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may hold what the terminal's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except MultiEnvError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", style="bold red", markup=False)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
