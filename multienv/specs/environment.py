"""Decides what a user declares about one environment: a frozen value, checked before any network.

Flow: user → `EnvSpec` → `MultiEnvSpec`, which hands it to `sessions` (where), `dataset` (what) and `rewards` (worth).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from multienv.errors import SpecError
from multienv.specs.choice import TaskChoice, check_choices, exclusions
from multienv.specs.curriculum import check_sampling_weight
from multienv.specs.declaration import sentence
from multienv.specs.limits import Limits
from multienv.specs.reward import RewardSpec
from multienv.specs.target import TargetKind, check_target, target_kind
from multienv.specs.task_rules import TaskRules

RewardFunction: TypeAlias = Callable[..., Any]
"""A TRL reward function, sync or async: keywords in, one `float | None` per row out."""

Secret: TypeAlias = SecretStr | tuple[SecretStr, tuple[str, ...]]
"""A secret, or a secret with the domains it may be sent to from inside the environment."""

_SECRET_FORMS = {
    "api_key": "a string",
    "secrets": "a mapping from a name to a value, or to (value, [allowed domains])",
    "env_overrides": "a mapping from the name of a variable to its value, a string",
}


def _indices(option: str, value: Any) -> Any:
    if value is None:
        return None
    accepted = "accepted: [0, 5, 13] or range(50, 100)"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise SpecError(f"{option}={value!r} is no sequence of ints; {accepted}")
    indices = []
    for item in value:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise SpecError(f"{option} holds {item!r}, which is no int; {accepted}")
        index = operator.index(item)
        if index < 0:
            raise SpecError(f"{option} holds {index}; a task index starts at 0, count from the end yourself")
        indices.append(index)
    if not indices:
        raise SpecError(f"{option} is empty; name at least one task, or leave {option} out for all of them")
    return tuple(indices)


def check_functions(value: Any, hint: str) -> tuple[Any, ...]:
    """Turn one reward function or a sequence of them into a tuple.

    Args:
        value: What the user gave.
        hint: What to do about something that is no function, for the error.

    Raises:
        SpecError: Something in it is not callable.
    """
    is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and not callable(value)
    functions = tuple(value) if is_several else (value,)
    for function in functions:
        if not callable(function):
            raise SpecError(f"reward_funcs holds {function!r}, which is not callable; accepted: functions. {hint}")
    return functions


def _functions(value: Any) -> Any:
    return check_functions(value, "A reward model is for all environments: give it to MultiEnvSpec(reward_funcs=...)")


class EnvSpec(BaseModel):
    """One environment of the mixture. Takes every option of TRL's `OpenRewardSpec` under the same name.

    Two options mean more than in TRL, on purpose: `env_name` really selects the environment on a server that holds
    several, and `api_key` given with a URL goes to that URL's host, and to no other.

    Attributes:
        target: Catalogue name (`"Eigent/SETA"`), URL of an ORS server, or an ORS `Environment` class, which then runs
            in this process without a server. May be given by position.
        num_tasks: Train on the first so many tasks of the split; None for all of them.
        split: The split to draw tasks from.
        indices: Train on these task indices, any sequence of ints; excludes `num_tasks`.
        exclude: Leave these out of the training, of the tasks chosen so far: task indices, and strings, each the
            `task_id` of a row or the value of a task spec's own `id`, `task_id`, `instance_id` or `name`.
        eval_split: The split to evaluate on; None for `split`, of which `eval_indices` are then kept from the training.
        eval_num_tasks: Evaluate on the first so many tasks of the split; None for all of them.
        eval_indices: Evaluate on these task indices; excludes `eval_num_tasks`.
        evaluation_only: Train on none of its tasks. Without an `eval_` option, `split`, `num_tasks` and `indices` say
            what is evaluated.
        api_key: Key for the target's own host. Default for catalogue names: the variable `OPENREWARD_API_KEY`.
        secrets: Secrets of the session, by name; a value may be `(value, [allowed domains])`. For catalogue targets
            without `secrets` the key is forwarded as the secret `api_key`, as TRL does.
        env_name: The environment on a server that holds several, without regard to case; by default its first one.
        variant: The SDK's word for the environment on a server that holds several; chooses the routes where `env_name`
            and it differ, and `env_name` is then the name of the deployment only.
        toolset: One of the SDK's toolsets (`"claude-code"`, `"codex"`, ...) that each session is opened with; its tools
            take the place of the environment's own of the same name.
        env_overrides: Environment variables of the environment's container, set when a session is created. Their values
            are treated as secrets.
        include_metadata: Promote the keys of the task specs to dataset columns, where their types agree.
        discover_task_tools: Learn the tools that only tasks have: those of each session when it opens, and of a few
            tasks before training.
        task_tools_discovery_index: The one task that is asked before training.
        system_prompt: System message of this environment's prompts, instead of the mixture's.
        reward_weight: What `MultiEnvGRPOTrainer` multiplies this environment's advantages by. With TRL's own trainer,
            the weight of its reward functions in `spec.reward_weights`.
        reward_funcs: The user's reward functions for this environment; each sees this environment's rows only.
        use_environment_reward: False leaves the reward that the environment itself gives out of the training.
        use_group_reward: Have the environment score whole groups (`score_group`), as one more reward function, called
            `<environment>/group`.
        limits: How many sessions, how long each phase and each episode may take, and how much is shown.
        reward: How the environment's own reward comes from an episode: reduction, what giving up counts, shaping.
        sampling_weight: How often it is trained on, in relation to the others; None for 1.0 where another one has one.
        task_rules: How its tasks follow one another: pools by success, gates, tasks set aside.

    Raises:
        SpecError: An option is unknown or cannot be right.

    Example:
        >>> EnvSpec("Eigent/SETA", num_tasks=64, reward_weight=2.0)
        EnvSpec(target='Eigent/SETA', num_tasks=64, reward_weight=2.0)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    target: Annotated[str | type, BeforeValidator(check_target)]
    num_tasks: Annotated[int, Field(ge=1, strict=True)] | None = None
    split: Annotated[str, Field(min_length=1)] = "train"
    indices: Annotated[tuple[int, ...] | None, BeforeValidator(functools.partial(_indices, "indices"))] = None
    exclude: Annotated[tuple[int | str, ...], BeforeValidator(exclusions)] = ()
    eval_split: Annotated[str, Field(min_length=1)] | None = None
    eval_num_tasks: Annotated[int, Field(ge=1, strict=True)] | None = None
    eval_indices: Annotated[tuple[int, ...] | None, BeforeValidator(functools.partial(_indices, "eval_indices"))] = None
    evaluation_only: StrictBool = False
    api_key: SecretStr | None = None
    secrets: Mapping[str, Secret] | None = None
    env_name: Annotated[str, Field(min_length=1)] | None = None
    variant: Annotated[str, Field(min_length=1)] | None = None
    toolset: Annotated[str, Field(min_length=1)] | None = None
    env_overrides: Mapping[str, SecretStr] | None = None
    include_metadata: StrictBool = True
    discover_task_tools: StrictBool = True
    task_tools_discovery_index: Annotated[int, Field(ge=0, strict=True)] | None = None
    system_prompt: str | None = None
    reward_weight: Annotated[float, Field(strict=True)] = 1.0
    reward_funcs: Annotated[tuple[RewardFunction, ...], BeforeValidator(_functions)] = ()
    use_environment_reward: StrictBool = True
    use_group_reward: StrictBool = False
    limits: Limits = Limits()
    reward: RewardSpec = RewardSpec()
    sampling_weight: Annotated[float, BeforeValidator(check_sampling_weight)] | None = None
    task_rules: TaskRules = TaskRules()

    def __init__(self, target: str | type, **options: Any) -> None:
        try:
            super().__init__(target=target, **options)
        except ValidationError as error:
            known = sorted(type(self).model_fields)
            sentences = dict.fromkeys(self._sentence(problem, known) for problem in error.errors())
            raise SpecError("EnvSpec: " + "; ".join(sentences)) from None

    @field_validator("api_key")
    @classmethod
    def _sendable(cls, value: SecretStr | None) -> SecretStr | None:
        key = "x" if value is None else value.get_secret_value()
        if not key.isascii() or not key.isprintable() or key != key.strip() or not key:
            raise ValueError(
                "api_key is empty, or holds white space or characters that cannot be sent in a header; strip it, for a "
                "key read from a file ends in a new line"
            )
        return value

    @field_validator("reward_weight")
    @classmethod
    def _finite(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError(f"reward_weight={value} is not finite; 1.0 leaves the rewards as they are")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> EnvSpec:
        if self.num_tasks is not None and self.indices is not None:
            raise ValueError(
                f"num_tasks={self.num_tasks} and indices exclude each other; give num_tasks for the first tasks of "
                "the split, or indices for chosen ones"
            )
        check_choices(self)
        if self.kind is TargetKind.IN_PROCESS:
            for option in ("api_key", "env_name", "variant", "env_overrides"):
                if getattr(self, option) is not None:
                    raise ValueError(f"{option} is for servers; an Environment class runs in this process without one")
        return self

    @classmethod
    def _sentence(cls, problem: Any, known: list[str]) -> str:
        """Turn one of pydantic's findings into a sentence with the value, unless the value is a secret."""
        option = str(problem["loc"][0]) if problem["loc"] else ""
        if option in _SECRET_FORMS and problem["type"] not in ("value_error", "extra_forbidden"):
            return f"{option} has the wrong form; accepted: {_SECRET_FORMS[option]}"
        return sentence(problem, known)

    @property
    def training(self) -> TaskChoice | None:
        """The tasks it trains on; None for an environment that is evaluated only."""
        return None if self.evaluation_only else TaskChoice(self.split, self.num_tasks, self.indices, self.exclude)

    @property
    def evaluation(self) -> TaskChoice | None:
        """The tasks it is evaluated on; None for an environment that is not evaluated."""
        option = "split" if self.eval_split is None else "eval_split"
        chosen = TaskChoice(self.eval_split or self.split, self.eval_num_tasks, self.eval_indices, split_option=option)
        if (self.eval_split, self.eval_num_tasks, self.eval_indices) != (None, None, None):
            return chosen
        return TaskChoice(self.split, self.num_tasks, self.indices) if self.evaluation_only else None

    @property
    def first_choice(self) -> TaskChoice:
        """The tasks it trains on, or else is evaluated on: those by which it is looked at before a run."""
        chosen = self.training or self.evaluation
        assert chosen is not None  # noqa: S101 - an environment that does not train is evaluated
        return chosen

    @property
    def served_name(self) -> str:
        """The declared environment on its server, folded; empty for the server's default."""
        return (self.variant or self.env_name or "").casefold()

    @property
    def kind(self) -> TargetKind:
        """How the environment is reached."""
        return target_kind(self.target)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show only what differs from the defaults; secrets are masked by their type."""
        for name, value in super().__repr_args__():
            if name is None or value != type(self).model_fields[name].default:
                yield name, value
