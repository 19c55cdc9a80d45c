"""The promises of TRL, transformers and the SDK that this library leans on. One that breaks names itself here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
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
