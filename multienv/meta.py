"""Decides how the rooms are joined: the composition root a user builds, and the slots of a TRL trainer read off it.

Flow: the user's mapping → `specs` → here → `train_dataset`, `environment_factory`, `reward_funcs` → `GRPOTrainer`.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from multienv.catalogue import Catalogue, MixtureTasks
from multienv.checks import Finding, Look, Mixture, Survey, ToolsReport, make_report, run_checks
from multienv.curriculum import repeated_rows
from multienv.errors import ServerError, SpecError
from multienv.live import LiveMixture
from multienv.manifest import ManifestChanges
from multienv.pinning import Pins
from multienv.reward_slots import RewardSlots
from multienv.rewards import (
    Columns,
    several_functions,
)
from multienv.router import (
    EnvironmentAdapter,
    ForeignAdapter,
    MetaEnvironment,
    Presentation,
    Route,
    check_policy,
    make_factory,
    make_meta_factory,
    reserved_texts,
)
from multienv.sessions import EnvironmentClient
from multienv.specs import (
    CurriculumSpec,
    EnvSpec,
    ForeignSpec,
    RewardFunction,
    declare,
    declare_curriculum,
)
from multienv.types import Column, ToolListing

if TYPE_CHECKING:
    from datasets import Dataset

_DECLARED = (
    "_specs",
    "_shared",
    "_system_prompt",
    "_max_sessions",
    "_max_concurrent_starts",
    "_curriculum",
    "_presentation",
    "_pins",
)


T = TypeVar("T")


class MultiEnvSpec:
    """Several ORS environments as one value, read off by a TRL trainer like an `OpenRewardSpec`.

    Lazy: nothing is fetched before first use, and each thing is fetched once. A context manager: leaving it closes
    every session. Sessions still open when the interpreter exits are closed then.

    Args:
        environments: From a unique name to an `EnvSpec`, a target (catalogue name, URL, `Environment` class), a TRL
            `OpenRewardSpec`, whose parameters are taken over, or an environment of another making: a `ForeignSpec`, an
            object with TRL's three attributes such as `HarborSpec`, or a TRL environment class.
        reward_funcs: The user's reward functions for all environments: a TRL reward function, a reward model or the
            name of one, or a sequence of these.
        system_prompt: System message of every prompt, unless an `EnvSpec` has its own.
        max_sessions: Most sessions of all environments open at once; None for no limit.
        max_concurrent_starts: Most sessions of all environments being opened at once; None for no limit.
        curriculum: Which environment is trained on how often: a `CurriculumSpec`, or the name of a preset: "weights",
            "uniform", "proportional", "temperature", "adaptive", or "dataset" for TRL's own sampler. None is "weights"
            in `MultiEnvGRPOTrainer`; for TRL's own trainer it leaves each task in one row, unless an environment has a
            `sampling_weight`.
        manifest: Path of a manifest: train on its tasks that are still there; see `write_manifest`.

    Attributes:
        live: What of it lives in this process: connections, sessions, and the limits on them.

    Raises:
        SpecError: The declaration cannot be right; nothing was fetched.
        OverlappingTasksError: Two environments would train on the same task.

    Example:
        >>> spec = MultiEnvSpec({"seta": EnvSpec("Eigent/SETA", num_tasks=64), "swe": "nebius/SWE-rebench-V2"})
        >>> spec
        MultiEnvSpec(seta, swe)
        >>> [function.__name__ for function in spec.reward_funcs]
        ['seta', 'swe']
    """

    def __init__(
        self,
        environments: Mapping[str, Any],
        *,
        reward_funcs: RewardFunction | str | Sequence[RewardFunction | str] = (),
        system_prompt: str | None = None,
        max_sessions: int | None = None,
        max_concurrent_starts: int | None = None,
        curriculum: CurriculumSpec | str | None = None,
        manifest: str | os.PathLike[str] | None = None,
    ) -> None:
        self._specs = declare(environments)
        self._pins = Pins.read(manifest)
        self._shared = several_functions(reward_funcs)
        if system_prompt is not None and not isinstance(system_prompt, str):
            raise SpecError(f"system_prompt is of type {type(system_prompt).__name__}; accepted: a string, or None")
        self._system_prompt = system_prompt
        for limit, value in (("max_sessions", max_sessions), ("max_concurrent_starts", max_concurrent_starts)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SpecError(f"{limit}={value!r}; accepted: an int from 1, or None for no limit")
        self._max_sessions, self._max_concurrent_starts = max_sessions, max_concurrent_starts
        self._curriculum = declare_curriculum(curriculum, self._specs)
        self._presentation = Presentation()
        self._made: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        """Make what lives in this process only."""
        self.live = LiveMixture(
            self._specs, max_sessions=self._max_sessions, max_concurrent_starts=self._max_concurrent_starts
        )
        self._slots = RewardSlots(self._specs, self._shared, self.live, self._columns)
        self._lock = threading.RLock()
        if not self.live.foreign:  # whose attributes are read when they are needed
            _ = self._rewards

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """Make something at its first use, and keep it.

        Python 3.11's `cached_property` holds one lock for all instances while it makes a value: a slow server of one
        spec would hold up another spec.
        """
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            made: T = self._made[name]
            return made

    @property
    def environments(self) -> Mapping[str, EnvSpec | ForeignSpec]:
        """The declarations by name, in order."""
        return dict(self._specs)

    @property
    def curriculum(self) -> CurriculumSpec:
        """Which environment is trained on how often, as declared, or by default."""
        if self._curriculum is not None:
            return self._curriculum
        return CurriculumSpec()

    @property
    def has_declared_mixture(self) -> bool:
        """True where the user said how often an environment is trained on."""
        return self._curriculum is not None or any(spec.sampling_weight is not None for spec in self._specs.values())

    @property
    def train_dataset(self) -> Dataset:
        """The tasks of all environments that train, one after the other; TRL shuffles them.

        Where a mixture was declared, rows are repeated until each environment has its share of them, and mixed. Drawn
        by TRL's own trainer, a batch then holds the shares in expectation; with `shuffle_dataset=False`, exactly.

        Columns: those of `multienv.types.Column`, and the metadata that can stand beside them.

        Raises:
            SpecError: A declaration does not fit its server: split, index, empty list, overlapping tasks.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        return self._once("train_dataset", self._repeat_tasks)

    def _repeat_tasks(self) -> Dataset:
        tasks = self.task_dataset
        if not self.has_declared_mixture:
            return tasks
        weights = {name: spec.sampling_weight or 1.0 for name, spec in self._specs.items()}
        return tasks.select(repeated_rows(tasks[Column.ENVIRONMENT], self.curriculum, weights))

    def is_repeated(self, rows: Any) -> bool:
        """Tell whether rows are the `train_dataset` that was read off this spec."""
        return self._made.get("train_dataset") is rows

    @property
    def task_dataset(self) -> Dataset:
        """The tasks of all environments that train, each in one row: what `MultiEnvGRPOTrainer` draws from.

        Raises:
            SpecError: A declaration does not fit its server: split, index, empty list, overlapping tasks.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        tasks = self._tasks()
        self._catalogue.check_trains(tasks)
        return tasks.rows

    @property
    def eval_dataset(self) -> dict[str, Dataset]:
        """The tasks to evaluate on, by environment, with the columns of `train_dataset`; empty if none is declared."""
        return dict(self._tasks().evaluation) if self._catalogue.is_evaluated() else {}

    @property
    def environment_factory(self) -> dict[str, type[EnvironmentAdapter | ForeignAdapter]]:
        """The factory of each environment's adapters, by name: what TRL takes for several environments.

        Raises:
            SpecError: A foreign factory makes no TRL environment.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        return self._once("environment_factory", self._make_factories)

    def _make_factories(self) -> dict[str, type[EnvironmentAdapter | ForeignAdapter]]:
        own = self._ors_factories
        return {name: own[name] if name in own else self.live.foreign[name].factory for name in self._specs}

    @property
    def _ors_factories(self) -> dict[str, type[EnvironmentAdapter]]:
        return self._once("ors_factories", self._make_ors_factories)

    def _make_ors_factories(self) -> dict[str, type[EnvironmentAdapter]]:
        listings = self.live.everywhere(EnvironmentClient.fetch_tools)
        return {name: make_factory(self.route(name, listings[name])) for name in self.live.clients}

    def route(self, name: str, listing: ToolListing) -> Route:
        """Return what the router knows of an environment.

        Args:
            name: The environment.
            listing: Its tools as published.

        Raises:
            SpecError: It is to score groups, and cannot.
        """
        return self.live.route(name, listing, self._presentation)

    @property
    def meta_environment_factory(self) -> type[MetaEnvironment]:
        """One factory for all environments, for trainers that accept a single callable; it routes on `reset`.

        A tool whose name two environments have is called `<environment>__<tool>`.

        Raises:
            SpecError: The mixture holds foreign environments.
            ServerError: A server cannot be reached, or answers wrongly.
        """
        if self.live.foreign:
            raise SpecError(
                f"meta_environment_factory cannot stand for {', '.join(map(repr, self.live.foreign))}, which "
                "ORS knows nothing of; give the trainer environment_factory, or leave them out of the mixture"
            )
        return self._once("meta_environment_factory", lambda: make_meta_factory(self._ors_factories))

    @property
    def reward_funcs(self) -> list[Any]:
        """The reward functions, in fixed order.

        For each environment its own, named after it, then the user's for that environment, named
        `<environment>/<function>`; then the shared ones. A new list each time, for TRL writes into it.
        """
        return [function for function, _ in self._rewards]

    @property
    def reward_weights(self) -> list[float]:
        """The matching weights for `GRPOConfig(reward_weights=...)`, exactly as many as `reward_funcs`."""
        return [weight for _, weight in self._rewards]

    @property
    def reward_func(self) -> Callable[..., list[float | None]]:
        """One reward function over all rows: each row its own environment's reward.

        For a foreign environment that is the number in its attribute `reward`, if it has one.
        """
        return self._once("reward_func", self._slots.make_one)

    def trainer_kwargs(self) -> dict[str, Any]:
        """Return the slots of a TRL trainer by their names there; `eval_dataset` where there is something to evaluate.

        Example:
            `GRPOTrainer(model=..., args=..., **spec.trainer_kwargs())`
        """
        evaluation = {"eval_dataset": evaluated} if (evaluated := self.eval_dataset) else {}
        return {
            "train_dataset": self.train_dataset,
            "environment_factory": self.environment_factory,
            "reward_funcs": self.reward_funcs,
            **evaluation,
        }

    def async_trainer_kwargs(self) -> dict[str, Any]:
        """Return the slots of TRL's `AsyncGRPOTrainer` by their names there.

        Everything here pickles into that trainer's rollout process, where the spec starts anew. Rows are those of
        `train_dataset`, interleaved in proportion to how many each environment has, for it does not shuffle. Each
        environment's adapters own their reward, logged under the environment's name; `reward_weight` is not used. The
        users' reward functions see `prompts`, `completions`, `completion_ids` and the columns, but no `environments`,
        `trainer_state`, `log_extra` or `log_metric`; one that cannot do without is refused. TRL opens one session after
        the other, unless `multienv.training.make_concurrent` is given the trainer.

        Raises:
            SpecError: A declaration does not fit its server, or a reward function cannot be used there.
            ServerError: A server cannot be reached, or answers wrongly.

        Example:
            `trainer = make_concurrent(AsyncGRPOTrainer(model, args=args, **spec.async_trainer_kwargs()))`
        """
        # That room lies above this one and loads TRL; whoever calls this has loaded it already.
        kwargs: dict[str, Any] = importlib.import_module("multienv.training.async_kwargs").trainer_kwargs(self)
        return kwargs

    def write_manifest(self, path: str | os.PathLike[str]) -> None:
        """Write down which tasks are trained and evaluated on, for `MultiEnvSpec(manifest=path)`; no key is in it."""
        self._tasks().manifest.write(path)

    def compare_manifest(self, path: str | os.PathLike[str]) -> ManifestChanges:
        """Say how the declared tasks differ from a manifest's; false where they do not.

        Raises:
            SpecError: There is no manifest that can be read.
        """
        return self._catalogue.compare(self._tasks(), path)

    def check(self, args: Any = None) -> list[Finding]:
        """Say what could go wrong in a run, before it does; no trainer is needed, and nothing is raised.

        Each ORS environment is asked for its tools, splits and secrets, and one session is opened for its first
        declared task, and closed; a foreign one is asked nothing. `docs/checks.md` lists what can be found.

        Args:
            args: The trainer's configuration, such as a `GRPOConfig`; None for what can be said without.

        Returns:
            The findings, errors first.
        """
        return list(self.survey(args).findings)

    def survey(self, args: Any = None, *, num_prompts: int = 1, max_model_tokens: int | None = None) -> Survey:
        """Look at every environment, and say what could go wrong; see `check`.

        Args:
            args: The trainer's configuration, or None.
            num_prompts: Tasks of each environment that a session is opened for, to see their prompts.
            max_model_tokens: Most tokens of a prompt and its completion together; None for no judgement of that.

        Returns:
            What each environment answered, and the findings.
        """
        live = self.live
        found = run_checks(
            Mixture(
                self._specs,
                live.clients,
                live.foreign,
                self._presentation,
                has_shared_rewards=bool(self._shared),
                args=args,
                max_sessions=self._max_sessions,
                max_open=live.ledger.max_sessions,
                curriculum=self.curriculum,
                repeats_rows=self.has_declared_mixture,
                system_prompt=self._system_prompt,
                max_model_tokens=max_model_tokens,
                compare_pins=None if self._pins is None else self._catalogue.compare_pins,
            ),
            num_prompts,
        )
        return replace(found, tools=self._tools_seen(found.looks))

    def _tools_seen(self, looks: Iterable[Look]) -> ToolsReport | None:
        """Set the tools side by side that were seen by looking; None where they cannot be shown, which a check says."""
        try:
            own = {look.name: make_factory(self.route(look.name, look.seen)) for look in looks if look.failure is None}
            meta = make_meta_factory(own) if own and not self.live.foreign else None
            return make_report(own, meta, {look.name: look.listings for look in looks}, self._presentation)
        except Exception:  # noqa: BLE001 - strangers' tools; a check never raises
            return None

    def tools_report(self) -> ToolsReport:
        """Set every tool of every environment side by side: its name in each trainer, what clashes, what changes.

        An environment whose server cannot be reached, or answers wrongly, has one row that says so.

        Raises:
            SpecError: A foreign factory makes no TRL environment, or a declaration does not fit its server.
        """
        own, failures = self._ors_factories_there_are()
        foreign = {name: environment.factory for name, environment in self.live.foreign.items()}
        every = own | foreign | failures
        factories = {name: every[name] for name in self._specs}
        meta = make_meta_factory(own) if own and not self.live.foreign else None
        listings = {name: client.listings for name, client in self.live.clients.items()}
        return make_report(factories, meta, listings, self._presentation)

    def _ors_factories_there_are(self) -> tuple[dict[str, type[EnvironmentAdapter]], dict[str, ServerError]]:
        """Return the factories of the environments that can be reached, and why there is none of the others."""
        with self._lock:
            if "ors_factories" in self._made:
                return self._ors_factories, {}
            found = self.live.where_it_can_be_had(EnvironmentClient.fetch_tools)
            failures = {name: listing for name, listing in found.items() if isinstance(listing, ServerError)}
            factories = {
                name: make_factory(self.route(name, listing))
                for name, listing in found.items()
                if not isinstance(listing, ServerError)
            }
            if not failures:
                self._made["ors_factories"] = factories
            return factories, failures

    def close(self) -> None:
        """Close every session, connection and foreign instance. Safe to call twice; final: nothing new is opened."""
        self.live.close()

    def hand_over(self, others: Iterable[str]) -> None:
        """Let a trainer of this library look after the sessions, and know of environments beside the spec's.

        Args:
            others: Names of environments of another making, whose rows the spec's reward functions leave unscored.
        """
        self._slots.hand_over(others)

    def guard(self, reward: Any) -> Any:
        """Return a reward function beside the spec's that is None for rollouts that infrastructure ended.

        `MultiEnvGRPOTrainer` does this with the functions it is given.

        Args:
            reward: A TRL reward function, sync or async; a reward model or the name of one is returned as it is.
        """
        return self._slots.guard(reward)

    def present_to(
        self, processing_class: Any, *, chat_template: str | None = None, has_conversations: bool = False
    ) -> None:
        """Say which policy reads what the environments send; before the slots are read.

        Strings that are special tokens of its tokenizer then stay text, and pictures reach a policy that sees them.
        `MultiEnvGRPOTrainer` and `make_concurrent` do this by themselves.

        Args:
            processing_class: The policy's tokenizer, or its processor.
            chat_template: The template the trainer uses instead of the tokenizer's own.
            has_conversations: True for a trainer that puts an environment's conversation into the prompt message by
                message; otherwise it is one user message.

        Raises:
            SpecError: It is no tokenizer and no processor, such as the name of one.
        """
        check_policy(processing_class)
        reserved = reserved_texts(processing_class, chat_template)
        has_images = getattr(processing_class, "image_processor", None) is not None
        self._presentation.show_to(reserved, has_images=has_images)
        self.live.take_messages(is_on=has_conversations)
        self._presentation.processing_class, self._presentation.chat_template = processing_class, chat_template

    def __enter__(self) -> Self:
        """Return the spec itself.

        Raises:
            OrderError: It was closed; a closed spec opens no new session.
        """
        self.live.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the names."""
        return f"{type(self).__name__}({', '.join(self._specs)})"

    def __getstate__(self) -> dict[str, Any]:
        """Keep the declaration and the dataset: connections and sessions stay in the process that has them."""
        built = {name: made for name, made in self._made.items() if name == "tasks"}
        return {name: self.__dict__[name] for name in _DECLARED} | {"_made": built}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start anew from the declaration; what the dataset holds need not be fetched again."""
        self.__dict__.update(state)
        self._start()

    @property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self._specs, self.live, self._system_prompt, self._pins)

    def _tasks(self) -> MixtureTasks:
        return self._once("tasks", self._catalogue.read)

    @property
    def _rewards(self) -> list[tuple[Any, float]]:
        return self._once("rewards", self._slots.make)

    def _columns(self) -> Columns:
        return Columns(self._tasks().columns)
