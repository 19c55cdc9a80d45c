"""`MultiEnvGRPOTrainer` beside TRL's own trainer, on the same environments with the same scripted policy."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from openreward.environments import ToolOutput, tool

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvGRPOTrainer, MultiEnvSpec, errors
from multienv.training.seams import SEAMS, missing_seams
from tests.support.environments import Base, EchoParams, Steps, output
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer


class NastyEnvironment(Base):
    """Everything a policy and an environment can do to each other."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": f"task {number}"} for number in range(8)]
    calls: ClassVar[list[tuple[str, str]]] = []

    @tool
    async def bash(self, params: EchoParams) -> ToolOutput:
        """Run a command."""
        await asyncio.sleep(0.01 * (len(self.calls) % 3))
        self.calls.append((self.task_spec["target"], params.text))
        if params.text == "boom":
            raise RuntimeError("boom")
        return output("x" * 5_000 if params.text == "long" else f"ran {params.text}", 0.125)

    @tool
    async def submit(self, params: Steps) -> ToolOutput:
        """Submit the answer."""
        return output("ok", float(params.n), finished=True)


def nasty_policy(text: str, turn: int) -> str:  # noqa: PLR0911 - one line per case
    match = re.search(r"Echo 'task (\d)'", text)
    task = int(match[1]) if match else 6
    several = [call("bash", text="a"), call("nope", x=1), call("add", a=1, b=2), call("bash", text="b")]
    match task:
        case 0:
            return call("bash", text="ls") if turn < 3 else "done"
        case 1:
            return "\n".join(several) if turn < 4 else "done"
        case 2:
            return call("bash", text="long") if turn < 2 else "done"
        case 3:
            return "\n".join([call("bash", wrong=1), call("bash", text="boom"), call("bash")]) if turn < 3 else "done"
        case 4:
            return call("submit", n=3) if turn < 1 else "thanks"
        case 5:
            return '<tool_call>\n{"name": "bash", "arguments": "text"}\n</tool_call>' if turn < 1 else "done"
        case 7:
            return call("bash", text="again")  # until the iteration cap
    return "no tools at all"


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One number.
        b: The other.
    """
    return a + b


@pytest.fixture(scope="module")
def nasty_server() -> Iterator[ORSServer]:
    with ORSServer([NastyEnvironment]) as server:
        yield server
        assert server.open_sessions == []


def play(server: ORSServer, output_dir: Path, trainer_class: type | None, **switches: Any) -> dict[str, Any]:
    """Train one step and return everything that must not depend on who trains."""
    seen: list[Any] = []

    def watch(environments: list[Any], completions: list[Any], **_: Any) -> list[float]:
        seen.extend(
            (
                e.episode.task_id,
                e.episode.status,
                e.rewards,
                [(s.tool, s.arguments, s.text) for s in e.episode.steps],
                c,
            )
            for e, c in zip(environments, completions, strict=True)
        )
        return [0.5 * len(environment.rewards) for environment in environments]

    NastyEnvironment.calls.clear()
    declared = MultiEnvSpec({"nasty": server.url}, reward_funcs=watch, curriculum="dataset")
    with declared as spec, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        options = {"per_device_train_batch_size": 16, "max_completion_length": 1_200, "max_tool_calling_iterations": 4}
        slots: dict[str, Any] = {"tools": [add], **switches}
        slots |= spec.trainer_kwargs() if trainer_class is None else {"spec": spec}
        trainer = scripted_trainer(nasty_policy, output_dir, options, trainer_class, **slots)
        trainer.train()
    batch = trainer._buffered_inputs[0]
    keys = ("prompt_ids", "completion_ids", "completion_mask", "tool_mask", "advantages")
    rows = [[batch[key][row].tolist() for key in keys] for row in range(16)]
    timed = ("time", "runtime", "per_second")
    log = {
        key: value
        for key, value in trainer.state.log_history[0].items()
        if not key.startswith("env/") and not any(word in key for word in timed)
    }
    return {"seen": seen, "rows": sorted(rows), "log": log, "calls": sorted(NastyEnvironment.calls)}


@pytest.fixture(scope="module")
def trl_run(nasty_server: ORSServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return play(nasty_server, tmp_path_factory.mktemp("trl"), None)


@pytest.mark.parametrize("is_concurrent", [True, False])
def test_token_ids_masks_rewards_advantages_and_metrics_are_trls(
    nasty_server: ORSServer, tmp_path: Path, trl_run: dict[str, Any], is_concurrent: bool
) -> None:
    switches = {"is_concurrent": is_concurrent, "stop_when_finished": False, "shows_schemas": False}
    ours = play(nasty_server, tmp_path, MultiEnvGRPOTrainer, **switches)
    for what, trls in trl_run.items():
        assert ours[what] == trls, what
    assert ours["log"]["tools/failure_frequency"] > 0
    statuses = {status for _, status, *_ in ours["seen"]}
    assert statuses == set(EpisodeStatus) - {EpisodeStatus.REFUSED}


def test_a_rollout_that_is_over_ends_at_the_policys_own_eos_and_the_others_are_untouched(
    nasty_server: ORSServer, tmp_path: Path, trl_run: dict[str, Any]
) -> None:
    options = {"stop_when_finished": True, "shows_schemas": False}
    ours = play(nasty_server, tmp_path, MultiEnvGRPOTrainer, **options)
    ended = (EpisodeStatus.FINISHED, EpisodeStatus.FAILED)
    over = [row for row, (_, status, *_) in enumerate(ours["seen"]) if status in ended]
    assert {ours["seen"][row][1] for row in over} == set(ended)
    for row, (one, other) in enumerate(zip(ours["seen"], trl_run["seen"], strict=True)):
        if row in over:
            assert (one[-1][-1]["role"], other[-1][-1]["role"]) == ("tool", "assistant")
            assert one[-1] == other[-1][:-1]
        else:
            assert one == other
    assert ours["log"]["completions/clipped_ratio"] == trl_run["log"]["completions/clipped_ratio"]


def test_a_stopped_completion_is_not_taken_for_truncated(nasty_server: ORSServer, tmp_path: Path) -> None:
    with MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, indices=[4])}) as spec:
        options = {"per_device_train_batch_size": 2, "mask_truncated_completions": True}
        trainer = scripted_trainer(nasty_policy, tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
        trainer.train()
    batch = trainer._buffered_inputs[0]
    length = int(batch["completion_mask"][0].sum())
    assert length > 0
    assert batch["completion_ids"][0][length - 1] == trainer._tokenizer.eos_token_id
    assert torch.all(batch["tool_mask"][0][:length] == 1), "no result token is left behind the policy's last one"
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 0.0


def test_a_batch_that_needs_too_many_sessions_is_refused_before_any_is_opened(
    nasty_server: ORSServer, tmp_path: Path
) -> None:
    spec = MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, limits=Limits(max_sessions=7), discover_task_tools=False)})
    with spec:
        trainer = scripted_trainer(nasty_policy, tmp_path, {}, MultiEnvGRPOTrainer, spec=spec)
        nasty_server.requests.clear()
        with pytest.raises(errors.SessionLimitError, match="4 groups, and in the mixture the limits let nasty hold 3"):
            trainer.train()
    assert "/create" not in nasty_server.paths()


def test_a_batch_of_trls_own_sampler_that_needs_too_many_sessions_is_refused_as_well(
    nasty_server: ORSServer, tmp_path: Path
) -> None:
    nasty = EnvSpec(nasty_server.url, limits=Limits(max_sessions=7), discover_task_tools=False)
    with MultiEnvSpec({"nasty": nasty}, curriculum="dataset") as spec:
        trainer = scripted_trainer(nasty_policy, tmp_path, {}, MultiEnvGRPOTrainer, spec=spec)
        nasty_server.requests.clear()
        with pytest.raises(errors.SessionLimitError, match="needs 8 sessions of environment 'nasty' .* share .* is 7"):
            trainer.train()
    assert "/create" not in nasty_server.paths()


def test_sessions_are_opened_at_once_and_closed_after_the_last_reward_function(tmp_path: Path) -> None:
    class SlowStart(Base):
        tasks: ClassVar[list[dict[str, Any]]] = [{"target": "x"}]

        async def setup(self) -> None:
            await asyncio.sleep(0.5)

        @tool
        async def wait(self) -> ToolOutput:
            """Wait."""
            await asyncio.sleep(0.3)
            return output("waited", 1.0)

    num_open: list[int] = []
    with ORSServer([SlowStart]) as server:

        def count(environments: list[Any], **_: Any) -> list[None]:
            num_open.append(len(server.open_sessions))
            return [None] * len(environments)

        with MultiEnvSpec({"slow": EnvSpec(server.url, discover_task_tools=False)}, reward_funcs=count) as spec:
            options = {"per_device_train_batch_size": 12, "num_generations": 12}
            policy = lambda _, turn: call("wait") if turn < 2 else "done"  # noqa: E731 - a policy in a line
            trainer = scripted_trainer(policy, tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
            started = time.monotonic()
            trainer.train()
            took_s = time.monotonic() - started
            deadline = time.monotonic() + 5
            while server.open_sessions and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.open_sessions == [], "they close without being told"
    assert num_open == [12]
    assert took_s < 12 * 0.5, "one after the other, the openings alone would take this long"


def test_the_plain_trainers_sessions_close_after_the_last_of_the_specs_functions(
    nasty_server: ORSServer, tmp_path: Path
) -> None:
    with MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, indices=[0, 6], discover_task_tools=False)}) as spec:
        options = {"per_device_train_batch_size": 4}
        trainer = scripted_trainer(nasty_policy, tmp_path, options, **spec.trainer_kwargs())
        trainer.train()
        deadline = time.monotonic() + 5
        while nasty_server.open_sessions and time.monotonic() < deadline:
            time.sleep(0.01)
        assert nasty_server.open_sessions == []


def test_read_ahead_opens_the_next_batchs_sessions_early_and_changes_nothing(
    nasty_server: ORSServer, tmp_path: Path
) -> None:
    logs = {}
    opened: dict[bool, list[int]] = {False: [], True: []}
    for read_ahead in (False, True):

        def count(environments: list[Any], **_: Any) -> list[None]:
            opened[read_ahead].append(nasty_server.paths().count("/create"))  # noqa: B023 - called in this turn only
            return [None] * len(environments)

        nasty_server.requests.clear()
        three_batches = [0, 4, 6] * 3  # of one epoch: the data loader reads ahead within it
        environments = {"nasty": EnvSpec(nasty_server.url, indices=three_batches, discover_task_tools=False)}
        with MultiEnvSpec(environments, reward_funcs=count) as spec:
            options = {"per_device_train_batch_size": 6, "max_steps": 3}
            trainer = scripted_trainer(
                nasty_policy, tmp_path / str(read_ahead), options, MultiEnvGRPOTrainer, spec=spec, read_ahead=read_ahead
            )
            trainer.train()
            logs[read_ahead] = [entry.get("rewards/nasty/mean") for entry in trainer.state.log_history]
    assert logs[True] == logs[False]
    assert opened[False] == [6, 12, 18]
    assert opened[True][0] > 6, "when the first batch is scored, sessions of the second are open already"
    assert opened[True][-1] == 18, "and each is used"
    assert nasty_server.open_sessions == []


def test_what_contradicts_is_refused(nasty_server: ORSServer, tmp_path: Path) -> None:
    with pytest.raises(errors.SpecError, match="spec is of type dict; accepted: a MultiEnvSpec"):
        MultiEnvGRPOTrainer("model", spec={})  # type: ignore[arg-type]
    with MultiEnvSpec({"nasty": nasty_server.url}) as spec, pytest.raises(errors.SpecError, match="both have nasty"):
        MultiEnvGRPOTrainer("model", spec=spec, environment_factory={"nasty": object})
    with MultiEnvSpec({"nasty": nasty_server.url}) as spec, pytest.raises(errors.SpecError, match="own nasty; spec=.*"):
        MultiEnvGRPOTrainer("model", spec=spec, **spec.trainer_kwargs())
    with MultiEnvSpec({"nasty": nasty_server.url}) as spec, MultiEnvSpec({"nasty": nasty_server.url}) as other:
        with pytest.raises(errors.SpecError, match="both have nasty"):
            MultiEnvGRPOTrainer("model", spec=spec, environment_factory=other.environment_factory)


def test_a_trl_with_other_seams_is_named_and_left_to_itself(
    monkeypatch: pytest.MonkeyPatch, nasty_server: ORSServer, tmp_path: Path
) -> None:
    from multienv.training import seams

    monkeypatch.setattr(seams, "SEAMS", {**SEAMS, "_tool_call_loop": ("self", "other")})
    with MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, indices=[0], discover_task_tools=False)}) as spec:
        with pytest.warns(RuntimeWarning, match=r"_tool_call_loop is \(self, prompts"):
            trainer = scripted_trainer(
                nasty_policy, tmp_path, {"per_device_train_batch_size": 2}, MultiEnvGRPOTrainer, spec=spec
            )
        trainer.train()
    assert trainer.state.log_history[0]["rewards/nasty/mean"] == 0.125


def test_a_trl_with_another_sampler_orders_the_rows_itself_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, nasty_server: ORSServer, tmp_path: Path
) -> None:
    from multienv.training import seams

    monkeypatch.setattr(seams, "SEAMS", {**SEAMS, "_get_train_sampler": ("self", "other")})
    declared = EnvSpec(nasty_server.url, sampling_weight=2.0, discover_task_tools=False)
    with MultiEnvSpec({"nasty": declared}) as spec:
        with pytest.warns(RuntimeWarning, match=r"\(self, dataset\)\); the order of the tasks is TRL's own, whatever"):
            trainer = scripted_trainer(
                nasty_policy, tmp_path, {"per_device_train_batch_size": 2}, MultiEnvGRPOTrainer, spec=spec
            )
        assert type(trainer._get_train_sampler()).__name__ == "RepeatSampler"
    assert trainer._is_concurrent


def test_the_seams_are_those_of_this_trl() -> None:
    from trl import GRPOTrainer

    assert missing_seams(GRPOTrainer) == {}


class Game:
    """An environment class of another making, with a tool called like one of our attributes."""

    def __init__(self) -> None:
        self.moves = 0

    def reset(self, **_: Any) -> str:
        self.moves = 0
        return "Echo 'game' to win."

    def move(self) -> str:
        """Move."""
        self.moves += 1
        return "moved"

    def finished(self) -> bool:
        """Ask whether the game is over."""
        return False


def test_an_environment_class_of_another_making_trains_beside_the_specs(
    nasty_server: ORSServer, tmp_path: Path
) -> None:
    from datasets import Dataset, concatenate_datasets

    def moves(environments: list[Any], **_: Any) -> list[float | None]:
        return [float(e.moves) if isinstance(e, Game) else None for e in environments]

    def policy(text: str, turn: int) -> str:
        return (call("move") if turn < 3 else "done") if "Echo 'game'" in text else nasty_policy(text, turn)

    with MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, indices=[4], discover_task_tools=False)}) as spec:
        game = {"prompt": [[{"role": "user", "content": ""}]], "environment": ["game"]}
        rows = concatenate_datasets([spec.train_dataset, Dataset.from_dict(game)])
        trainer = scripted_trainer(
            policy,
            tmp_path,
            {"per_device_train_batch_size": 4},
            MultiEnvGRPOTrainer,
            spec=spec,
            train_dataset=rows,
            environment_factory={"game": Game},
            reward_funcs=moves,
        )
        trainer.train()
    log = trainer.state.log_history[0]
    assert (log["rewards/nasty/mean"], log["rewards/moves/mean"]) == (3.0, 3.0)


def test_a_reward_function_given_to_the_trainer_may_still_call_tools(nasty_server: ORSServer, tmp_path: Path) -> None:
    def grade(environments: list[Any], **_: Any) -> list[float]:
        return [float(e.bash(text="grade") == "ran grade") for e in environments]

    with MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, indices=[6], discover_task_tools=False)}) as spec:
        options = {"per_device_train_batch_size": 2}
        trainer = scripted_trainer(nasty_policy, tmp_path, options, MultiEnvGRPOTrainer, spec=spec, reward_funcs=grade)
        trainer.train()
    assert trainer.state.log_history[0]["rewards/grade/mean"] == 1.0


def test_a_row_that_cannot_be_reset_leaves_no_session_open(nasty_server: ORSServer, tmp_path: Path) -> None:
    with MultiEnvSpec({"nasty": EnvSpec(nasty_server.url, indices=[0, 1], discover_task_tools=False)}) as spec:
        rows = spec.train_dataset.map(lambda row: {"task_index": -1 if row["task_index"] == 1 else 0})
        options = {"per_device_train_batch_size": 4, "shuffle_dataset": False}
        trainer = scripted_trainer(nasty_policy, tmp_path, options, MultiEnvGRPOTrainer, spec=spec, train_dataset=rows)
        with pytest.raises(errors.RoutingError, match="has task_index=-1"):
            trainer.train()
        deadline = time.monotonic() + 5
        while nasty_server.open_sessions and time.monotonic() < deadline:
            time.sleep(0.01)
        assert nasty_server.open_sessions == []


def test_a_reset_that_was_given_up_touches_no_later_episode(tmp_path: Path) -> None:
    class SlowStart(Base):
        async def setup(self) -> None:
            await asyncio.sleep(0.5)

        @tool
        async def wait(self) -> ToolOutput:
            """Wait."""
            return output("waited", 1.0, finished=True)

    with ORSServer([SlowStart]) as server:
        limits = Limits(max_sessions=1)
        with MultiEnvSpec({"slow": EnvSpec(server.url, limits=limits, discover_task_tools=False)}) as spec:
            adapter: Any = spec.environment_factory["slow"]()
            adapter._start_reset({"task_index": 0})
            time.sleep(0.1)  # it is under way when it is given up
            adapter._release()
            assert adapter.reset(task_index=1) == "Echo 'world' to win."
            time.sleep(0.6)  # the given-up one would have come by now
            assert (adapter.wait(), adapter.reward, adapter.episode.task_id) == ("waited", 1.0, "slow/train/1")
        assert server.open_sessions == []
