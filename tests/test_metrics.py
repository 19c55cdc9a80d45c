"""What is logged of each environment, and which of TRL's limits cut a completion short."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openreward.environments import ToolOutput, terminal, tool

from multienv import EnvSpec, EpisodeStatus, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.reporting import read_episodes
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from multienv.training.episodes import cutoff, own_reward
from multienv.training.metrics import STATUSES, Figures, dead_groups, environment_metrics
from tests.support.environments import Base, EchoEnvironment, EchoParams, output
from tests.support.servers import ORSServer
from tests.support.training import call, scripted_trainer

NAMES = ["a", "b", "c"]
NAN = math.nan

# The arithmetic

numbers = st.floats(-1e3, 1e3)
figures = st.builds(
    Figures,
    environment=st.integers(0, 2),
    status=st.integers(0, len(STATUSES) - 1),
    reward=numbers | st.just(NAN),
    total=numbers | st.just(NAN),
    is_success=st.sampled_from([0.0, 1.0, NAN]),
    num_tool_calls=st.integers(0, 5),
    num_tool_failures=st.integers(0, 5),
    num_turns=st.integers(0, 5),
    num_completion_tokens=st.integers(0, 500),
    open_s=st.floats(0, 10) | st.just(NAN),
    tool_s=st.floats(0, 10),
    num_retries=st.integers(0, 2),
    circuit=st.sampled_from([0.0, 1.0, 2.0, NAN]),
)
groups = figures.flatmap(
    lambda first: st.lists(figures, min_size=1, max_size=1).map(
        lambda rest: [first, *(other._replace(environment=first.environment) for other in rest)]
    )
)


@given(st.lists(groups, max_size=5))
def test_every_rollout_is_counted_once_and_nothing_is_logged_that_is_no_number(batch: list[list[Figures]]) -> None:
    rollouts = [rollout for group in batch for rollout in group]
    metrics = environment_metrics(rollouts, NAMES, 2)
    assert not any(math.isnan(value) for value in metrics.values())
    assert sum(metrics[f"env/{name}/rollouts"] for name in NAMES) == len(rollouts)
    assert sum(metrics.get(f"env/{name}/zero_signal_groups", 0) for name in NAMES) == len(dead_groups(rollouts, 2))
    shares = [metrics[f"env/{name}/token_share"] for name in NAMES if f"env/{name}/token_share" in metrics]
    assert sum(shares) == pytest.approx(1 if any(r.num_completion_tokens for r in rollouts) else 0)
    for place, name in enumerate(NAMES):
        own = [rollout for rollout in rollouts if rollout.environment == place]
        if not own:
            assert [key for key in metrics if key.startswith(f"env/{name}/")] == [f"env/{name}/rollouts"]
            continue
        assert sum(metrics[f"env/{name}/status/{status}"] for status in STATUSES) == pytest.approx(1)
        scored = [rollout.reward for rollout in own if not math.isnan(rollout.reward)]
        assert metrics[f"env/{name}/scored_fraction"] == len(scored) / len(own)
        assert (f"env/{name}/reward" in metrics) == bool(scored)
        assert (f"env/{name}/reward_std" in metrics) == (len(scored) > 1)


@given(st.lists(groups, max_size=5), st.randoms())
def test_the_order_of_groups_and_the_other_environments_change_nothing(batch: list[list[Figures]], rng: Any) -> None:
    def of_a(groups: list[list[Figures]]) -> dict[str, float]:
        metrics = environment_metrics([rollout for group in groups for rollout in group], NAMES, 2)
        return {key: value for key, value in metrics.items() if key.startswith("env/a/") and "token_share" not in key}

    alone = [group for group in batch if group[0].environment == 0]
    shuffled = rng.sample(batch, len(batch))
    assert of_a(shuffled) == pytest.approx(of_a(alone))
    assert of_a(shuffled) == pytest.approx(of_a(batch))


def test_a_worked_example() -> None:
    finished, failed = STATUSES.index(EpisodeStatus.FINISHED), STATUSES.index(EpisodeStatus.FAILED)
    rollouts = [
        Figures(0, finished, 1.0, 1.0, 1.0, 3, 1, 4, 30, 0.5, 1.0, 0, 0.0),
        Figures(0, failed, NAN, NAN, NAN, 1, 1, 2, 10, NAN, 3.0, 2, 2.0),
        Figures(1, finished, 0.0, 0.0, 0.0, 0, 0, 1, 60, 0.1, 0.0, 0, 0.0),
        Figures(1, finished, 0.5, 0.5, 1.0, 0, 0, 1, 60, 0.3, 0.0, 0, 0.0),
    ]
    metrics = environment_metrics(rollouts, NAMES, 2)
    assert {key.removeprefix("env/a/"): value for key, value in metrics.items() if key.startswith("env/a/")} == {
        "rollouts": 2,
        "reward": 1.0,
        "success": 1.0,
        "scored_fraction": 0.5,
        "status/finished": 0.5,
        "status/unfinished": 0.0,
        "status/truncated": 0.0,
        "status/failed": 0.5,
        "status/refused": 0.0,
        "tool_calls": 2.0,
        "tool_failures": 1.0,
        "turns": 3.0,
        "completion_tokens": 20.0,
        "token_share": 0.25,
        "zero_signal_groups": 1.0,
        "open_s": 0.5,
        "tool_s": 2.0,
        "retries": 2.0,
        "circuit": 2.0,
    }
    assert metrics["env/b/reward_std"] == pytest.approx(math.sqrt(0.125))
    assert (metrics["env/b/success"], metrics["env/b/zero_signal_groups"]) == (0.5, 0.0)
    assert metrics["env/c/rollouts"] == 0.0


@pytest.mark.parametrize(
    ("totals", "is_dead"),
    [
        ([NAN, NAN, NAN], True),
        ([1.0, NAN, NAN], True),
        ([0.1, 0.1 + 1e-9, NAN], True),
        ([0.0, 1e-3, NAN], False),
        ([1.0, 1.0, 0.0], False),
    ],
)
def test_a_group_without_signal_has_nothing_to_compare(totals: list[float], *, is_dead: bool) -> None:
    assert dead_groups([Figures(1, 0, total=total) for total in totals], 3) == [1] * is_dead


def test_an_environments_reward_is_its_own_column_or_else_its_users_functions() -> None:
    columns = ["a", "a/f", "ab/f", "ab/g", "shared"]
    assert own_reward("a", columns, [0.5, 1.0, 1.0, 1.0, 9.0]) == 0.5
    assert own_reward("a", columns, [NAN, 1.0, 1.0, 1.0, 9.0]) is None
    assert own_reward("ab", columns, [NAN, 1.0, 2.0, NAN, 9.0]) == 2.0
    assert own_reward("ab", columns, [NAN, 1.0, NAN, NAN, 9.0]) is None
    assert own_reward("c", columns, [1.0] * 5) is None


CALLS = [{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": "x"}]


@pytest.mark.parametrize(
    ("completion", "ids", "reason"),
    [
        ([*CALLS, {"role": "assistant", "content": "done"}], [1, 2], None),
        ([*CALLS, {"role": "assistant", "content": "done"}], [1, 0], None),
        ([*CALLS, {"role": "assistant", "content": "do"}], [1, 5], "max_completion_length=9 is reached"),
        (CALLS, [1, 5], "max_completion_length=9 is reached"),
        (CALLS, [1, 2], None),
        ([*CALLS, *CALLS, CALLS[0]], [1, 2], "max_tool_calling_iterations=2 is reached"),
        ([*CALLS, CALLS[0]], [1, 2], "the result of its last tool call did not fit"),
        ("a text", [1, 2], None),
        ("a te", [1], "max_completion_length=9 is reached"),
    ],
)
def test_the_limit_that_cut_a_completion_short_is_named(completion: Any, ids: list[int], reason: str | None) -> None:
    told = cutoff(completion, ids, frozenset({0, 2}), 9, 2)
    assert told == reason if reason is None else str(told).startswith(reason)


# Real steps


def play(text: str, turn: int) -> str:
    """Climb in two calls, or echo what is asked for, the moon excepted."""
    if '"up"' in text:
        return [call("up", n=1), call("nope"), call("up", n=3)][turn] if turn < 3 else "done"
    match = re.search(r"Echo '(\w+)' to win", text)
    if match is None:
        return "There is no task."
    word = match[1]
    return call("echo", text="no" if word == "moon" else word) if turn < 1 else "done"


def logs_of(
    environments: dict[str, Any], directory: Path, stops: ORSServer | None = None, **options: Any
) -> list[dict[str, float]]:
    settings = {"per_device_train_batch_size": 6 * len(environments), "shuffle_dataset": False} | options
    with MultiEnvSpec(environments) as spec, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        trainer = scripted_trainer(play, directory, settings, MultiEnvGRPOTrainer, spec=spec)
        if stops is not None:
            stops.stop()
        trainer.train()
    return [{k: v for k, v in entry.items() if k.startswith("env/")} for entry in trainer.state.log_history]


def test_a_dead_environment_shows_and_the_others_metrics_are_as_without_it(
    climb_server: ORSServer, tmp_path: Path
) -> None:
    climb = EnvSpec(climb_server.url, discover_task_tools=False)
    with_it, without = tmp_path / "with", tmp_path / "without"
    server = ORSServer([EchoEnvironment]).start()
    dead = {"climb": climb, "echo": EnvSpec(server.url, discover_task_tools=False)}
    together = logs_of(dead, with_it, server, max_steps=2)
    alone = logs_of({"climb": climb}, without, max_steps=2)
    for step in (0, 1):
        expected = {key: value for key, value in alone[step].items() if key.startswith("env/climb/")}
        assert expected["env/climb/tool_calls"] == 3.0
        assert expected["env/climb/tool_failures"] == 1.0
        assert {key for key in together[step] if key.startswith("env/climb/")} == expected.keys()
        for key, value in expected.items():
            if not key.endswith(("open_s", "tool_s", "token_share")):
                assert together[step][key] == value, key
    failed, refused = together[:2]
    assert (failed["env/echo/status/failed"], refused["env/echo/status/refused"]) == (1.0, 1.0)
    assert (failed["env/echo/circuit"], refused["env/echo/circuit"]) == (2.0, 2.0)
    assert (failed["env/echo/rollouts"], failed["env/echo/zero_signal_groups"]) == (6.0, 3.0)
    assert failed["env/echo/scored_fraction"] == 0.0
    assert not failed.keys() & {"env/echo/reward", "env/echo/reward_std", "env/echo/success", "env/echo/open_s"}
    episodes = [e for e in read_episodes(with_it) if e.environment == "echo"]
    assert {(e.training_step, e.status, e.error) for e in episodes} == {
        (0, EpisodeStatus.FAILED, "ServerUnreachableError"),
        (1, EpisodeStatus.REFUSED, "CircuitOpenError"),
    }
    assert all(e.reason for e in episodes)
    assert not any("echo" in key for step in alone for key in step)


def test_two_environments_are_told_apart_and_a_batch_without_one_says_so(
    climb_server: ORSServer, echo_server: ORSServer, tmp_path: Path
) -> None:
    both = {
        "climb": EnvSpec(climb_server.url, discover_task_tools=False),
        "echo": EnvSpec(echo_server.url, discover_task_tools=False),
    }
    log, *_ = logs_of(both, tmp_path / "both")
    assert (log["env/climb/reward"], log["env/climb/success"], log["env/climb/reward_std"]) == (1.0, 1.0, 0.0)
    assert log["env/echo/reward"] == pytest.approx(2 / 3)
    assert log["env/echo/success"] == pytest.approx(2 / 3)
    assert log["env/echo/reward_std"] == pytest.approx(math.sqrt((4 * (1 / 3) ** 2 + 2 * (2 / 3) ** 2) / 5))
    assert (log["env/echo/status/finished"], log["env/echo/status/unfinished"]) == pytest.approx((2 / 3, 1 / 3))
    assert (log["env/climb/turns"], log["env/echo/turns"]) == pytest.approx((3.0, 4 / 3))
    assert log["env/climb/token_share"] + log["env/echo/token_share"] == pytest.approx(1.0)
    assert log["env/climb/completion_tokens"] > log["env/echo/completion_tokens"]
    assert log["env/climb/tool_s"] > 0
    first, second, *_ = logs_of(both, tmp_path / "apart", per_device_train_batch_size=6, max_steps=2)
    assert {key for key in first if "echo" in key} == {"env/echo/rollouts"}
    assert (first["env/echo/rollouts"], second["env/echo/rollouts"]) == (0.0, 6.0)
    assert {key for key in second if "climb" in key} == {"env/climb/rollouts"}


def test_evaluation_has_metrics_of_its_own(climb_server: ORSServer, echo_server: ORSServer, tmp_path: Path) -> None:
    both = {
        "climb": EnvSpec(climb_server.url, discover_task_tools=False),
        "echo": EnvSpec(echo_server.url, discover_task_tools=False),
    }
    with MultiEnvSpec(both) as spec:
        options = {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 12, "num_generations_eval": 1}
        slots: dict[str, Any] = {"spec": spec, "eval_dataset": spec.train_dataset}
        trainer = scripted_trainer(play, tmp_path, options, MultiEnvGRPOTrainer, **slots)
        told = trainer.evaluate()
        (first,) = trainer.state.log_history
        trainer.train()
    assert first["eval_env/climb/reward"] == 1.0
    assert first["eval_env/echo/reward"] == pytest.approx(2 / 3)
    assert not any(key.startswith("env/") for key in first)
    assert told["eval_loss"] == first["eval_loss"]
    assert [entry for entry in trainer.state.log_history if "env/climb/rollouts" in entry]


@pytest.mark.filterwarnings("ignore:an episode failed:RuntimeWarning")
@pytest.mark.parametrize(("num_faults", "num_retries", "status"), [(2, 2, "unfinished"), (99, 4, "failed")])
def test_opening_again_is_counted(tmp_path: Path, num_faults: int, num_retries: int, status: str) -> None:
    limits = Limits(max_retries=1 if num_faults > 4 else 2, failure_threshold=None)
    with FaultServer(faults=[Fault(FaultKind.ERROR, Phase.OPENING, times=num_faults)]) as server:
        declared = EnvSpec(server.url, num_tasks=1, limits=limits, discover_task_tools=False)
        with MultiEnvSpec({"faults": declared}) as spec:
            options = {"per_device_train_batch_size": 4, "num_generations": 4}
            trainer = scripted_trainer(lambda *_: "done", tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
            trainer.train()
    log = trainer.state.log_history[0]
    assert (log["env/faults/retries"], log[f"env/faults/status/{status}"]) == (num_retries, 1.0)
    assert sum(e.num_retries for e in read_episodes(tmp_path)) == num_retries


class Game:
    """An environment class that knows nothing of ORS."""

    def __init__(self) -> None:
        self.finished = False

    def reset(self, level: int, **_: Any) -> str:
        self.finished, self.level = False, level
        if level == 2:
            raise RuntimeError("no board")
        return f"Level {level}."

    def move(self) -> str:
        """Move."""
        if self.level == 1:
            raise ValueError("illegal")
        self.finished = True
        return "moved"

    def get_reward(self) -> float:
        return float(self.finished)


@pytest.mark.filterwarnings("ignore:environment 'game'. an episode failed:RuntimeWarning")
def test_an_environment_that_knows_nothing_of_ors_is_told_too(tmp_path: Path) -> None:
    from datasets import Dataset

    from multienv import ForeignSpec

    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * 3, "level": [0, 1, 2]})
    with MultiEnvSpec({"game": ForeignSpec(train_dataset=rows, environment_factory=Game)}) as spec:
        policy = lambda _, turn: call("move") if turn < 1 else "done"  # noqa: E731 - a policy in a line
        options = {"per_device_train_batch_size": 6}
        trainer = scripted_trainer(policy, tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
        trainer.train()
    log = trainer.state.log_history[0]
    for status in ("finished", "unfinished", "failed"):
        assert log[f"env/game/status/{status}"] == pytest.approx(1 / 3)
    assert (log["env/game/reward"], log["env/game/tool_calls"]) == (0.5, 1.0)
    assert log["env/game/tool_failures"] == pytest.approx(2 / 3)
    assert "env/game/circuit" not in log
    assert {e.reason for e in read_episodes(tmp_path)} == {"", "RuntimeError('no board')"}


# What TRL's own limits cut short


class Graded(Base):
    """Its last message is graded, whatever it is."""

    graded: ClassVar[list[str]] = []

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return output("a wall", 0.25)

    @tool
    def read(self) -> ToolOutput:
        """Read a long book."""
        return output("word " * 1_000, 0.5)

    @tool
    def leave(self) -> ToolOutput:
        """Leave."""
        return output("bye " * 1_000, 0.75, finished=True)

    @terminal
    @tool
    def submit(self, params: EchoParams) -> ToolOutput:
        """Grade the answer."""
        self.graded.append(params.text)
        return output("graded", 1.0)


@pytest.fixture(scope="module")
def graded_server() -> Iterator[ORSServer]:
    with ORSServer([Graded]) as server:
        yield server


def talk(kind: str) -> Any:
    policies = {
        "goes on": lambda _, turn: call("look"),
        "reads": lambda _, turn: call("read"),
        "leaves": lambda _, turn: call("leave"),
        "babbles": lambda _, turn: call("look") if turn < 1 else "la " * 500,
        "answers": lambda _, turn: call("look") if turn < 1 else "a wall",
    }
    return policies[kind]


OURS: dict[str, tuple[EpisodeStatus, str, float, bool]] = {
    "goes on": (EpisodeStatus.TRUNCATED, "max_tool_calling_iterations=3 is reached", 0.25, False),
    "reads": (EpisodeStatus.TRUNCATED, "the result of its last tool call did not fit", 0.5, False),
    "leaves": (EpisodeStatus.FINISHED, "", 0.75, False),
    "babbles": (EpisodeStatus.TRUNCATED, "max_completion_length=300 is reached", 0.25, False),
    "answers": (EpisodeStatus.FINISHED, "", 1.0, True),
}
PLAIN = OURS | {
    "goes on": (EpisodeStatus.TRUNCATED, "a limit of the trainer came before the result", 0.25, False),
    "reads": (EpisodeStatus.TRUNCATED, "a limit of the trainer came before the result", 0.5, False),
    "babbles": (EpisodeStatus.FINISHED, "", 1.0, True),  # the completion alone does not tell
}


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("is_plain", [False, True])
def test_what_trls_limits_cut_short_is_truncated_before_it_is_scored_and_is_not_graded(
    graded_server: ORSServer, tmp_path: Path, kind: str, *, is_plain: bool
) -> None:
    seen: list[Any] = []

    def watch(environments: list[Any], **_: Any) -> list[None]:
        seen.extend((e.episode.status, e.episode.reason, e.reward) for e in environments)
        return [None] * len(environments)

    Graded.graded.clear()
    with MultiEnvSpec({"graded": EnvSpec(graded_server.url, indices=[0])}, reward_funcs=watch) as spec:
        options = {"per_device_train_batch_size": 2, "max_tool_calling_iterations": 3, "max_completion_length": 300}
        slots: dict[str, Any] = spec.trainer_kwargs() if is_plain else {"spec": spec}
        trainer_class = None if is_plain else MultiEnvGRPOTrainer
        trainer = scripted_trainer(talk(kind), tmp_path, options, trainer_class, **slots)
        trainer.train()
    status, reason, reward, is_graded = (PLAIN if is_plain else OURS)[kind]
    for one_status, one_reason, one_reward in seen:
        assert (one_status, one_reward) == (status, reward)
        assert one_reason == reason if not reason else one_reason.startswith(reason)
    assert bool(Graded.graded) == is_graded
    if not is_plain:
        (told,) = {(e.status, e.reason, e.reward) for e in read_episodes(tmp_path)}
        assert told == seen[0]
        assert trainer.state.log_history[0][f"env/graded/status/{status}"] == 1.0
        calls = {"goes on": 3, "reads": 1, "leaves": 1, "babbles": 1, "answers": 1}
        assert trainer.state.log_history[0]["env/graded/tool_calls"] == calls[kind], (
            "grading is no call of the policy's"
        )


def test_a_reward_function_may_still_use_an_episode_that_trls_limits_cut_short(
    graded_server: ORSServer, tmp_path: Path
) -> None:
    def look(environments: list[Any], **_: Any) -> list[float]:
        assert {e.episode.status for e in environments} == {EpisodeStatus.TRUNCATED}
        return [float(e.look() == "a wall") for e in environments]

    declared = {"graded": EnvSpec(graded_server.url, indices=[0], reward_funcs=look)}
    with MultiEnvSpec(declared) as spec:
        options = {"per_device_train_batch_size": 2, "max_tool_calling_iterations": 1}
        trainer = scripted_trainer(talk("goes on"), tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
        trainer.train()
    assert trainer.state.log_history[0]["rewards/graded/look/mean"] == 1.0


def test_another_rule_for_success_can_be_put_in(climb_server: ORSServer, tmp_path: Path) -> None:
    with MultiEnvSpec({"climb": EnvSpec(climb_server.url, discover_task_tools=False)}) as spec:
        options = {"per_device_train_batch_size": 6}
        trainer = scripted_trainer(play, tmp_path, options, MultiEnvGRPOTrainer, spec=spec)
        trainer.is_success = lambda episode: len(episode.steps) > 3
        trainer.train()
    assert trainer.state.log_history[0]["env/climb/success"] == 0.0


def test_an_infinite_reward_ends_no_run() -> None:
    rollouts = [Figures(0, 0, reward=reward, total=reward) for reward in (math.inf, 1.0)]
    metrics = environment_metrics(rollouts, NAMES, 2)
    assert metrics["env/a/reward"] == math.inf
    assert "env/a/reward_std" not in metrics
