"""Decides what is said in words of a plan: what keeps the run from working, what is assumed, what is not known.

Flow: `plan` → here → the sentences of a `Plan`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from multienv.checks import OF_PLAIN_TRAINERS, Code, Finding, Severity, Survey
from multienv.commands.planning.earlier import Earlier
from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.rewards import Balance, check_applied_once, check_balance
from multienv.specs import EnvSpec, TaskRules
from multienv.training.stream import BatchSize
from multienv.training.whole_groups import check_whole_groups

_SAID_BY_THE_BATCHES: Final = frozenset({*OF_PLAIN_TRAINERS, Code.SAMPLING_CAPPED, Code.SESSION_LIMIT})
"""What is no problem of this trainer's, or is one that it says in its own words when batches are dealt."""


def problems_before(
    spec: MultiEnvSpec, survey: Survey, args: Any, size: BatchSize, num_rollouts: int, balance: Balance
) -> Iterator[str]:
    """Say what keeps a run from working before any batch is dealt, in the trainer's own words where it would refuse.

    Args:
        spec: The mixture.
        survey: What its environments answered.
        args: TRL's configuration.
        size: How large the batches are.
        num_rollouts: Rollouts of a batch, of all processes.
        balance: As in `MultiEnvGRPOTrainer`.
    """
    for found in survey.findings:
        if found.severity is Severity.ERROR and found.code not in _SAID_BY_THE_BATCHES:
            yield _sentence(found)
    for check in (_check_balance, _check_weights, _check_groups):
        try:
            check(spec, args, balance)
        except SpecError as error:
            yield str(error)
    if num_rollouts % size.num_generations:
        yield (
            f"a batch has {num_rollouts} rollouts on {size.num_ranks} processes, which is no multiple of "
            f"num_generations={size.num_generations}; change per_device_train_batch_size, steps_per_generation, or the "
            "number of processes"
        )


def _sentence(found: Finding) -> str:
    if found.environment is None:
        return found.message
    return f"{found.environment}: {found.message.removeprefix(f'environment {found.environment!r}: ')}"


def _check_balance(_spec: MultiEnvSpec, args: Any, balance: Balance) -> None:
    check_balance(balance, args.loss_type)


def _check_weights(spec: MultiEnvSpec, args: Any, _balance: Balance) -> None:
    check_applied_once(args.reward_weights, spec.reward_weights)


def _check_groups(spec: MultiEnvSpec, args: Any, _balance: Balance) -> None:
    check_whole_groups(spec, args, is_evaluated=args.eval_strategy != "no")


def too_few(num_rows: int, size: BatchSize) -> str:
    """Say that TRL's own sampler has too few rows for one batch."""
    return (
        f"the mixture has {num_rows} rows, TRL's own sampler takes {size.num_groups} different ones for each batch, "
        "and drops one that is not full, so nothing would be trained; declare more tasks, or another curriculum than "
        "'dataset'"
    )


def assumed(
    spec: MultiEnvSpec, args: Any, earlier: Earlier | None, *, is_curriculum: bool, num_dealt: int, num_batches: int
) -> Iterator[str]:
    """Say what is taken for granted.

    Args:
        spec: The mixture.
        args: TRL's configuration.
        earlier: What an earlier record says.
        is_curriculum: False where TRL's own sampler draws the rows.
        num_dealt: Batches that were dealt.
        num_batches: Batches of the run.
    """
    yield "every session opens at the first try, and evaluations are not counted"
    learns = [what for what in ("adaptive", "stages") if getattr(spec.curriculum, what)]
    learns += [f"task_rules of {name}" for name, own in spec.environments.items() if _follows_success(own.task_rules)]
    if is_curriculum and learns:
        yield f"nothing is learnt: what follows from outcomes ({', '.join(learns)}) stays as it is at the beginning"
    if num_dealt < num_batches:
        yield f"what comes after the first {num_dealt:,} batches is like them"
    recorded = "; in the column beside it, those of the record" if earlier is not None else ""
    yield (
        f"for shares of the gradient: advantages of one size, and completions of max_completion_length="
        f"{args.max_completion_length}{recorded}"
    )
    if earlier is not None and earlier.rest_s is not None:
        yield (
            f"tools and the rest take as long as in the {earlier.num_batches} batches of the record, "
            f"{earlier.rollouts_per_batch:g} rollouts each, with the model and the machine of that run"
        )


def _follows_success(rules: TaskRules) -> bool:
    """Tell whether which tasks come depends on how they went; tasks whose sessions break are not thought of."""
    return rules.has_pools or rules.gate_after is not None


def unknown(
    spec: MultiEnvSpec, earlier: Earlier | None, opened: Mapping[str, float] | Collection[str]
) -> Iterator[str]:
    """Say what is not known.

    Args:
        spec: The mixture.
        earlier: What an earlier record says.
        opened: The environments of which a session could be opened.
    """
    if earlier is None:
        yield "how long the model takes to generate and to learn: it is not loaded here"
        yield "seconds in tools, and tokens of a completion: give the directory of an earlier run's record"
    else:
        if earlier.rest_s is None:
            yield "how long the model takes: the record has no two training batches that follow each other"
        if missing := [name for name in spec.environments if name not in earlier.environments]:
            yield f"what rollouts of {', '.join(missing)} take: the record has none that count"
    ors = [name for name, declared in spec.environments.items() if isinstance(declared, EnvSpec)]
    if missing := [name for name in ors if name not in opened]:
        yield f"how long a session of {', '.join(missing)} takes to open: none could be opened"
    if foreign := [name for name in spec.environments if name not in ors]:
        yield f"how long {', '.join(foreign)} takes to reset: it knows nothing of ORS"
