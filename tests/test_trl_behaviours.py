"""The behaviours that TRL promises of its own OpenReward adapter, each held here by this library's spec and adapters.

- nothing is fetched when a spec is made
- the training dataset is the environment's: `num_tasks` rows, `prompt` and `task_index`, metadata as columns
- `indices` choose the tasks; `num_tasks` and `indices` exclude each other
- the factory makes adapters with the shared tools and those of tasks as methods; `discover_task_tools=False` leaves the
  latter out; `task_tools_discovery_index` has one task asked, and no other
- `reset` returns the prompt and opens a session, which `_close` closes
- a right call earns the reward and finishes, a wrong one earns 0.0 and does not
- the reward function reads the last reward of each environment that is not None
- two adapters' sessions know nothing of each other; two specs' adapters are of different classes
- metadata never takes the place of `prompt` or `task_index`

Different on purpose: a factory is a class, not a function; annotations are types rather than their names, so that more
of a schema is shown; rows also carry `environment`, `task_id` and `task`; `_close` may be called twice; an episode that
infrastructure ended is unscored, whatever it had earned, and one that gave up without a reward counts 0.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import pytest
from openreward.environments import ToolOutput, tool
from transformers.utils import get_json_schema

from multienv import EnvSpec, MultiEnvSpec, RewardSpec, errors
from multienv.types import ToolOutput as Output
from tests.support.environments import Base, EchoParams, TaskToolsEnvironment, VariedToolsEnvironment, output
from tests.support.fakes import batch, played
from tests.support.kinds import assert_closed
from tests.support.servers import ORSServer


class TwentyTasks(Base):
    """Twenty tasks with metadata, some of it under names that are taken."""

    tasks: ClassVar[list[dict[str, Any]]] = [
        {"target": f"word{n}", "level": n % 3, "prompt": "theirs", "task_index": 99} for n in range(20)
    ]

    @tool
    async def echo(self, params: EchoParams) -> ToolOutput:
        """Say a word.

        Args:
            text: The word.
        """
        correct = params.text == self.task_spec["target"]
        return output("match" if correct else "no match", float(correct), finished=correct)


@pytest.fixture(scope="module")
def twenty_server() -> Iterator[ORSServer]:
    with ORSServer([TwentyTasks]) as server:
        yield server


@pytest.fixture(scope="module")
def task_tools_server() -> Iterator[ORSServer]:
    with ORSServer([TaskToolsEnvironment]) as server:
        yield server


def opened(spec: MultiEnvSpec, index: int = 0) -> Any:
    """An adapter of the only environment, reset to a task."""
    (factory,) = spec.environment_factory.values()
    adapter = factory()
    adapter.reset(task_index=index)
    return adapter


def tools_of(adapter: Any) -> set[str]:
    """What TRL takes for the tools of an environment."""
    members = inspect.getmembers(type(adapter), predicate=inspect.isfunction)
    return {name for name, _ in members if not name.startswith("_") and name not in ("reset", "get_reward")}


def test_making_a_spec_asks_nothing_of_any_server(twenty_server: ORSServer) -> None:
    twenty_server.requests.clear()
    MultiEnvSpec({"env": EnvSpec(twenty_server.url, num_tasks=3)})
    MultiEnvSpec({"env": "http://127.0.0.1:9"})
    assert twenty_server.requests == []


def test_the_dataset_is_derived_from_the_environment(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(twenty_server.url, num_tasks=5)}) as spec:
        rows = spec.train_dataset
    assert len(rows) == 5
    assert {"prompt", "task_index", "target", "level"} <= set(rows.column_names)
    assert rows["task_index"][:] == [0, 1, 2, 3, 4]
    assert rows["target"][:] == ["word0", "word1", "word2", "word3", "word4"]
    assert rows["level"][:] == [0, 1, 2, 0, 1]
    assert all(prompt[-1]["role"] == "user" for prompt in rows["prompt"])


def test_all_tasks_are_trained_on_by_default(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": twenty_server.url}) as spec:
        assert spec.train_dataset["task_index"][:] == list(range(20))


def test_indices_choose_the_tasks(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(twenty_server.url, indices=[7, 3, 11])}) as spec:
        rows = spec.train_dataset
        assert rows["task_index"][:] == [7, 3, 11]
        assert rows["target"][:] == ["word7", "word3", "word11"]
        assert spec.environment_factory["env"]().reset(**rows[1]) == "Echo 'word3' to win."


def test_num_tasks_and_indices_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="num_tasks=5 and indices exclude each other") as refused:
        EnvSpec("http://127.0.0.1:9", num_tasks=5, indices=[1])
    assert isinstance(refused.value, errors.SpecError)


def test_metadata_never_takes_the_place_of_prompt_or_task_index(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(twenty_server.url, indices=[4])}) as spec:
        (row,) = spec.train_dataset
    assert row["task_index"] == 4
    assert row["prompt"] == [{"role": "user", "content": ""}]
    assert '"theirs"' in row["task"], "it is kept where nothing is lost"


def test_metadata_can_be_left_out(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(twenty_server.url, include_metadata=False)}) as spec:
        assert not {"target", "level"} & set(spec.train_dataset.column_names)


def test_the_factory_makes_adapters_with_shared_and_task_tools(task_tools_server: ORSServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(task_tools_server.url, indices=[0, 1])}) as spec:
        adapter = spec.environment_factory["env"]()
        assert tools_of(adapter) == {"shared", "special"}
        assert {inspect.signature(getattr(adapter, name)).return_annotation for name in tools_of(adapter)} == {str}


def test_without_discovery_only_shared_tools_are_bound(task_tools_server: ORSServer) -> None:
    task_tools_server.requests.clear()
    declared = EnvSpec(task_tools_server.url, indices=[0, 1], discover_task_tools=False)
    with MultiEnvSpec({"env": declared}) as spec:
        assert tools_of(spec.environment_factory["env"]()) == {"shared"}
    assert "/create" not in task_tools_server.paths()


@pytest.mark.parametrize("options", [{"num_tasks": 3}, {"indices": [0, 1, 2]}, {}])
def test_one_task_can_be_named_for_discovery(task_tools_server: ORSServer, options: dict[str, Any]) -> None:
    task_tools_server.requests.clear()
    declared = EnvSpec(task_tools_server.url, task_tools_discovery_index=1, **options)
    with MultiEnvSpec({"env": declared}) as spec:
        assert tools_of(spec.environment_factory["env"]()) == {"shared", "special"}
    assert task_tools_server.paths().count("/create") == 1
    assert_closed(task_tools_server)


def test_annotations_are_what_transformers_reads_of_the_published_schema(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": twenty_server.url, "varied": EnvSpec(VariedToolsEnvironment)}) as spec:
        factories: dict[str, Any] = dict(spec.environment_factory)
        shown = get_json_schema(factories["env"]().echo)["function"]
        press = factories["varied"].press
    assert shown["parameters"]["properties"] == {"text": {"type": "string", "description": "Text"}}
    assert shown["parameters"]["required"] == ["text"]
    assert press.__annotations__ == {"button": Literal["red", "green"], "return": str}


def test_reset_returns_the_prompt_and_opens_a_session_that_close_closes(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": EnvSpec(twenty_server.url, discover_task_tools=False)}) as spec:
        adapter = spec.environment_factory["env"]()
        assert twenty_server.open_sessions == []
        assert adapter.reset(task_index=2) == "Echo 'word2' to win."
        assert len(twenty_server.open_sessions) == 1
        assert (adapter.reward, adapter.rewards, adapter.finished) == (None, [], False)
        assert adapter.reset(task_index=3) == "Echo 'word3' to win."
        assert len(twenty_server.open_sessions) == 1, "the session before is closed when the next one opens"
        adapter._close()
        assert_closed(twenty_server)
        adapter._close()


def test_a_right_call_earns_its_reward_and_finishes(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": twenty_server.url}) as spec:
        adapter = opened(spec, 5)
        assert adapter.echo(text="word5") == "match"
        assert (adapter.reward, adapter.rewards, adapter.finished) == (1.0, [1.0], True)
        assert adapter.last_output == "match"


def test_a_wrong_call_earns_nothing_and_does_not_finish(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": twenty_server.url}) as spec:
        adapter = opened(spec, 5)
        assert adapter.echo(text="word6") == "no match"
        assert (adapter.reward, adapter.rewards, adapter.finished) == (0.0, [0.0], False)
        assert adapter.echo(text="word5") == "match"
        assert adapter.rewards == [0.0, 1.0]


def test_the_reward_function_reads_the_last_reward_that_is_not_none() -> None:
    spec = MultiEnvSpec({"env": "http://127.0.0.1:9"})
    adapters = [
        played("env", [Output("a", reward=0.5), Output("b", reward=1.0), Output("c")]),
        played("env", [Output("a", reward=1.0), Output("b", reward=0.0)]),
        played("env", [Output("a")]),
        played("env", []),
    ]
    (function,) = spec.reward_funcs
    assert function(**batch(adapters)) == [1.0, 0.0, 0.0, 0.0], "giving up counts, unlike in TRL"
    as_in_trl = MultiEnvSpec({"env": EnvSpec("http://127.0.0.1:9", reward=RewardSpec(unscored=None))})
    assert as_in_trl.reward_funcs[0](**batch(adapters)) == [1.0, 0.0, None, None]
    assert as_in_trl.reward_func(**batch(adapters)) == [1.0, 0.0, None, None]


def test_two_adapters_sessions_know_nothing_of_each_other(twenty_server: ORSServer) -> None:
    with MultiEnvSpec({"env": twenty_server.url}) as spec:
        one, other = opened(spec, 1), opened(spec, 2)
        assert one.episode.session_id != other.episode.session_id
        assert one.echo(text="word1") == "match"
        assert (one.finished, other.finished, other.rewards) == (True, False, [])
        assert other.echo(text="word1") == "no match"
        assert (one.reward, other.reward) == (1.0, 0.0)


def test_two_specs_have_adapters_of_different_classes(twenty_server: ORSServer, task_tools_server: ORSServer) -> None:
    with MultiEnvSpec({"env": twenty_server.url}) as one, MultiEnvSpec({"env": task_tools_server.url}) as other:
        adapters = [spec.environment_factory["env"]() for spec in (one, other)]
        assert type(adapters[0]) is not type(adapters[1])
        assert [tools_of(adapter) for adapter in adapters] == [{"echo"}, {"shared"}]
