"""Decides what is said about how often environments are trained on, before they are.

Flow: `run` → here, with the number of rows of each environment, the declared curriculum and the trainer's `args`.
"""

from __future__ import annotations

from collections.abc import Iterator

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.looks import Mixture
from multienv.checks.settings import TrainerFamily, family_of
from multienv.curriculum import base_weights, capped, normalised, scheduled
from multienv.specs import TaskRules


def check_curriculum(mixture: Mixture) -> Iterator[Finding]:
    """Say what of the curriculum acts in `MultiEnvGRPOTrainer` only."""
    spec = mixture.curriculum
    parts = {"schedule": spec.schedule, "stages": spec.stages, "adaptive": spec.adaptive}
    declared = [name for name, part in parts.items() if part]
    if any(own.task_rules != TaskRules() for own in mixture.specs.values()):
        declared.append("task_rules")
    if declared:
        yield Finding(
            Severity.NOTE,
            None,
            Code.CURRICULUM_NEEDS_TRAINER,
            f"declared, and acting in MultiEnvGRPOTrainer only: {', '.join(declared)}. For TRL's own trainers rows are "
            "repeated by the weights of the mixture, which hold in expectation.",
            "Use MultiEnvGRPOTrainer.",
        )


def check_sampling_weights(mixture: Mixture) -> Iterator[Finding]:
    """Say which sampling weights nothing reads, for the mixture has its weights from elsewhere."""
    spec = mixture.curriculum
    declared = [name for name, own in mixture.specs.items() if own.sampling_weight is not None]
    if spec.schedule is not None:
        source = "the schedule"
    elif spec.stages and all(stage.weights for stage in spec.stages):
        source = "the stages"
    elif spec.mixture != "weights":
        source = f"the mixture {spec.mixture!r}"
    else:
        return
    if declared:
        yield Finding(
            Severity.WARNING,
            None,
            Code.SAMPLING_WEIGHT_IDLE,
            f"sampling_weight of {', '.join(declared)} has no effect: {source} says how often environments are "
            "trained on.",
            "Leave it out, or leave the curriculum's weights out.",
        )


def check_parts(mixture: Mixture) -> Iterator[Finding]:
    """Say which parts of the curriculum have nothing to train on, or wait for what is not trained on."""
    if mixture.num_rows.keys() != mixture.specs.keys():
        return
    trained, spec = [name for name, num in mixture.num_rows.items() if num], mixture.curriculum
    points = {} if spec.schedule is None else spec.schedule.points
    parts = {f"step {step} of the schedule": weights for step, weights in points.items()}
    parts |= {f"stage {place}": stage.weights for place, stage in enumerate(spec.stages) if stage.weights}
    idle = [
        f"{what} trains on {', '.join(map(repr, weights))} only"
        for what, weights in parts.items()
        if not any(weights.get(name) for name in trained)
    ]
    for place, stage in enumerate(spec.stages):
        if missing := [name for name in stage.until if name not in trained]:
            idle.append(f"stage {place} waits for {missing[0]!r}")
    for what in idle if trained else ():
        yield Finding(
            Severity.ERROR,
            None,
            Code.DECLARATION_WRONG,
            f"{what}, of which no task is trained on; MultiEnvGRPOTrainer refuses it.",
            f"Name another environment there: {', '.join(trained)}.",
        )


def check_shares(mixture: Mixture) -> Iterator[Finding]:
    """Say whose share of a batch is less than a group, and whose is more than its sessions hold.

    It is the shares of the first step that are judged; nothing is known of what will be observed.
    """
    args, spec = mixture.args, mixture.curriculum
    if family_of(args) is not TrainerFamily.GRPO or spec.is_left_to_trl:
        return
    if mixture.num_rows.keys() != mixture.specs.keys():
        return
    num_groups = args.generation_batch_size // args.num_generations
    shares = _first_shares(mixture)
    if not any(shares.values()):
        return  # said already: nothing is trained on, or nothing at first
    num_ranks = max(args.world_size, 1)
    caps: dict[str, int] = {}
    for name, client in mixture.clients.items():
        if (limit := client.spec.limits.max_sessions) is not None and name in shares:
            caps[name] = num_ranks * (max(1, limit // num_ranks) // args.num_generations)
    for name, realised in capped(shares, num_groups, caps).items():
        asked = shares[name] * num_groups
        if name in caps and asked > caps[name] + 1e-9:
            yield Finding(
                Severity.ERROR if caps[name] == 0 else Severity.WARNING,
                name,
                Code.SAMPLING_CAPPED,
                f"its share of a batch is {asked:.1f} of {num_groups} groups, and limits.max_sessions="
                f"{mixture.clients[name].spec.limits.max_sessions} holds {caps[name]} groups of {args.num_generations} "
                "rollouts at once; MultiEnvGRPOTrainer gives the rest to the other environments.",
                f"Raise it to {num_ranks * args.num_generations * -int(-asked // num_ranks)} or more, or lower its "
                "sampling_weight.",
            )
        elif 0 < realised * num_groups < 1:
            yield Finding(
                Severity.NOTE,
                name,
                Code.SELDOM_SAMPLED,
                f"its share is {realised:.2g} of the mixture: one group every {1 / (realised * num_groups):.1f} "
                f"batches of {num_groups} groups.",
                "If that is too seldom, raise its sampling_weight or the batch size.",
            )


def _first_shares(mixture: Mixture) -> dict[str, float]:
    spec = mixture.curriculum
    num_rows = {
        name: num
        for name, num in mixture.num_rows.items()
        if num and not getattr(mixture.specs[name], "evaluation_only", False)
    }
    weights = {name: mixture.specs[name].sampling_weight or 1.0 for name in num_rows}
    shares = base_weights(spec, weights, num_rows)
    if spec.schedule is not None:
        shares = {name: scheduled(spec.schedule, 0).get(name, 0.0) for name in num_rows}
    elif spec.stages and spec.stages[0].weights:
        shares = {name: spec.stages[0].weights.get(name, 0.0) for name in num_rows}
    return normalised(shares) if any(shares.values()) else shares
