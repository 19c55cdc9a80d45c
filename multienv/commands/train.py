"""Decides what `multienv train` does: one GRPO run of a run file, shown while it goes, summed up at its end.

Flow: `cli.train` → `run_train` → `RunFile` → `MultiEnvGRPOTrainer` → the output directory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from multienv.commands.opened import unusable_model
from multienv.commands.screen import counted, notes, print_json, working
from multienv.errors import CheckpointError, MultiEnvError, SpecError
from multienv.files import write_whole
from multienv.reporting import account_table, plain, read_episodes, summary, summary_table
from multienv.runfile import RunFile, read_run
from multienv.runfile.arguments import refused

if TYPE_CHECKING:
    from trl import GRPOConfig, ModelConfig

    from multienv.meta import MultiEnvSpec

RUN_NAME: Final = "run.json"
"""The file in the output directory that says what was run."""

_PACKAGES: Final = ("multienv", "openreward", "trl", "transformers", "torch", "accelerate", "datasets")
_INTERRUPTED: Final = 130


def run_train(
    file: Path, *, resume: bool = False, offline: bool = False, console: Console, is_json: bool = False
) -> int:
    """Train a model as a run file says.

    Args:
        file: The run file.
        resume: Go on from the newest checkpoint in the output directory.
        offline: Train a tiny model on the presets' replicas.
        console: Where the figures are shown at the end; the first process's, of several.
        is_json: Show them as JSON instead.

    Returns:
        0, or 130 where Ctrl-C ended it.

    Raises:
        SpecError: The file cannot be right, or the model cannot be loaded.
        CheckpointError: There is no checkpoint to go on from.
        ServerError: A server cannot be reached before the training starts.
    """
    run = read_run(file, offline=offline)
    with working("loading torch and TRL"):
        config = run.grpo_config()
    _take_out_token(config)
    directory = Path(config.output_dir)
    checkpoint = _checkpoint(directory) if resume else config.resume_from_checkpoint
    if checkpoint is not None and not _is_whole(Path(checkpoint)):
        raise CheckpointError(
            f"resume_from_checkpoint={checkpoint!r} holds no checkpoint; give the folder of one, or --resume"
        )
    if checkpoint is not None and 0 < config.max_steps <= _step_of(Path(checkpoint)):
        notes().print(
            f"{checkpoint} is at max_steps={config.max_steps} already: nothing is left to train", markup=False
        )
    with _quietly(is_tiny=run.has_tiny_model), run.mixture() as spec:
        model, options = _model(run, spec, config)
        is_main = _write_what_runs(run, config, directory)
        account = _train(run, spec, config, model, options, checkpoint)
        if account is None:
            notes().print(
                f"interrupted; multienv train {file} --resume goes on from the newest checkpoint", markup=False
            )
            return _INTERRUPTED
        rules = {name: getattr(each, "reward", None) for name, each in spec.environments.items()}
    if is_main:
        _show(directory, rules, account, console, is_json=is_json)
    return 0


@contextmanager
def _quietly(*, is_tiny: bool) -> Iterator[None]:
    """Hold back what nobody here can act on; and keep a tiny model on one thread, where it is several times faster."""
    from multienv.tiny.surroundings import on_one_thread, quietly  # noqa: PLC0415 - imports torch

    with quietly(), on_one_thread() if is_tiny else nullcontext():
        yield


def _checkpoint(directory: Path) -> str:
    numbered = {
        int(path.name.rpartition("-")[2]): path for path in directory.glob("checkpoint-*[0-9]") if path.is_dir()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        if _is_whole(path):
            return str(path)
        notes().print(f"{path} was not written to its end, so it is left out", markup=False, soft_wrap=True)
    raise CheckpointError(
        f"{directory} holds no checkpoint to go on from; leave --resume out to begin, and set save_steps in grpo: "
        "to have checkpoints"
    )


def _is_whole(checkpoint: Path) -> bool:
    """Tell whether a checkpoint was written to its end: the trainer's state is the last of its files."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _step_of(checkpoint: Path) -> int:
    return int(json.loads((checkpoint / "trainer_state.json").read_bytes()).get("global_step", 0))


def _take_out_token(config: GRPOConfig) -> None:
    """Hand the hub's token to its client by the client's own variable: transformers saves its arguments in files."""
    if config.hub_token is not None:
        os.environ["HF_TOKEN"], config.hub_token = config.hub_token, None


def _model(run: RunFile, spec: MultiEnvSpec, config: GRPOConfig) -> tuple[str, dict[str, Any]]:
    """Return the model's name or folder, and what else the trainer is to know of it."""
    if run.has_tiny_model:
        return _tiny_model(run, spec, config), {}
    from transformers import AutoConfig  # noqa: PLC0415 - imports torch
    from trl import get_peft_config, get_quantization_config  # noqa: PLC0415 - imports torch

    described: ModelConfig = run.model_config()
    name = described.model_name_or_path
    try:
        with working(f"looking for the model {name}"):
            AutoConfig.from_pretrained(
                name, revision=described.model_revision, trust_remote_code=config.trust_remote_code
            )
        peft_config, quantization = get_peft_config(described), get_quantization_config(described)
    except (OSError, ValueError, ImportError) as error:
        raise unusable_model(run, error) from None
    config.model_init_kwargs = {
        "revision": described.model_revision,
        "attn_implementation": described.attn_implementation,
        "dtype": described.dtype,
        **(config.model_init_kwargs or {}),
    }
    return str(name), {"peft_config": peft_config, "quantization_config": quantization}


def _tiny_model(run: RunFile, spec: MultiEnvSpec, config: GRPOConfig) -> str:
    from multienv.offline import offline_policy  # noqa: PLC0415 - imports torch

    folder = Path(config.output_dir, "tiny-model")
    with counted() as on_progress:
        policy = offline_policy(spec, run.presets, seed=config.seed, on_progress=on_progress)
    policy.save(folder)
    return str(folder)


def _write_what_runs(run: RunFile, config: GRPOConfig, directory: Path) -> bool:
    """Write down what is run; tell whether this is the first process."""
    from accelerate import PartialState  # noqa: PLC0415 - imports torch

    if not (is_main := bool(PartialState().is_main_process)):
        return is_main
    document = plain(
        {
            "file": str(run.document.path),
            "values": run.document.values,
            "offline": run.is_offline,
            "presets": dict(run.presets),
            "grpo": config.to_sanitized_dict(),
            "num_processes": int(PartialState().num_processes),
            "packages": {package: version(package) for package in _PACKAGES},
            "python": platform.python_version(),
        },
    )
    try:
        write_whole(directory / RUN_NAME, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise SpecError(f"{directory} cannot be written: {error.strerror}; choose another output_dir") from None
    return is_main


def _train(
    run: RunFile, spec: MultiEnvSpec, config: GRPOConfig, model: str, options: Mapping[str, Any], checkpoint: Any
) -> Mapping[str, Any] | None:
    """Train, and save the model; return the account of the mixture, or None where Ctrl-C ended it."""
    from transformers import PrinterCallback, ProgressCallback  # noqa: PLC0415 - imports torch

    from multienv.commands.live_view import LiveView  # noqa: PLC0415 - imports torch
    from multienv.training import LogFile, MultiEnvGRPOTrainer  # noqa: PLC0415 - imports torch

    switches = dict(run.spec.trainer)
    try:
        with working("loading the model, and asking the servers"):
            trainer = MultiEnvGRPOTrainer(
                model,
                config,
                spec=spec,
                callbacks=[LogFile()],
                **{**switches, "renamed": switches["renamed"] or None},
                **options,
            )
    except MultiEnvError:
        raise
    except (
        ValueError,
        ImportError,
        KeyError,
        TypeError,
    ) as error:  # what TRL and transformers see first when a trainer is made
        raise refused("grpo", run.spec.grpo, run.document, "the trainer", error) from error
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    console = notes()
    view = LiveView(list(spec.environments), console)
    if console.is_terminal and trainer.accelerator.is_main_process:
        trainer.add_callback(view)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except KeyboardInterrupt:
        return None
    finally:
        view.stop()
    trainer.save_model()
    return {} if trainer.curriculum is None else trainer.curriculum.account.lines


def _show(
    directory: Path, rules: Mapping[str, Any], account: Mapping[str, Any], console: Console, *, is_json: bool
) -> None:
    episodes = read_episodes(directory)
    files = {
        "rollouts": "episodes.jsonl",
        "log": "log.jsonl",
        "what was run": RUN_NAME,
        "trained model": "",
    }
    if is_json:
        document = {
            "output_dir": str(directory),
            "environments": summary(episodes, rules),
            "account": {name: dataclasses.asdict(line) for name, line in account.items()},
            "files": {what: str(directory / name) for what, name in files.items()},
        }
        print_json(document)
        return
    console.print(summary_table(episodes, rules))
    if account:
        console.print(account_table(account, "the mixture in groups"))
    for what, name in files.items():
        console.print(f"{what}: {directory / name}", highlight=False, soft_wrap=True, markup=False)
    if dead := [name for name, each in summary(episodes, rules).items() if each["zero_signal_groups"] == 1.0]:
        told = f"no group of {', '.join(dead)} had two different rewards, so nothing was learnt there"
        console.print(told, style="yellow", highlight=False, markup=False)
    console.print(f"to read it all: multienv report {directory}", highlight=False, soft_wrap=True, markup=False)
