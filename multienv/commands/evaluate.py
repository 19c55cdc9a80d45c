"""Decides what `multienv eval` does with a run file: which policy plays, where the record goes, what is shown.

Flow: `cli.evaluate` → `run_eval` → `evaluate` → a table or JSON.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multienv.commands.opened import opened, unusable_model
from multienv.commands.screen import counted, notes, print_json, working
from multienv.errors import SpecError
from multienv.evaluation import EndpointPolicy, EvalSpec, LocalPolicy, Policy, evaluate, show_evaluation
from multienv.evaluation.statistics import stats

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.commands.opened import Opened


def run_eval(
    file: Path,
    *,
    output: Path | None,
    overrides: dict[str, Any],
    offline: bool = False,
    console: Console,
    is_json: bool = False,
) -> int:
    """Evaluate the model that a run file names on the file's environments.

    Args:
        file: The run file.
        output: Where the record goes; None for `evaluation` in the run's `output_dir`.
        overrides: Options of the section `evaluation` that win over the file's.
        offline: Evaluate the tiny model on the presets' replicas.
        console: Where the figures are shown.
        is_json: Show them as JSON instead.

    Returns:
        0, or 1 where infrastructure ended attempts, which are missing then.

    Raises:
        SpecError: The file cannot be right, or its model cannot be used.
        ServerError: A server or the endpoint cannot be reached.
    """
    stats()  # it is not missing when all attempts are made
    with opened(file, offline=offline) as here:
        declared = here.run.spec.evaluation
        settings = EvalSpec(**{**dict(declared), **overrides})
        directory = output or Path(str(here.run.spec.grpo.get("output_dir") or file.stem), "evaluation")
        policy = _policy(here, settings)
        told: list[tuple[int, int]] = []
        with counted() as on_progress, _on_one_thread() if here.run.has_tiny_model else nullcontext():

            def tell(done: int, total: int) -> None:
                told.append((done, total))
                on_progress("attempts", done, total)

            evaluation = evaluate(here.spec, policy, settings, directory, on_progress=tell)
    num_before, num_wanted = told[0]
    if num_before:
        notes().print(f"{num_before} of {num_wanted} attempts were in {directory} already", markup=False)
    if is_json:
        print_json({"directory": str(directory), **evaluation.to_dict()})
    else:
        show_evaluation(evaluation, console)
        console.print(
            f"attempts: {directory}; to read them: multienv report {directory}", highlight=False, markup=False
        )
    if evaluation.num_lost:
        notes().print(
            f"{evaluation.num_lost} attempts were ended by infrastructure; run it again to make them", markup=False
        )
        return 1
    return 0


def _on_one_thread() -> AbstractContextManager[None]:
    from multienv.tiny.surroundings import on_one_thread  # noqa: PLC0415 - imports torch

    return on_one_thread()


def _policy(here: Opened, settings: EvalSpec) -> Policy:
    if settings.model is not None:
        return EndpointPolicy(settings)
    if here.run.has_tiny_model:
        from multienv.offline import offline_policy  # noqa: PLC0415 - imports torch

        with counted() as on_progress:
            tiny = offline_policy(here.spec, here.run.presets, seed=here.args().seed, on_progress=on_progress)
        return _local("tiny model, untrained", tiny.model, tiny.tokenizer, here, settings)
    if "model_name_or_path" not in here.run.spec.model:
        raise SpecError(
            f"{here.run.document.path}: there is no model to evaluate; name one at an endpoint with evaluation: "
            "{model: ..., base_url: ...}, or one to be loaded here with model: {model_name_or_path: ...}"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - imports torch

    described = here.run.model_config()
    name = described.model_name_or_path
    options = {"revision": described.model_revision}
    try:
        with working(f"loading the model {name}"):
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
            model = AutoModelForCausalLM.from_pretrained(name, dtype=described.dtype, **options)
    except (OSError, ValueError, AttributeError) as error:  # an unknown dtype is an AttributeError of torch
        raise unusable_model(here.run, error) from None
    return _local(str(name), model, tokenizer, here, settings)


def _local(name: str, model: Any, tokenizer: Any, here: Opened, settings: EvalSpec) -> LocalPolicy:
    import torch  # noqa: PLC0415 - heavy

    if torch.cuda.is_available():
        model = model.to("cuda")
    here.spec.present_to(tokenizer, has_conversations=True)
    return LocalPolicy(name, model, tokenizer, settings, here.args().chat_template_kwargs)
