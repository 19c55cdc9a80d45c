"""Decides how TRL's trainer is made to run many environments at once: sessions and tool calls together, none left open.

A thin subclass: TRL generates, masks, scores and optimises; here sessions are opened and tool calls started before it
asks for them, finished rollouts are left alone, and sessions are closed after the last reward function.

Flow: the user → `MultiEnvGRPOTrainer` → `GRPOTrainer`, through the methods named in `seams`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from multienv.errors import SpecError
from multienv.meta import MultiEnvSpec
from multienv.rewards import Balance, RunningScale, Weighing, check_applied_once, check_balance, several_functions
from multienv.router import EnvironmentAdapter, grade_last_messages
from multienv.router.conversations import with_conversation
from multienv.training.advantages import KeepScale, WeighedAdvantages
from multienv.training.beside import check_beside
from multienv.training.curriculum import FollowsCurriculum
from multienv.training.episodes import KeepsEpisodes
from multienv.training.offers import callable_tools, offer_own_tools, withdraw
from multienv.training.pictures import PicturesAnywhere
from multienv.training.ranks import RanksInStep
from multienv.training.read_ahead import ReadAhead
from multienv.training.seams import OF_CURRICULUM, missing_seams
from multienv.training.stream import rows_of
from multienv.training.turns import FinishedRollouts, Turns
from multienv.training.whole_groups import check_whole_groups
from multienv.types import Column


class MultiEnvGRPOTrainer(
    WeighedAdvantages,
    FollowsCurriculum,
    KeepsEpisodes,
    RanksInStep,
    PicturesAnywhere,
    GRPOTrainer,  # type: ignore[misc]  # TRL is untyped
):
    """TRL's `GRPOTrainer` on a mixture, as fast as its slowest rollout.

    The sessions of a generation batch open at once, the tool calls of a turn run at once, and closing does not hold up
    the step. Standalone tools and environment classes of another making run as in TRL.

    An environment's `reward_weight` multiplies its normalised advantages, once; 0 trains nothing on it. Rows of other
    environments keep theirs, and so does the KL term of `beta`, which is none of the rewards'.

    Args:
        model: As for `GRPOTrainer`.
        args: As for `GRPOTrainer`. Its `reward_weights` mean what they mean there: reward functions among each other.
        spec: The mixture; fills `train_dataset`, `eval_dataset`, `environment_factory` and `reward_funcs`.
        is_concurrent: False leaves resets and tool calls to TRL, one after the other. The results are the same.
        stop_when_finished: Do not ask a rollout for another turn once its environment has finished. Its completion then
            ends at the policy's own last token. Other rollouts keep their tokens, except that with sampling the random
            stream they draw from changes.
        shows_schemas: Show each tool as its environment published it, and to each rollout the tools of its own task.
            False shows the signatures of the adapters' methods, as TRL's own trainer does.
        read_ahead: Open the sessions of the epoch's next batch while the model is being optimised. Twice as many
            sessions are open; it turns itself off where the limits do not allow that.
        balance: What an environment's share of the loss is made proportional to, over each generation batch:
            "rollouts", to its scored rollouts, so that long-winded environments do not take the gradient; "tokens", to
            their trained tokens, which the loss types `dapo` and `dr_grpo` do by themselves; "none" leaves it to the
            loss type. Weights act on top of it.
        normalize_advantages: Divide an environment's advantages by their root mean square, a running average over
            batches, so that environments with large rewards do not outweigh others where TRL does not divide by the
            group's standard deviation. Kept in checkpoints.
        record_episodes: Write each rollout into `episodes.jsonl` in the output directory; see `multienv.reporting`.
        renamed: From the names of environments in a checkpoint to those they have now, where they differ. It may be
            given again after that: a checkpoint that has the new name only is left as it is.
        train_dataset: Rows to train on instead of the spec's; they need its columns. `spec.train_dataset` itself stands
            for its tasks: what repeats them for TRL's own trainer is planned here.
        eval_dataset: Rows to evaluate on instead of the spec's, or several sets of them by name.
        environment_factory: Environments of another making beside the spec's, by name.
        reward_funcs: Reward functions beside the spec's, for all rows; their numbers for failed and refused rollouts
            are not taken.
        **options: Everything else `GRPOTrainer` takes.

    Raises:
        SpecError: The arguments contradict each other.
        SessionLimitError: While training: a batch needs more sessions than the limits allow; none was opened.

    Example:
        `MultiEnvGRPOTrainer("Qwen/Qwen3-4B", GRPOConfig(...), spec=spec).train()`
    """

    def __init__(  # noqa: PLR0913 - the slots of TRL's trainer, and our switches
        self,
        model: Any,
        args: GRPOConfig | None = None,
        *,
        spec: MultiEnvSpec,
        is_concurrent: bool = True,
        stop_when_finished: bool = True,
        shows_schemas: bool = True,
        read_ahead: bool = False,
        balance: Balance = "none",
        normalize_advantages: bool = False,
        record_episodes: bool = True,
        renamed: Mapping[str, str] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        environment_factory: Mapping[str, Any] | None = None,
        reward_funcs: Any = (),
        **options: Any,
    ) -> None:
        if not isinstance(spec, MultiEnvSpec):
            raise SpecError(f"spec is of type {type(spec).__name__}; accepted: a MultiEnvSpec")
        others = dict(environment_factory or {})
        check_beside(spec, others)
        self.spec = spec
        self._is_concurrent, self._stops_when_finished = is_concurrent, stop_when_finished
        self._shows_schemas = shows_schemas
        self._batch_turns: FinishedRollouts | None = None
        scale = RunningScale() if normalize_advantages else None
        self._weighing = self._weigh_as_declared(args, balance, scale)
        self._check_seams()
        super().__init__(
            model=model,
            args=args,
            train_dataset=rows_of(spec) if train_dataset is None or spec.is_repeated(train_dataset) else train_dataset,
            eval_dataset=(spec.eval_dataset or None) if eval_dataset is None else eval_dataset,
            environment_factory={**spec.environment_factory, **others},
            reward_funcs=[*spec.reward_funcs, *map(spec.guard, several_functions(reward_funcs))],
            **options,
        )
        spec.present_to(self.processing_class, chat_template=self.chat_template, has_conversations=self._shows_schemas)
        spec.live.share_among(self.accelerator.num_processes)
        spec.hand_over(others)
        check_whole_groups(spec, self.args, is_evaluated=self.eval_dataset is not None)
        self._reads_ahead = read_ahead
        self._start_record(is_on=record_episodes)
        self._start_curriculum(renamed)
        if scale is not None:
            self.add_callback(KeepScale(scale))

    def _weigh_as_declared(self, args: Any, balance: Balance, scale: RunningScale | None) -> Weighing | None:
        """Return how advantages are weighed; None leaves them to TRL."""
        check_balance(balance, getattr(args, "loss_type", "dapo"))
        check_applied_once(getattr(args, "reward_weights", None), self.spec.reward_weights)
        weights = {name: declared.reward_weight for name, declared in self.spec.environments.items()}
        weighing = Weighing(weights, balance, scale)
        return None if weighing.is_idle else weighing

    def get_train_dataloader(self) -> Any:
        """Return the data loader of the training rows; with read-ahead, one that opens sessions as it reads."""
        if not self._reads_ahead:
            return super().get_train_dataloader()
        own: Any = self.data_collator
        generate_every = self.args.steps_per_generation * self.num_iterations
        self.data_collator: Any = ReadAhead(self.spec, own, generate_every)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = own

    def train(self, *args: Any, **options: Any) -> Any:
        """Train, as `GRPOTrainer` does; sessions that were opened ahead and not used are closed at the end."""
        try:
            return super().train(*args, **options)
        finally:
            self.spec.live.drop_ahead()

    def evaluate(self, *args: Any, **options: Any) -> Any:
        """Evaluate, as `GRPOTrainer` does; what was opened ahead for training makes room first."""
        self.spec.live.drop_ahead()
        return super().evaluate(*args, **options)

    def _check_seams(self) -> None:
        missing = missing_seams(GRPOTrainer)
        lost = []
        if missing.keys() - OF_CURRICULUM:
            self._is_concurrent = self._stops_when_finished = self._shows_schemas = self._mends_pictures = False
            lost.append("sessions and tool calls run one after the other, as in TRL itself")
            if self._weighing is not None:
                lost.append("reward_weight, balance and normalize_advantages do nothing")
            self._weighing = None
        if missing:
            self._may_follow = False
            lost.append("the order of the tasks is TRL's own, whatever the curriculum says")
            listed = "; ".join(f"{name} is {found}" for name, found in missing.items())
            warnings.warn(
                f"this TRL is not the one this trainer was written for ({listed}); {'; '.join(lost)}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, Any]]) -> Any:
        rows: Sequence[Mapping[str, Any]] = inputs
        self._begin_batch(inputs)
        try:
            if self._is_concurrent or self._shows_schemas:
                rows = self._start_resets(inputs)
            return super()._generate_and_score_completions(rows)
        finally:
            withdraw(self)
            self._release_sessions()

    def _start_resets(self, inputs: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Start the reset of every rollout of the batch, on the instance that TRL will give it.

        Returns:
            The rows, with the conversations of environments that have some.
        """
        names: list[Any] = [row.get(Column.ENVIRONMENT) for row in inputs]
        if any(name not in self.environment_factories for name in names):
            return inputs  # TRL says what is wrong
        self.spec.live.check_sessions(Counter(name for name in names if name in self.spec.environments))
        taken: Counter[Any] = Counter()
        environments: list[Any] = []
        for name, row in zip(names, inputs, strict=True):
            pool = self._environment_pool[name]
            if taken[name] == len(pool):
                pool.append(self.environment_factories[name]())
            environment = pool[taken[name]]
            taken[name] += 1
            environments.append(environment)
            if isinstance(environment, EnvironmentAdapter):
                environment._start_reset(dict(row))  # noqa: SLF001 - hidden from TRL, which would show it to the policy
                if not self._is_concurrent:
                    environment._opened_conversation()  # noqa: SLF001 - see above
        if not self._shows_schemas:
            return inputs
        return [
            with_conversation(row, environment._opened_conversation())  # noqa: SLF001 - see above
            if isinstance(environment, EnvironmentAdapter)
            else row
            for row, environment in zip(inputs, environments, strict=True)
        ]

    def _tokenize_prompts(self, prompts: Any) -> Any:
        if self._shows_schemas and self.environments and len(self.environments) == len(prompts):
            offer_own_tools(self)
        return super()._tokenize_prompts(prompts)

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *rest: Any) -> Any:
        own: Any = self._sync_tool_dicts
        if self._shows_schemas and self.environments:
            self._sync_tool_dicts: Any = callable_tools(self)
        if self._is_concurrent:
            turns = Turns(self._sync_tool_dicts, completions)
            self._sync_tool_dicts = [turns.wrap(rollout) for rollout in range(len(own))]
        if self._stops_when_finished and self.environments:
            self._batch_turns = FinishedRollouts(self.environments, completions)
        try:
            output = super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *rest)
            if self._batch_turns is not None:
                tool_mask, _, ids, logprobs, *_ = output
                self._batch_turns.trim(tool_mask, ids, logprobs)
            return output
        finally:
            self._sync_tool_dicts = own
            self._batch_turns = None

    def _generate_single_turn(
        self,
        prompt_ids: Any,
        images: Any,
        multimodal_fields: Any,
        num_generations: Any,
        has_tool_images: bool = False,  # noqa: FBT001, FBT002 - TRL's own signature
    ) -> Any:
        def generate(ids: Any, its_images: Any) -> Any:
            return super(MultiEnvGRPOTrainer, self)._generate_single_turn(
                ids, its_images, multimodal_fields, num_generations, has_tool_images
            )

        turns = self._batch_turns
        if turns is None or multimodal_fields:
            return generate(prompt_ids, images)
        rollouts = turns.rollouts_of_this_turn()
        if len(rollouts) != len(prompt_ids):
            return generate(prompt_ids, images)  # TRL's books are not ours: do nothing clever
        going_on = [place for place, rollout in enumerate(rollouts) if not turns.is_finished(rollout)]
        turns.stopped.update(rollout for rollout in rollouts if turns.is_finished(rollout))
        if len(going_on) == len(rollouts):
            return generate(prompt_ids, images)
        ids: list[Any] = [[] for _ in rollouts]
        logprobs: list[Any] | None = None
        if going_on or self._turns_are_collective:
            some_images = [images[place] for place in going_on] if images else images
            some_ids, some_logprobs = generate([prompt_ids[place] for place in going_on], some_images)
            for place, its_ids in zip(going_on, some_ids, strict=True):
                ids[place] = its_ids
            if some_logprobs is not None:
                logprobs = [[] for _ in rollouts]
                for place, its_logprobs in zip(going_on, some_logprobs, strict=True):
                    logprobs[place] = its_logprobs
        if logprobs is None and self.use_vllm:
            logprobs = [[] for _ in rollouts]
        return ids, logprobs

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        try:
            is_training = self.model.training
            self.spec.live.num_generations = self.num_generations if is_training else self.num_generations_eval
            self._note_cutoffs(completions, completion_ids_list)
            grade_last_messages(self.environments or [], completions if self.environments else [])
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        finally:
            self._release_sessions()

    def _release_sessions(self) -> None:
        """Close the batch's sessions in the background: the last reward function has seen them."""
        for environment in chain.from_iterable(self._environment_pool.values()):
            if isinstance(environment, EnvironmentAdapter):
                environment._release()  # noqa: SLF001 - hidden from TRL, which would show it to the policy
