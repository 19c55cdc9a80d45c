"""The promises of TRL, transformers and the SDK that this library leans on. One that breaks names itself here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader
from trl.trainer.grpo_trainer import GRPOTrainer

from multienv.specs.mixture import as_env_spec
from multienv.types import RESERVED_NAMES, Column
from tests.support.environments import ClimbEnvironment


def source(member: Any) -> str:
    return inspect.getsource(member)


# TRL


def test_trl_takes_a_dict_of_factories_and_routes_on_the_environment_column() -> None:
    assert "isinstance(environment_factory, dict)" in source(GRPOTrainer.__init__)
    assert f'x.get("{Column.ENVIRONMENT}")' in source(GRPOTrainer._generate_and_score_completions)


def test_trl_collects_tools_as_public_functions_of_the_class() -> None:
    text = source(GRPOTrainer.__init__)
    assert "inspect.getmembers(type(instance), predicate=inspect.isfunction)" in text
    assert 'member_name == "get_reward"' in text


def test_trl_does_not_pass_the_environment_column_to_reset() -> None:
    assert '{k: v for k, v in x.items() if k != "environment"}' in source(GRPOTrainer._generate_and_score_completions)


def test_trl_passes_reward_functions_the_keywords_that_are_reserved_here() -> None:
    text = source(GRPOTrainer._calculate_rewards)
    for keyword in (
        "prompts",
        "completions",
        "completion_ids",
        "trainer_state",
        "log_extra",
        "log_metric",
        "environments",
    ):
        assert keyword in text
        assert keyword in RESERVED_NAMES
    generate = source(GRPOTrainer._generate_and_score_completions)
    for column in ("image", "images"):
        assert f'"{column}" in inputs[0]' in generate
        assert column in RESERVED_NAMES


def test_trl_turns_none_into_nan_and_writes_into_the_list_of_reward_functions() -> None:
    assert "reward if reward is not None else torch.nan" in source(GRPOTrainer._calculate_rewards)
    assert "reward_funcs[i] =" in source(GRPOTrainer.__init__)


def test_trl_appends_what_reset_returns_to_the_last_message() -> None:
    assert '"content": content + observation' in source(GRPOTrainer._generate_and_score_completions)


def test_trls_spec_keeps_its_parameters_under_these_private_names() -> None:
    from trl.experimental.openreward import OpenRewardSpec

    options: dict[str, Any] = {
        "num_tasks": 3,
        "split": "test",
        "api_key": "k",
        "secrets": {"A": "b"},
        "env_name": "x",
        "include_metadata": False,
        "discover_task_tools": False,
        "task_tools_discovery_index": 2,
    }
    spec = as_env_spec("seta", OpenRewardSpec("Eigent/SETA", **options))
    assert spec.target == "Eigent/SETA"
    assert spec.api_key is not None
    assert spec.api_key.get_secret_value() == "k"
    for option in options.keys() - {"api_key", "secrets"}:
        assert getattr(spec, option) == options[option]
    assert as_env_spec("a", OpenRewardSpec("http://localhost:1", indices=[1, 2])).indices == (1, 2)
    parameters = set(inspect.signature(OpenRewardSpec).parameters)
    assert parameters == {"target", "indices", *options}, "EnvSpec takes every option of OpenRewardSpec"


# transformers


def test_transformers_reads_signature_annotations_and_docstring() -> None:
    from transformers.utils import chat_template_utils

    assert "inspect.signature(func)" in source(chat_template_utils._convert_type_hints_to_json_schema)
    assert "get_type_hints(func)" in source(chat_template_utils._convert_type_hints_to_json_schema)
    for word in ("Args:", "Returns:", "Raises:"):
        assert word in chat_template_utils.description_re.pattern
    assert "choices" in source(chat_template_utils.get_json_schema)


# The SDK


def test_the_sdk_offers_what_the_sessions_lean_on() -> None:
    from openreward.api._session.http import request_retryable, set_retry_policy
    from openreward.api.environments.client import AsyncEnvironment, AsyncSession, matrix_sid_provider

    assert list(inspect.signature(AsyncEnvironment).parameters)[:5] == [
        "namespace",
        "name",
        "variant",
        "client",
        "api_key",
    ]
    assert {"env", "secrets", "api_key", "split", "index"} <= set(inspect.signature(AsyncSession).parameters)
    assert list(inspect.signature(matrix_sid_provider).parameters) == ["client", "server_name", "token"]
    wanted = {"client", "method", "path", "expect_json", "token", "json", "sid", "deployment"}
    assert wanted <= set(inspect.signature(request_retryable).parameters)
    assert list(inspect.signature(set_retry_policy).parameters) == ["client", "policy"]


def test_the_sdk_reads_a_sessions_key_when_it_sends_and_its_secrets_when_it_is_made() -> None:
    from openreward.api._session.session import BaseAsyncSession
    from openreward.api.environments.client import AsyncSession

    assert "augment_secrets_with_api_key" in source(AsyncSession.__init__)
    assert "token=self.api_key" in source(AsyncSession._post_create)
    assert "api_key=self.api_key" in source(BaseAsyncSession.__aenter__)


def test_the_sdks_own_tool_call_may_still_run_twice_and_lose_white_space() -> None:
    """When this fails, the SDK has been mended and `sessions.calls` can be given up for it."""
    from openreward.api._session.http import _parse_sse_events
    from openreward.api.environments.client import AsyncSession

    assert "value.lstrip()" in source(_parse_sse_events)
    code = "\n".join(line.partition("#")[0] for line in source(AsyncSession.call_tool).splitlines())
    assert "resumable_only" not in code


def test_the_sdk_deletes_a_session_in_silence_through_this_method() -> None:
    from openreward.api._session.session import BaseAsyncSession
    from openreward.api.environments.client import AsyncSession

    assert '"/delete"' in source(AsyncSession._pre_delete)
    leaving = source(BaseAsyncSession.__aexit__)
    assert "await self._pre_delete()\n        except Exception:\n            pass" in leaving


def test_the_sdks_server_answers_a_repeated_opening_in_these_words() -> None:
    from openreward.environments import Server

    from multienv.sessions import faults

    assert faults._TAKEN in source(Server.__init__)


def test_the_sdk_pings_from_one_thread_that_starts_when_there_is_none() -> None:
    from openreward.api._session.ping import ping_thread

    assert {"_loop", "_client", "_lock", "_thread"} <= set(vars(ping_thread))
    assert "if self._loop is not None and self._loop.is_running()" in source(type(ping_thread)._ensure_started)


def test_trl_has_what_the_trainer_reads() -> None:
    text = source(GRPOTrainer)
    for name in ("_environment_pool", "environment_factories", "_sync_tool_dicts", "environments", "vllm_mode"):
        assert f"self.{name}" in text
    assert "completions[idx_with_tool].append(post_tool_completions[idx])" in source(GRPOTrainer._tool_call_loop)
    assert "prompt_completion_tool.append(completions[idx_with_tool][-1])" in source(GRPOTrainer._tool_call_loop)
    assert "data_collator=identity" in source(GRPOTrainer.__init__)
    for name in ("steps_per_generation", "num_iterations", "vllm_tensor_parallel_size"):
        assert name in text


def test_trl_has_what_the_record_and_the_metrics_read() -> None:
    from multienv.training.seams import READ

    text = source(GRPOTrainer)
    for name in READ:
        assert f"self.{name}" in text, name
    for key in ("completion_mask", "tool_mask"):
        assert f'"{key}"' in source(GRPOTrainer._generate_and_score_completions)
    assert "metrics[key] = sum(valid) / len(valid)" in source(GRPOTrainer.log)
    assert 'f"eval_{key}"' in source(GRPOTrainer.log)


def test_trl_takes_a_completion_that_does_not_end_a_message_for_truncated() -> None:
    generate = source(GRPOTrainer._generate)
    assert "eos_and_pad = [*self.eos_token_ids, self._tokenizer.pad_token_id]" in generate
    assert "ids[-1] not in eos_and_pad for ids in completion_ids" in generate


def test_trl_leaves_a_call_unanswered_at_its_limits_and_words_failures_like_this() -> None:
    loop = source(GRPOTrainer._tool_call_loop)
    assert "while idxs_with_tool and iteration_num < self.max_tool_calling_iterations" in loop
    assert "del completions[idx_with_tool][completions_len_before[idx] :]" in loop
    assert 'result = {"error": str(e)}' in loop
    assert "content = result if isinstance(result, list) else str(result)" in loop


def test_trl_gathers_rewards_in_the_order_of_ranks() -> None:
    assert "self.accelerator.process_index * len(prompts)" in source(GRPOTrainer._generate_and_score_completions)
    assert "rewards_per_func = gather(rewards_per_func)" in source(GRPOTrainer._calculate_rewards)


def test_transformers_knows_the_step_when_training_begins_and_saves_after_evaluating() -> None:
    from transformers import Trainer

    text = source(Trainer)
    assert text.index("TrainerState.load_from_json") < text.index("self.callback_handler.on_train_begin")
    assert text.index("self.callback_handler.on_train_begin") < text.index("if args.eval_on_start")
    saving = source(Trainer._maybe_log_save_evaluate)
    assert saving.index("self._evaluate(") < saving.index("self._save_checkpoint(")


def test_the_sdk_retries_give_their_last_cause() -> None:
    from openreward.api.errors import MaxRetriesError

    cause = ConnectionResetError("gone")
    assert MaxRetriesError("gave up", errors=[cause]).errors == [cause]


def test_the_sdk_runs_environments_through_these_functions() -> None:
    from openreward.environments.session import call_session_tool, list_session_tools
    from openreward.environments.utils import run_user_callable

    assert list(inspect.signature(call_session_tool).parameters) == ["env", "toolset", "name", "input"]
    assert list(inspect.signature(list_session_tools).parameters) == ["env", "toolset"]
    assert inspect.iscoroutinefunction(run_user_callable)
    assert ClimbEnvironment.name() == "ClimbEnvironment"


def test_the_sdk_keeps_tasks_and_their_locks_on_the_class_and_finds_its_parents() -> None:
    from openreward.environments import Environment

    from multienv.sessions import classes

    text = source(Environment._list_tasks_cached)
    for name in (classes.TASKS, classes.LOCKS):
        assert f"if not hasattr(cls, '{name}'):\n            cls.{name}: dict[str, " in text
    assert "async with cls._tasks_cache_locks[split]:" in text


def test_the_sdk_logs_tool_calls_through_a_name_of_its_module_at_a_level_read_on_import() -> None:
    from openreward import log_utils
    from openreward.environments import Environment, environment

    from multienv.sessions.quiet import LEVELS

    assert 'logger.info("tool_call_completed", tool=name' in source(Environment._run_tool_fn)
    assert source(environment).count("logger.info(") == 1
    text = source(log_utils._resolve_log_level)
    assert " or ".join(f'os.environ.get("{name}")' for name in LEVELS) in text


@pytest.mark.parametrize("name", ["openreward", "aiohttp"])
def test_every_exception_of_the_outside_has_a_meaning(name: str) -> None:
    import aiohttp
    from openreward.api import errors as sdk

    from multienv.sessions import faults

    module = {"openreward": sdk, "aiohttp": aiohttp}[name]
    table = tuple(foreign for foreign, _, _ in faults._MEANING)
    unused = {"ToolCallError", "ScoreGroupUnsupported", "ScoreGroupFailed"}  # raised by SDK methods that are not called
    for member in vars(module).values():
        if not inspect.isclass(member) or member.__name__ in unused:
            continue
        if issubclass(member, aiohttp.ClientError | sdk.OpenRewardError | OSError):
            assert issubclass(member, table), member


# Pictures in TRL; what TRL does with them is pinned in `test_vision_support`


def test_trl_still_needs_pictures_everywhere_or_nowhere() -> None:
    """When this fails, TRL may have been mended, and `training.pictures` can perhaps be given up in part."""
    from trl.generation.vllm_generation import VLLMGeneration

    assert "images.append(prompt_images if prompt_images else None)" in source(GRPOTrainer._tokenize_prompts)
    scored = source(GRPOTrainer._generate_and_score_completions)
    assert "self.processing_class(images=images, text=prompts_text" in scored
    cut = source(GRPOTrainer._get_per_token_logps_and_entropies)
    assert 'model_inputs["pixel_values"] = pixel_values[row_start:row_end]' in cut
    assert "if img_list is not None:" in source(VLLMGeneration.generate)
    assert "img_list if len(img_list) > 1 else img_list[0]" in source(VLLMGeneration.generate)
    assert 'strip_images_from_messages(messages) for messages in self._logs["completion"]' in source(GRPOTrainer.log)


def test_trl_asks_for_log_probabilities_with_pictures_by_keyword() -> None:
    for method in (GRPOTrainer._generate_and_score_completions, GRPOTrainer._compute_loss):
        calls = source(method).split("self._get_per_token_logps_and_entropies(")[1:]
        assert calls
        assert all("num_images=" in call.partition(")\n")[0] for call in calls)
        assert all("logits_to_keep,\n" in call for call in calls)


def test_trl_splits_pictures_by_the_rows_they_are_in_and_joins_them_again() -> None:
    import torch
    from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

    grid = torch.tensor([[1, 1, 2], [1, 2, 2]])
    whole: dict[str, Any] = {
        "pixel_values": torch.arange(6.0)[:, None],
        "image_grid_thw": grid,
        "num_images": [1, 0, 1],
    }
    by_row = split_pixel_values_by_grid(whole)
    assert [len(rows) for rows in by_row["pixel_values"]] == [2, 0, 4]
    joined = unsplit_pixel_values_by_grid(by_row)
    assert all(torch.equal(joined[name], whole[name]) for name in ("pixel_values", "image_grid_thw"))


# Tools per rollout, conversations, session options


def test_the_sdk_runs_a_sessions_requests_until_the_session_is_dead() -> None:
    from openreward.api._session.session import BaseAsyncSession

    assert list(inspect.signature(BaseAsyncSession._run_or_die).parameters) == ["self", "coro"]
    text = source(BaseAsyncSession._run_or_die)
    assert "if self._dead_exception is not None:\n            raise self._dead_exception" in text
    assert "e.add_note(prefix)" in source(BaseAsyncSession._annotate_error), "a status keeps its class"


def test_the_sdk_builds_a_sessions_paths_with_the_variant() -> None:
    from types import SimpleNamespace

    from openreward.api.environments.client import AsyncSession

    for variant, path in ((None, "/prompt"), ("two", "/two/prompt")):
        session = SimpleNamespace(env=SimpleNamespace(variant=variant))
        assert AsyncSession._env_path(session, "/prompt") == path


def test_the_sdk_asks_a_session_for_its_conversation_and_its_tools_under_these_routes() -> None:
    from openreward.api.environments.client import AsyncSession

    assert 'self._env_path("/messages")' in source(AsyncSession.get_messages)
    assert 'self._env_path("/task_tools")' in source(AsyncSession.list_tools)


def test_the_sdk_posts_toolset_and_environment_variables_under_these_names() -> None:
    from openreward.api.environments.client import AsyncSession

    assert {"toolset_name", "env_overrides"} <= set(inspect.signature(AsyncSession).parameters)
    assert 'create_payload["toolset_name"] = self.toolset_name' in source(AsyncSession._post_create)
    assert 'creation_payload["env"] = dict(env_overrides)' in source(AsyncSession.__init__)


def test_the_sdk_asks_the_platforms_api_for_required_secrets() -> None:
    from openreward.api.environments.client import AsyncEnvironment

    assert "api_client" in inspect.signature(AsyncEnvironment).parameters
    text = source(AsyncEnvironment.list_required_secrets)
    assert "/v1/environments/{owner}/{self.name}/required-secrets" in text
    assert "self.api_client.get(path" in text


def test_the_sdk_hides_the_terminal_tool_and_calls_it_as_any_other() -> None:
    from openreward.environments import Environment

    assert "term.arg" in source(Environment.call_terminal_tool)
    assert "self._call_tool(term.name" in source(Environment.call_terminal_tool)
    from tests.support.environments import AnswerEnvironment, StateEnvironment

    for cls, name, argument in ((AnswerEnvironment, "submit", "text"), (StateEnvironment, "count", None)):
        listing = cls.list_tools()
        assert (listing.terminal_tool.name, listing.terminal_tool.arg) == (name, argument)
        assert name not in {tool.name for tool in listing.tools}


def test_the_sdk_names_its_toolsets_in_one_table() -> None:
    from openreward.environments import Toolset
    from openreward.toolsets import BUILTIN_TOOLSETS

    assert {"cli", "claude-code", "codex"} <= set(BUILTIN_TOOLSETS)
    assert all(issubclass(cls, Toolset) and cls.name() == name for name, cls in BUILTIN_TOOLSETS.items())
    assert next(iter(inspect.signature(Toolset).parameters)) == "env"


def test_trl_renders_and_parses_with_the_tools_of_each_rows_key() -> None:
    rendering = source(GRPOTrainer._tokenize_prompts)
    assert "zip(prompts, self._batch_environments, strict=True)" in rendering
    assert "tools=self._env_tools[name] or None" in rendering
    for method in (GRPOTrainer._generate, GRPOTrainer._generate_and_score_completions):
        assert "self._env_tools[name] for name in self._batch_environments" in source(method)
    assert "self._env_tools[self._batch_environments[i]]" in source(GRPOTrainer._tool_call_loop)
    assert "self._env_tools[name] = tools + methods" in source(GRPOTrainer.__init__)
    assert "self._standalone_tools = tools" in source(GRPOTrainer.__init__)


def test_trl_looks_a_call_up_by_membership_then_by_index_and_passes_keywords() -> None:
    text = source(GRPOTrainer._tool_call_loop)
    for kind in ("sync", "async"):
        assert f"{kind}_tool_dict = self._{kind}_tool_dicts[idx_with_tool]" in text
        assert f"if name in {kind}_tool_dict:" in text
        assert f'{kind}_tool_dict[name](**function["arguments"])' in text
    assert 'result = {"error": str(e)}' in text
    assert "tool_failure_count += 1" in text


def test_trl_renders_prompts_once_between_the_resets_and_the_first_turn() -> None:
    whole = source(GRPOTrainer._generate_and_score_completions)
    assert whole.index("observation = environment.reset(") < whole.index("= self._generate(")
    generate = source(GRPOTrainer._generate)
    assert generate.count("self._tokenize_prompts(") == 1
    assert generate.index("self._tokenize_prompts(") < generate.index("self._generate_single_turn(")


def test_trl_takes_tools_that_are_dicts_where_it_takes_functions() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    assert "isinstance(tool, dict)" in source(render_jinja_template)


def test_async_grpo_looks_a_call_up_with_get_and_awaits_what_is_async() -> None:
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    text = source(_AsyncRolloutLoop._execute_tool_calls)
    assert "tool = tool_dict.get(name)" in text
    assert "result = await tool(**arguments)" in text
    playing = source(_AsyncRolloutLoop._generate_one)
    assert "messages = list(prompt)" in playing, "the prompt is read when the rollout begins"
    assert "tools=tools or None" in playing
    assert "return completion, " in playing


def test_trl_splits_a_generation_batch_that_carries_what_is_beside_the_advantages() -> None:
    from trl.trainer import utils

    prepare = source(GRPOTrainer._prepare_inputs)
    for line in (
        "generation_batch = self._generate_and_score_completions(generation_batch)",
        "generation_batch = shuffle_sequence_dict(generation_batch)",
        "generation_batches = split_tensor_dict(generation_batch, self.args.steps_per_generation)",
        "self._buffered_inputs = [unsplit_pixel_values_by_grid(batch) for batch in generation_batches]",
        "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]",
    ):
        assert line in prepare
    assert "for key, val in seq_dict.items()" in source(utils.shuffle_sequence_dict)
    assert "for key, tensor in tensor_dict.items()" in source(utils.split_tensor_dict)


def test_trl_gives_each_row_of_this_rank_one_advantage_and_logs_those_of_all_ranks() -> None:
    text = source(GRPOTrainer._generate_and_score_completions)
    assert "self.accelerator.process_index * len(prompts)" in text
    assert "advantages = advantages[process_slice]" in text
    assert 'self._logs["advantages"].extend(all_process_advantages.tolist())' in text
    assert '"advantages": deque(maxlen=args.generation_batch_size)' in source(GRPOTrainer.__init__)
    assert "rewards_per_func = gather(rewards_per_func)" in source(GRPOTrainer._calculate_rewards)
    assert 'advantages = inputs["advantages"]' in source(GRPOTrainer._compute_loss)
    assert 'mask = completion_mask if "tool_mask" not in inputs else' in source(GRPOTrainer._compute_loss)


def test_trls_losses_add_up_rollouts_as_the_shares_say() -> None:
    from multienv.rewards.shares import LOSS_TYPES

    text = source(GRPOTrainer._compute_loss)
    summed = "loss = (per_token_loss * mask).sum()"
    mean = "((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()"
    for head, body in (
        ('if self.loss_type in ["grpo", "sapo"]:', f"loss = {mean}"),
        ('elif self.loss_type == "bnpo":', f"{summed} / mask.sum().clamp(min=1.0)"),
        ('elif self.loss_type == "dr_grpo":', f"{summed} / (per_token_loss.size(0) * self.max_completion_length)"),
        ('elif self.loss_type in ["cispo", "dapo", "vespo"]:', f"{summed} / normalizer"),
        ('elif self.loss_type == "luspo":', "loss = (per_token_loss * mask).sum(-1).mean()"),
    ):
        branch = text.rpartition(head)[2].partition("policy_loss = loss.detach()")[0]
        assert body in branch, head
    assert {"grpo", "sapo", "bnpo", "dr_grpo", "cispo", "dapo", "vespo", "luspo"} == set(LOSS_TYPES)


def test_transformers_keeps_what_callbacks_write_into_the_state_in_the_checkpoint() -> None:
    from transformers import Trainer, TrainerState

    assert isinstance(TrainerState().stateful_callbacks, dict)
    assert "self.state = TrainerState.load_from_json" in source(Trainer._init_training_state)
    assert "self.state.save_to_json" in source(Trainer._save_checkpoint)


# The order of the rows


def test_trl_asks_for_its_sampler_with_the_dataset_and_draws_a_generation_batch_per_element() -> None:
    from transformers import Trainer
    from trl.trainer.utils import RepeatSampler

    (parameter,) = list(inspect.signature(GRPOTrainer._get_train_sampler).parameters.values())[1:]
    assert (parameter.name, parameter.default) == ("dataset", None)
    making = source(GRPOTrainer.get_train_dataloader)
    assert "sampler_fn=self._get_train_sampler" in making
    assert "batch_size=self._train_batch_size * self.args.steps_per_generation" in making
    assert "sampler_fn(dataset)" in source(Trainer._get_dataloader)
    own = source(GRPOTrainer._get_train_sampler)
    for argument in (
        "mini_repeat_count=self.num_generations",
        "batch_size=self.args.generation_batch_size // self.num_generations",
        "repeat_count=self.num_iterations * self.args.steps_per_generation",
    ):
        assert argument in own
    assert list(RepeatSampler("ab", 2, 1, 2, shuffle=False)) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_trl_generates_with_the_first_element_of_a_batch_by_its_own_count_or_when_it_has_kept_nothing() -> None:
    prepare = source(GRPOTrainer._prepare_inputs)
    assert "generate_every = self.args.steps_per_generation * self.num_iterations" in prepare
    assert "if self._step % generate_every == 0 or self._buffered_inputs is None:" in prepare
    assert source(GRPOTrainer).count("self._step += 1") == source(GRPOTrainer).count("self._step = ") == 1
    assert "self._step += 1" in source(GRPOTrainer.training_step)
    assert "self._step = 0" in source(GRPOTrainer.__init__)


def test_transformers_makes_the_data_loader_and_loads_the_state_before_training_begins() -> None:
    from transformers import Trainer

    loop = source(Trainer._inner_training_loop)
    beginning = loop.index("self.callback_handler.on_train_begin")
    assert loop.index("self.get_train_dataloader()") < loop.index("self._init_training_state(") < beginning
    assert beginning < loop.index("self.callback_handler.on_epoch_begin") < loop.index("self._run_epoch(")


def test_transformers_saves_the_state_where_a_checkpoint_is_saved_with_what_was_put_into_it() -> None:
    from transformers import Trainer

    for cls in (GRPOTrainer, Trainer):
        assert list(inspect.signature(cls._save_checkpoint).parameters) == ["self", "model", "trial"]
    assert "super()._save_checkpoint(model, trial)" in source(GRPOTrainer._save_checkpoint)
    assert "self._save_checkpoint(model, trial)" in source(Trainer._maybe_log_save_evaluate)
    saving = source(Trainer._save_checkpoint)
    assert saving.index("self.state.stateful_callbacks[cb_name]") < saving.index("self.state.save_to_json(")


def test_a_state_keeps_what_is_in_stateful_callbacks_through_its_file(tmp_path: Path) -> None:
    from transformers import TrainerState

    state = TrainerState()
    state.stateful_callbacks["multienv.Curriculum"] = {"args": {}, "attributes": {"position": 3, "nested": [[1, "a"]]}}
    state.save_to_json(str(tmp_path / "state.json"))
    loaded = TrainerState.load_from_json(str(tmp_path / "state.json"))
    assert loaded.stateful_callbacks == state.stateful_callbacks


def test_transformers_skips_the_steps_of_the_epoch_a_checkpoint_is_in_by_this_arithmetic() -> None:
    from transformers import Trainer

    going_on = source(Trainer._init_training_state)
    for line in (
        "epochs_trained = int(self.state.global_step // num_update_steps_per_epoch)",
        "if not self.args.ignore_data_skip:",
        "steps_trained_in_current_epoch = self.state.global_step % num_update_steps_per_epoch",
        "steps_trained_in_current_epoch *= self.args.gradient_accumulation_steps",
    ):
        assert line in going_on
    counting = source(Trainer.set_initial_training_values)
    assert "len_dataloader // args.gradient_accumulation_steps" in counting
    assert "+ int(len_dataloader % args.gradient_accumulation_steps > 0)" in counting
    epoch = source(Trainer._run_epoch)
    assert "skip_first_batches(train_dataloader, steps_trained_in_current_epoch)" in epoch
    assert epoch.index("self.get_batch_samples(") < epoch.index("self.training_step("), (
        "a step takes its elements first"
    )


class NotedBatches(BatchSampler):
    """Notes which batches were asked for."""

    def __init__(self, num_batches: int) -> None:
        super().__init__(range(num_batches), 1, drop_last=False)
        self.asked: list[int] = []

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.asked.append(batch[0])
            yield batch


def noted_loader(num_batches: int) -> tuple[Any, NotedBatches]:
    dataset: Any = list(range(num_batches))
    batches = NotedBatches(num_batches)
    return Accelerator(cpu=True).prepare(DataLoader(dataset, batch_sampler=batches)), batches


def test_accelerate_reads_one_element_ahead_and_no_more() -> None:
    loader, batches = noted_loader(4)
    ahead = [(value.item(), list(batches.asked)) for value in loader]
    assert ahead == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2, 3]), (3, [0, 1, 2, 3])]
    assert len(loader) == 4


def test_accelerate_skips_elements_by_reading_them_from_the_beginning() -> None:
    loader, batches = noted_loader(4)
    left = iter(skip_first_batches(loader, 2))
    assert batches.asked == []
    assert next(left).item() == 2
    assert batches.asked == [0, 1, 2, 3]
    assert [value.item() for value in left] == [3]


def test_accelerate_deals_each_rank_the_same_slice_of_every_batch_and_reads_it_at_the_same_time() -> None:
    ranks = []
    for rank in (0, 1):
        rows = BatchSampler(range(12), 2, drop_last=False)
        ranks.append(list(BatchSamplerShard(rows, num_processes=2, process_index=rank)))
    assert ranks == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


def test_trl_hands_out_advantages_of_this_ranks_rows() -> None:
    text = source(GRPOTrainer._generate_and_score_completions)
    assert '"advantages": advantages,' in text
    assert text.index("advantages = advantages[process_slice]") < text.index('"advantages": advantages,')
