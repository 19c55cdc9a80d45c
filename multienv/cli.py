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


_Environment = Annotated[
    str | None, typer.Option("--environment", "-e", help="Name of the environment; not needed where there is one only.")
]
_Task = Annotated[
    str | None,
    typer.Option("--task", "-t", help="Index of the task, or its task_id; by default the first that is chosen."),
]


@app.command()
def check(
    file: _RunFile,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts of each environment that are measured.")] = 1,
    offline: _Offline = False,
    is_json: _Json = False,
) -> None:
    """Ask every server, and say what would not work. The exit status is 1 where something would not."""
    from multienv.commands.check import run_check  # noqa: PLC0415 - keeps --help fast
    from multienv.commands.opened import opened  # noqa: PLC0415 - keeps --help fast

    with opened(file, offline=offline) as here:
        args, policy = here.args(), here.policy()
        status = run_check(
            here.spec,
            args=args,
            processing_class=policy.processing_class,
            max_model_tokens=policy.max_tokens,
            num_prompts=num_prompts,
            console=Console(),
            is_json=is_json,
        )
    raise typer.Exit(status)


@app.command()
def plan(
    file: _RunFile,
    num_batches: Annotated[int, typer.Option(min=1, help="Batches whose mixture is shown.")] = 5,
    record: Annotated[
        Path | None, typer.Option(help="Output directory of an earlier run, whose tool times and tokens are used.")
    ] = None,
    num_processes: Annotated[int, typer.Option(min=1, help="Processes that will train together.")] = 1,
    offline: _Offline = False,
    is_json: _Json = False,
) -> None:
    """Say what a run will do: its sessions, its mixture, its pace. The exit status is 1 where it cannot work."""
    from multienv.commands.opened import opened  # noqa: PLC0415 - keeps --help fast
    from multienv.commands.plan import run_plan  # noqa: PLC0415 - keeps --help fast

    with opened(file, offline=offline) as here:
        status = run_plan(
            here.spec,
            args=here.args(),
            num_batches=num_batches,
            record=record,
            world_size=num_processes,
            balance=here.run.spec.trainer.balance,
            is_batch_fixed="generation_batch_size" in here.run.spec.grpo,
            console=Console(),
            is_json=is_json,
        )
    raise typer.Exit(status)


@app.command()
def preview(
    file: _RunFile,
    environment: _Environment = None,
    task: _Task = None,
    is_plain: Annotated[bool, typer.Option("--plain", help="As TRL's own trainer would show it, instead.")] = False,
    offline: _Offline = False,
    is_json: _Json = False,
) -> None:
    """Show the exact prompt and tools of a task, as the model will get them."""
    from multienv.commands.opened import opened  # noqa: PLC0415 - keeps --help fast
    from multienv.commands.preview import run_preview  # noqa: PLC0415 - keeps --help fast
    from multienv.commands.tasks import environment_named  # noqa: PLC0415 - keeps --help fast

    with opened(file, offline=offline) as here:
        environment_named(here.spec, environment, task)
        policy = here.policy()
        status = run_preview(
            here.spec,
            environment=environment,
            task=task,
            processing_class=policy.processing_class,
            chat_template_kwargs=here.args().chat_template_kwargs,
            shows_schemas=here.run.spec.trainer.shows_schemas,
            is_plain=is_plain,
            console=Console(),
            is_json=is_json,
        )
    raise typer.Exit(status)


@app.command()
def play(
    file: _RunFile,
    environment: _Environment = None,
    task: _Task = None,
    record: Annotated[Path | None, typer.Option(help="Add the episode to this file, as a line of a record.")] = None,
    offline: _Offline = False,
    is_json: _Json = False,
) -> None:
    """Step an episode by hand, from the keyboard or a pipe."""
    from multienv.commands.opened import opened  # noqa: PLC0415 - keeps --help fast
    from multienv.commands.play import run_play  # noqa: PLC0415 - keeps --help fast

    with opened(file, offline=offline) as here:
        status = run_play(
            here.spec, environment=environment, task=task, record=record, console=Console(), is_json=is_json
        )
    raise typer.Exit(status)


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


@app.command("eval")
def evaluate(
    file: _RunFile,
    output: Annotated[
        Path | None, typer.Option(help="Directory of the record; one that is there is gone on with.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model at the endpoint, instead of the file's.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Endpoint, instead of the file's.")] = None,
    num_attempts: Annotated[
        int | None, typer.Option(min=1, help="Attempts at each task, instead of the file's.")
    ] = None,
    num_tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks of each environment, instead of the file's.")
    ] = None,
    offline: _Offline = False,
    is_json: _Json = False,
) -> None:
    """Say how good a model is: pass@k with intervals. The exit status is 1 where attempts are missing."""
    from multienv.commands.evaluate import run_eval  # noqa: PLC0415 - keeps --help fast

    given = {"model": model, "base_url": base_url, "num_attempts": num_attempts, "num_tasks": num_tasks}
    overrides = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(
        run_eval(file, output=output, overrides=overrides, offline=offline, console=Console(), is_json=is_json)
    )


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Directory of an evaluation.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Directory of another one.")],
    is_json: _Json = False,
) -> None:
    """Compare two evaluations task by task: what changed, and whether it is chance."""
    from multienv.commands.compare import run_compare  # noqa: PLC0415 - keeps --help fast

    raise typer.Exit(run_compare(before, after, console=Console(), is_json=is_json))


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Output directory of a training or an evaluation.")],
    output: Annotated[Path | None, typer.Option(help="The page; by default report.html in the directory.")] = None,
    max_episodes: Annotated[int, typer.Option(min=0, help="Most episodes to read on the page.")] = 2_000,
    is_json: _Json = False,
) -> None:
    """Make one HTML page of a run: curves, mixture, failures, and the episodes to read. It needs no network."""
    from multienv.commands.report import run_report  # noqa: PLC0415 - keeps --help fast

    raise typer.Exit(
        run_report(directory, output=output, max_episodes=max_episodes, console=Console(), is_json=is_json)
    )


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
    json_file: Annotated[Path | None, typer.Option("--json-file", help="Write all figures to this file.")] = None,
    is_json: _Json = False,
) -> None:
    """Play a mixture against simulated learners: no model, no server, no key."""
    from multienv.commands.screen import working  # noqa: PLC0415 - keeps --help fast
    from multienv.simulate.command import run_simulate  # noqa: PLC0415 - keeps --help fast

    with working("playing the mixture"):
        run_simulate(
            file,
            curricula=curriculum or (),
            seed=seed,
            num_batches=num_batches,
            goal=goal,
            plot=plot,
            json_file=json_file,
            is_json=is_json,
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
