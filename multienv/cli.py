"""Decides what the command `multienv` offers.

Flow: the shell → `main` → `commands`; heavy packages are imported only by the command that needs them.
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

_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one language model on many Open Reward Standard environments in a single TRL GRPO run.",
)

_RunFile = Annotated[Path, typer.Argument(metavar="FILE", help="The run file, YAML or TOML.")]
_Offline = Annotated[
    bool, typer.Option("--offline", help="Replicas for the presets' environments, a tiny model, no key, no network.")
]
_Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output instead.")]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - keeps --help fast

        typer.echo(version("multienv"))
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold what is no command's own."""


@app.command()
def train(
    file: _RunFile,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    offline: _Offline = False,
    is_json: _Json = False,
) -> None:
    """Train a model as a run file says. Under several processes: accelerate launch -m multienv train FILE."""
    from multienv.commands.train import run_train  # noqa: PLC0415 - keeps --help fast

    raise typer.Exit(run_train(file, resume=resume, offline=offline, console=Console(), is_json=is_json))


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
    errors = Console(stderr=True, highlight=False)
    try:
        app()
    except MultiEnvError as error:
        errors.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
        raise SystemExit(2) from error
    except KeyboardInterrupt as error:
        errors.print("interrupted")
        raise SystemExit(_INTERRUPTED) from error


if __name__ == "__main__":
    main()
