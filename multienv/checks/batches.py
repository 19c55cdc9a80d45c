"""Decides what is said about a batch: whether there are rows enough for one, and sessions enough for its rollouts.

Flow: `run` → here, with the number of rows of each environment and the trainer's `args`.
"""

from __future__ import annotations

from collections.abc import Iterator

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Mixture
from multienv.checks.settings import TrainerFamily, family_of


def check_rows(mixture: Mixture) -> Iterator[Finding]:
    """Say so if the dataset is too small for one batch.

    Source:
        `RepeatSampler`, as `GRPOTrainer._get_train_sampler` makes it: chunks of `generation_batch_size //
        num_generations` different rows, of which those that are not full are dropped.
    """
    args = mixture.args
    if family_of(args) is not TrainerFamily.GRPO or mixture.num_rows.keys() != mixture.specs.keys():
        return
    if mixture.repeats_rows:
        return
    num_rows, num_prompts = sum(mixture.num_rows.values()), args.generation_batch_size // args.num_generations
    if num_rows < num_prompts:
        yield Finding(
            Severity.ERROR,
            None,
            Code.TOO_FEW_ROWS,
            f"the mixture has {num_rows} rows, and each generation batch takes {num_prompts} different ones "
            f"(generation_batch_size={args.generation_batch_size}, num_generations={args.num_generations}); TRL's "
            "own trainer drops a batch that is not full, so nothing would be trained.",
            "Declare more tasks, lower per_device_train_batch_size or steps_per_generation, raise num_generations, or "
            "use MultiEnvGRPOTrainer, which plays a task more than once in a batch.",
        )


def check_session_limits(mixture: Mixture) -> Iterator[Finding]:
    """Say where a batch can need more sessions at once than a limit allows.

    TRL shuffles a batch out of all environments, so in the worst case as many of its rollouts are of one environment
    as its rows allow; `MultiEnvGRPOTrainer` gives none more than its sessions hold. The limits are shared among the
    processes of the run.
    """
    args = mixture.args
    if family_of(args) is not TrainerFamily.GRPO:
        return
    num_rollouts = args.per_device_train_batch_size * args.steps_per_generation
    for name, client in mixture.clients.items():
        rows = mixture.num_rows.get(name)
        need = num_rollouts if rows is None else min(num_rollouts, rows * args.num_generations)
        limit = client.spec.limits.max_sessions
        yield from _limited(
            mixture, Code.ENVIRONMENT_SESSION_LIMIT, name, ("limits.max_sessions", limit), need, num_rollouts
        )
    whole = ("the mixture's max_sessions", mixture.max_sessions)
    yield from _limited(mixture, Code.SESSION_LIMIT, None, whole, num_rollouts if mixture.clients else 0, num_rollouts)


def _limited(
    mixture: Mixture, code: Code, owner: str | None, limited: tuple[str, int | None], need: int, num_rollouts: int
) -> Iterator[Finding]:
    """Say so if a process's share of a limit is less than what it can need."""
    args, (what, limit) = mixture.args, limited
    num_ranks = max(args.world_size, 1)
    if limit is None or need <= max(1, limit // num_ranks):
        return
    is_certain, whose = owner is None and not mixture.foreign, "" if owner is None else " with TRL's own trainer"
    yield Finding(
        Severity.ERROR if is_certain else Severity.WARNING,
        owner,
        code,
        f"a batch has {num_rollouts} rollouts in each process (per_device_train_batch_size="
        f"{args.per_device_train_batch_size}, steps_per_generation={args.steps_per_generation}) and "
        f"{'needs' if is_certain else 'can need'} {need} sessions at once, and {what} is {limit}"
        f"{f' shared by {num_ranks} processes' if num_ranks > 1 else ''}; such a batch ends the run"
        f"{whose}.",
        f"Raise it to {need * num_ranks}, or lower per_device_train_batch_size or steps_per_generation.",
    )


def check_evaluation_limits(mixture: Mixture) -> Iterator[Finding]:
    """Say where a batch of the evaluation needs more sessions at once than a limit allows.

    TRL evaluates one environment after the other, so each needs its own batch only; no trainer plays it in parts.
    """
    args = mixture.args
    if family_of(args) is not TrainerFamily.GRPO:
        return
    num_ranks = max(args.world_size, 1)
    num_generations = args.num_generations_eval or args.num_generations
    for name, client in mixture.clients.items():
        if (chosen := client.spec.evaluation) is None:
            continue
        rows = chosen.num_tasks if chosen.indices is None else len(chosen.indices)
        batch = args.per_device_eval_batch_size
        need = batch if rows is None else min(batch, -(-rows * num_generations // num_ranks))
        limits = {
            "limits.max_sessions": client.spec.limits.max_sessions,
            "the mixture's max_sessions": mixture.max_sessions,
        }
        for what, limit in limits.items():
            if limit is not None and need > max(1, limit // num_ranks):
                yield Finding(
                    Severity.WARNING,
                    name,
                    Code.SESSION_LIMIT,
                    f"a batch of its evaluation can need {need} sessions at once in each process "
                    f"(per_device_eval_batch_size={batch}), and {what} is {limit}"
                    f"{f' shared by {num_ranks} processes' if num_ranks > 1 else ''}; such a batch ends the run.",
                    f"Raise it to {need * num_ranks}, or lower per_device_eval_batch_size.",
                )
