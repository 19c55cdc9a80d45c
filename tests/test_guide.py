"""What TRL's guide to its OpenReward integration says of one environment, said of several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import get_json_schema

from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec, RewardSpec, errors
from multienv.types import ToolOutput
from tests.support.fakes import batch, played
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer


def test_the_three_attributes_plug_into_the_trainers_three_slots(tmp_path: Path, echo_server: ORSServer) -> None:
    spec = MultiEnvSpec({"echo": echo_server.url})
    with spec:
        trainer = scripted_trainer(
            lambda _, turn: call("echo", text="hello") if turn < 1 else "done",
            tmp_path,
            {"max_steps": 1, "per_device_train_batch_size": 6, "max_tool_calling_iterations": 20},
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
        )
        trainer.train()
    assert trainer.state.log_history[0]["rewards/echo/mean"] == pytest.approx(1 / 3)


def test_a_single_host_server_needs_no_variables(echo_server: ORSServer) -> None:
    assert not any(variable in os.environ for variable in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"))
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, env_name="echoenvironment")}) as spec:
        dataset = spec.train_dataset
        assert len(dataset) == 3
        assert {"prompt", "task_index", "target"} <= set(dataset.column_names)


def test_metadata_is_folded_in_or_not(echo_server: ORSServer) -> None:
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, include_metadata=False)}) as spec:
        assert spec.train_dataset.column_names == ["prompt", "environment", "task_index", "task_id", "task"]


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        ({"num_tasks": 2}, [0, 1]),
        ({"num_tasks": 10}, [0, 1, 2]),
        ({"indices": [2, 0]}, [2, 0]),
        ({"indices": list(range(1, 3))}, [1, 2]),
        ({"split": "test"}, [0]),
    ],
)
def test_tasks_are_chosen_by_count_or_by_index(
    echo_server: ORSServer, options: dict[str, Any], indices: list[int]
) -> None:
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, **options)}) as spec:
        assert spec.train_dataset["task_index"] == indices


def test_only_the_tasks_that_are_needed_are_fetched(echo_server: ORSServer) -> None:
    echo_server.requests.clear()
    with MultiEnvSpec({"echo": EnvSpec(echo_server.url, indices=[1])}) as spec:
        _ = spec.train_dataset
    assert "/echoenvironment/tasks" not in echo_server.paths()


def test_count_and_indices_exclude_each_other() -> None:
    with pytest.raises(errors.SpecError, match="exclude each other"):
        EnvSpec("Eigent/SETA", num_tasks=10, indices=[0, 5, 13, 27])


def test_every_tool_is_a_typed_documented_method(climb_server: ORSServer) -> None:
    with MultiEnvSpec({"climb": climb_server.url}) as spec:
        adapter: Any = spec.environment_factory["climb"]()
        schema = get_json_schema(adapter.echo)["function"]
    assert schema["name"] == "echo"
    assert schema["description"] == "Say something; nothing comes of it."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "Text"}},
        "required": ["text"],
    }


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([], None),
        ([None, None], None),
        ([1.0, None], 1.0),
        ([1.0, 0.0], 0.0),
        ([None, -1.0, None], -1.0),
        ([0.25, 0.75], 0.75),
    ],
)
def test_the_reward_is_the_last_one_that_is_not_null(rewards: list[float | None], expected: float | None) -> None:
    adapter = played("echo", [ToolOutput("x", reward) for reward in rewards])
    assert adapter.reward == expected
    assert adapter.rewards == rewards
    assert adapter.episode.status is EpisodeStatus.UNFINISHED


@pytest.mark.parametrize("silence", [0.0, None])
def test_a_custom_reward_wraps_the_specs_own(silence: float | None) -> None:
    other = EnvSpec("owner/other", reward=RewardSpec(unscored=silence))
    spec = MultiEnvSpec({"echo": "owner/echo", "other": other})

    def my_reward(environments: list[Any], **_: Any) -> list[float | None]:
        rewards = spec.reward_func(environments=environments)
        return [2.0 * reward if reward is not None else None for reward in rewards]

    adapters = [played("echo", [ToolOutput("x", 0.5)]), played("other", []), played("other", [ToolOutput("x", -1.0)])]
    assert my_reward(**batch(adapters)) == [1.0, silence, -2.0]


def test_the_adapter_shows_the_state_of_the_rollout(climb_server: ORSServer) -> None:
    with MultiEnvSpec({"climb": climb_server.url}) as spec:
        adapter: Any = spec.environment_factory["climb"]()
        adapter.reset(task_index=0)
        adapter.up(n=1)
        assert (adapter.reward, adapter.rewards, adapter.metadata, adapter.finished, adapter.last_output) == (
            0.25, [0.25], [{"height": 1}], False, "1"
        )  # fmt: skip
