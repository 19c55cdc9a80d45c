"""Decides what is said about rewards before any is given: weights that act on nothing, environments nothing scores.

Flow: `run` → here, with the declarations and the trainer's `args`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multienv.checks.findings import Code, Finding, Severity
from multienv.checks.foreign import known_class
from multienv.checks.looks import Mixture
from multienv.checks.settings import TrainerFamily, family_of
from multienv.errors import SpecError
from multienv.rewards import acts_under, effective_shares, weights_notice
from multienv.router.foreign import owns_reward
from multienv.specs import EnvSpec, ForeignSpec


def check_weights(mixture: Mixture) -> Iterator[Finding]:
    """Say so if reward weights do nothing under these settings."""
    weights = {name: spec.reward_weight for name, spec in mixture.specs.items()}
    notice = weights_notice(weights)
    family, args = family_of(mixture.args), mixture.args
    if notice is None or family in (TrainerFamily.WITHOUT, TrainerFamily.UNKNOWN):
        return
    if family is TrainerFamily.NOT_GIVEN:
        yield Finding(
            Severity.NOTE, None, Code.REWARD_WEIGHT_IDLE, f"{notice}.", "Call check(args) with the run's own."
        )
        return
    listed = ", ".join(f"{name}={weight:g}" for name, weight in weights.items() if weight != 1.0)
    if family is TrainerFamily.ASYNC:
        message = f"reward_weight ({listed}) is not used: AsyncGRPOTrainer adds up all rewards with weight 1."
        yield Finding(Severity.WARNING, None, Code.REWARD_WEIGHT_IDLE, message, "Scale the rewards themselves.")
    elif args.reward_weights is None:
        message = (
            f"reward_weight ({listed}) is not used by TRL's own trainer: args has no reward_weights."
            f"{_shares(mixture, weights)}"
        )
        fix = (
            "Train with MultiEnvGRPOTrainer, which applies it by itself and takes no spec.reward_weights; or pass "
            "GRPOConfig(reward_weights=spec.reward_weights, ...) to TRL's own."
        )
        yield Finding(Severity.WARNING, None, Code.REWARD_WEIGHT_IDLE, message, fix)
    elif not acts_under(args):
        yield Finding(
            Severity.WARNING,
            None,
            Code.REWARD_WEIGHT_IDLE,
            f'reward_weight ({listed}) has next to no effect in TRL\'s own trainer with scale_rewards="group": a group '
            f"holds one environment, and its weight is divided out again.{_shares(mixture, weights)}",
            'Set scale_rewards="batch" or "none", or multi_objective_aggregation="normalize_then_sum"; or train with '
            "MultiEnvGRPOTrainer, and leave reward_weights out.",
        )


def _shares(mixture: Mixture, weights: Mapping[str, float]) -> str:
    """Say what the gradient's shares are without the weights and with them; nothing where they cannot be known."""
    args, rows = mixture.args, mixture.num_rows
    if rows.keys() != weights.keys():
        return ""
    length = args.max_completion_length or 1
    lengths = dict.fromkeys(weights, length)
    try:
        idle, acting = (
            effective_shares(factors, rows, lengths, args.loss_type)
            for factors in (dict.fromkeys(weights, 1.0), weights)
        )
    except SpecError:  # a loss type that is not known here
        return ""
    return (
        f" If every completion has max_completion_length={args.max_completion_length}, the shares of the gradient "
        f"are {_percent(idle)} whatever the weights are; with weights that act, {_percent(acting)}."
    )


def _percent(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def check_reward_sources(mixture: Mixture) -> Iterator[Finding]:
    """Name the environments that nothing scores."""
    if mixture.has_shared_rewards:
        return
    fix = "Give it reward_funcs, or leave use_environment_reward at True; a TRL environment may have get_reward."
    unscored = [name for name, spec in mixture.specs.items() if not _is_scored(spec)]
    if len(unscored) == len(mixture.specs):
        yield Finding(
            Severity.ERROR,
            None,
            Code.NO_REWARD,
            "nothing scores any rollout, so nothing can be learnt: no reward functions, and no used reward of its own, "
            f"in {', '.join(unscored)}.",
            fix,
        )
        return
    for name in unscored:
        yield Finding(
            Severity.NOTE,
            name,
            Code.NO_REWARD,
            "nothing scores its rollouts: it has no reward functions, and no reward of its own is used.",
            fix,
        )


def _is_scored(spec: EnvSpec | ForeignSpec) -> bool:
    """Tell whether an environment is scored; True where that can be known only by making or reading it."""
    if isinstance(spec, EnvSpec):
        return spec.use_environment_reward or spec.use_group_reward or bool(spec.reward_funcs)
    cls = known_class(spec)
    return cls is None or owns_reward(cls) or bool(spec.__dict__.get("reward_funcs", True))
