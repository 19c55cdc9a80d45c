"""Environments that know nothing of ORS beside those that do, in one run; how they are driven and closed."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers.utils import get_json_schema
from trl.experimental.harbor import HarborEnv

from multienv import EnvSpec, ForeignSpec, MultiEnvGRPOTrainer, MultiEnvSpec, errors
from multienv.router.instances import closer_name
from multienv.router.play import FAILED_OUTPUT, FAILED_PROMPT
from tests.support.fakes import said
from tests.support.foreign import (
    GuessEnvironment,
    RatioEnvironment,
    StubHarbor,
    forget_instances,
    guesses,
    harbor_suite,
    partial_factory,
    ratios,
)
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer


@pytest.fixture(autouse=True)
def _no_instances() -> Iterator[None]:
    forget_instances()  # of tests in other files
    yield
    forget_instances()


def policy(text: str, turn: int) -> str:
    if turn:
        return "done"
    for tool, answer in (
        ("guess", call("guess", number=3) + call("wait")),
        ("divide", call("divide", by=2)),
        ("bash", call("bash", command="ls")),
    ):
        if f'"{tool}"' in text:
            return answer
    return call("echo", text="hello")


@pytest.mark.parametrize("trainer_class", [None, MultiEnvGRPOTrainer])
def test_foreign_environments_train_beside_ors_ones(
    tmp_path: Path, echo_server: ORSServer, trainer_class: type | None
) -> None:
    harbor = harbor_suite(tmp_path / "suite")
    environments = {
        "echo": EnvSpec(echo_server.url, indices=[0]),
        "guess": guesses(),
        "ratio": ratios(0.5, 0.25),
        "harbor": harbor,
    }
    with MultiEnvSpec(environments, curriculum="dataset") as spec:
        options = {"per_device_train_batch_size": 14, "max_steps": 2}
        slots: dict[str, Any] = spec.trainer_kwargs() if trainer_class is None else {"spec": spec}
        trainer = scripted_trainer(policy, tmp_path, options, trainer_class, **slots)
        trainer.train()
        harbor_rows = [row for row in spec.train_dataset if row["environment"] == "harbor"]
    for log in trainer.state.log_history[:2]:
        assert log["rewards/echo/mean"] == 1.0
        assert log["rewards/guess/mean"] == pytest.approx((1.0 + 0.25) / 2), "3 is right for one of the two rows"
        assert log["rewards/ratio/mean"] == 0.5
        assert log["rewards/harbor/mean"] == 0.75
        assert log["ratio/seen"] == 4
        assert log["tools/failure_frequency"] == 0.0
    rows = [row for environment in GuessEnvironment.made for row in environment.rows]
    assert len(rows) == 8
    assert all(row in ({"number": 3}, {"number": 4}) for row in rows)
    assert [row["difficulty_level"] for row in harbor_rows] == ["hard", "easy"]
    assert [row["task_id"] for row in harbor_rows] == ["harbor/train/0", "harbor/train/1"]
    assert [environment.num_closed for environment in GuessEnvironment.made] == [1] * 4
    assert [environment.num_closed for environment in RatioEnvironment.made] == [1] * 4
    assert len(StubHarbor.stopped) == 4
    assert StubHarbor.loops == {True}, "Harbor's clients live on the environment's own loop"
    assert echo_server.open_sessions == []


def test_a_failing_reset_costs_its_own_rollouts_and_nothing_else(tmp_path: Path) -> None:
    class Fragile(GuessEnvironment):
        def reset(self, **row: Any) -> str:
            super().reset(**row)
            if row["number"] == 4:
                raise ConnectionError("no sandbox left")
            return "Guess it."

    rows = Dataset.from_list([{"number": 3}, {"number": 4}])
    environments = {"fragile": ForeignSpec(Fragile, train_dataset=rows), "ratio": ratios(0.5, -1.0)}
    seen: list[tuple[bool, str]] = []

    def note(environments: list[Any], prompts: list[Any], **_: Any) -> list[None]:
        for adapter, prompt in zip(environments, prompts, strict=True):
            if adapter.environment == "fragile":
                seen.append((adapter.finished, prompt[-1]["content"]))
        return [None] * len(environments)

    with MultiEnvSpec(environments, reward_funcs=note) as spec:
        trainer = scripted_trainer(policy, tmp_path, {"per_device_train_batch_size": 8}, **spec.trainer_kwargs())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train()
    log = trainer.state.log_history[0]
    assert log["rewards/fragile/mean"] == 1.0, "the failed rollouts go unscored"
    assert log["rewards/ratio/mean"] == 0.5
    assert set(seen) == {(True, "Guess it."), (False, FAILED_PROMPT)}
    words = [str(warning.message) for warning in caught if "goes unscored" in str(warning.message)]
    assert [("fragile" in text, "ratio" in text) for text in sorted(words)] == [(True, False), (False, True)]


def made(cls: Callable[[], Any]) -> Any:
    """An adapter of a class, reset."""
    adapter = MultiEnvSpec({"x": ForeignSpec(cls)}).environment_factory["x"]()
    adapter.reset(task_index=0)
    return adapter


def shown_tools(instance: Any) -> dict[str, Any]:
    """The tools as TRL collects them."""
    return {
        name: getattr(instance, name)
        for name, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }


def test_the_policy_is_shown_the_classes_own_tools() -> None:
    own, shown = shown_tools(GuessEnvironment()), shown_tools(made(GuessEnvironment))
    assert list(shown) == ["guess", "hint", "wait"]
    assert own.pop("close")
    for name, tool in own.items():
        assert get_json_schema(shown[name]) == get_json_schema(tool)
        assert inspect.signature(shown[name]) == inspect.signature(tool)
        assert inspect.iscoroutinefunction(shown[name]) == inspect.iscoroutinefunction(tool)
        assert shown[name].__name__ == tool.__name__
    assert shown["guess"](7) == "right"
    assert shown["hint"](level=2) == "oddodd"


def test_a_close_that_needs_arguments_is_a_tool() -> None:
    class Doors:
        def reset(self, **row: Any) -> None: ...
        def close(self, door: str) -> str:
            """Close a door."""
            return f"{door} is closed"

    assert shown_tools(made(Doors))["close"](door="the left one") == "the left one is closed"


def test_attributes_are_the_instances_own_and_what_reset_returns_passes_through() -> None:
    class Blocks:
        def reset(self, **row: Any) -> list[dict[str, str]]:
            self.row, self.reward = row, 0.5
            return [{"type": "text", "text": "look"}]

        @property
        def doubled(self) -> float:
            return 2 * self.reward

    spec = MultiEnvSpec({"x": ForeignSpec(Blocks, num_tasks=2)})
    adapter: Any = spec.environment_factory["x"]()
    with pytest.raises(AttributeError, match="before reset"):
        _ = adapter.reward
    row = dict(spec.train_dataset[1])
    assert row.pop("environment") == "x"
    assert adapter.reset(**row) == [{"type": "text", "text": "look"}]
    assert adapter.row == {"prompt": [{"role": "user", "content": ""}]}, "what TRL gives an environment with own data"
    assert (adapter.environment, adapter.reward, adapter.doubled) == ("x", 0.5, 1.0)
    assert spec.reward_func(environments=[adapter]) == [0.5]
    with pytest.raises(
        errors.RoutingError, match="task_index=2 in split 'train'; accepted: an int from 0 to 1 in split 'train'"
    ):
        adapter.reset(task_index=2)


class Answers:
    """Its `reset` returns what its class says."""

    returns: Any = None

    def reset(self, **_: Any) -> Any:
        return self.returns

    def get_reward(self) -> float:
        return 1.0


@pytest.mark.parametrize("returned", [5, {"text": "go"}, ("go",), b"go", object()])
def test_what_trl_could_not_show_fails_its_episode(returned: Any, caplog: pytest.LogCaptureFixture) -> None:
    with MultiEnvSpec({"env": ForeignSpec(type("Odd", (Answers,), {"returns": returned}), num_tasks=1)}) as spec:
        adapter: Any = spec.environment_factory["env"]()
        with pytest.warns(RuntimeWarning, match="an episode failed and goes unscored"):
            assert adapter.reset(task_index=0) == FAILED_PROMPT
        assert adapter.get_reward() is None
    assert "accepted: None, a string or a list of content blocks" in caplog.text


def test_one_instance_is_not_shared_by_two_rollouts() -> None:
    shared = Answers()
    with MultiEnvSpec({"env": ForeignSpec(lambda: shared, num_tasks=1)}) as spec:
        first, second = (spec.environment_factory["env"]() for _ in range(2))
        assert first.reset(task_index=0) is None
        assert first.reset(task_index=0) is None, "the next episode on the same instance"
        with pytest.raises(errors.SpecError, match="environment 'env': .* returned the same object twice"):
            second.reset(task_index=0)


def test_after_a_failed_reset_nothing_is_called_and_nothing_is_scored() -> None:
    class Down:
        def __init__(self) -> None:
            raise ConnectionError("no sandbox left")

        def reset(self, **row: Any) -> None: ...
        def act(self) -> str:
            """Act."""
            raise AssertionError

        def get_reward(self) -> float:
            raise AssertionError

    adapter: Any = MultiEnvSpec({"x": Down}).environment_factory["x"]()
    with pytest.raises(errors.OrderError, match="before reset"):
        adapter.act()
    with pytest.warns(RuntimeWarning, match="no sandbox left"):
        assert adapter.reset(task_index=0) == FAILED_PROMPT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.reset(task_index=0)
    assert (said(adapter.act), adapter.get_reward(), adapter.reward) == (FAILED_OUTPUT, None, None)
    assert repr(adapter) == "<x failed>"


def test_a_tools_exception_goes_to_trl_as_it_is() -> None:
    class Broken(GuessEnvironment):
        def guess(self, number: int) -> str:  # type: ignore[override]  # another tool
            """Guess."""
            raise KeyError(number)

    with pytest.raises(KeyError):
        made(Broken).guess(number=1)


def test_closing_happens_once_and_contains_failures(caplog: pytest.LogCaptureFixture) -> None:
    gone: list[str] = []

    class Breaks(GuessEnvironment):
        def close(self) -> None:
            super().close()
            raise RuntimeError("cannot close")

    class Leaves:
        def reset(self, **row: Any) -> None: ...
        def _stop(self, reason: str) -> None: ...
        def __del__(self) -> None:
            gone.append("left")

    spec = MultiEnvSpec({"breaks": Breaks, "leaves": Leaves, "idle": partial_factory(RatioEnvironment)})
    adapters = [spec.environment_factory[name]() for name in ("breaks", "leaves")]
    for adapter in adapters:
        adapter.reset(task_index=0)
    assert not gone
    spec.close()
    spec.close()
    assert gone == ["left"], "while the adapter still lives"
    assert ([one.num_closed for one in GuessEnvironment.made], [one.num_closed for one in RatioEnvironment.made]) == (
        [1],
        [1],
    )
    assert [record.message for record in caplog.records if "closing" in record.message] == [
        "environment 'breaks': closing an instance failed: RuntimeError('cannot close')"
    ]
    with pytest.raises(errors.OrderError, match="'breaks' is closed; make a new MultiEnvSpec"):
        adapters[0].reset(task_index=0)
    with pytest.raises(errors.OrderError, match="make a new MultiEnvSpec"), spec:
        pass


def test_a_coroutine_closes_where_the_others_ran() -> None:
    loops: list[Any] = []

    class Client:
        def reset(self, **row: Any) -> None: ...
        async def ask(self) -> str:
            """Ask."""
            loops.append(asyncio.get_running_loop())
            return "asked"

        async def close(self) -> None:
            loops.append(asyncio.get_running_loop())

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with MultiEnvSpec({"x": Client}) as spec:
            adapter: Any = spec.environment_factory["x"]()
            adapter.reset(task_index=0)
            assert asyncio.run_coroutine_threadsafe(adapter.ask(), loop).result(5) == "asked"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert loops == [loop, loop]


def test_harbors_environment_closes_by_a_coroutine_on_its_own_loop() -> None:
    """A contract: these two private names are what closing a Harbor sandbox leans on."""
    assert closer_name(HarborEnv) == "_stop"
    assert inspect.iscoroutinefunction(HarborEnv._stop)
    assert list(inspect.signature(HarborEnv._run).parameters) == ["self", "coro"]
    assert "run_coroutine_threadsafe(coro, self._loop)" in inspect.getsource(HarborEnv._run)


def test_instances_are_closed_at_the_interpreters_exit_by_the_process_that_made_them() -> None:
    program = (
        "import os, sys\n"
        "from multienv import MultiEnvSpec\n"
        "class Room:\n"
        "    def reset(self, **row): self.by = 'parent'\n"
        "    async def _stop(self): print(self.by, 'stopped')\n"
        "factory = MultiEnvSpec({'room': Room}).environment_factory['room']\n"
        "factory().reset(task_index=0)\n"
        "if (child := os.fork()) == 0:\n"
        "    adapter = factory()\n"
        "    adapter.reset(task_index=0)\n"
        "    adapter._held.instance.by = 'child'\n"
        "else:\n"
        "    os.waitpid(child, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child stopped\nparent stopped\n", "")


def test_a_reward_function_needs_the_row_numbers() -> None:
    (function,) = MultiEnvSpec({"ratio": ratios(0.5)}).reward_funcs
    with pytest.raises(errors.RoutingError, match="without the column 'task_index'"):
        function(environment=["ratio"], completions=[[]])
