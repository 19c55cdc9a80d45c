"""What a failing server costs: every fault in every phase, over HTTP, inside training runs. The docs have the table."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from multienv import Adapter, EnvSpec, Episode, EpisodeStatus, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.sessions.breaker import Circuit
from multienv.testing import Fault, FaultKind, FaultServer, Phase
from tests.support.training import call, scripted_trainer

DOCS = Path(__file__).parents[1] / "docs" / "failures.md"
LIMITS = Limits(
    max_retries=1,
    max_concurrent_starts=24,
    open_timeout_s=3.0,
    prompt_timeout_s=3.0,
    tool_timeout_s=3.0,
    close_timeout_s=3.0,
    failure_threshold=None,
)
TOO_LONG_S = 5.0
"""Longer than any limit, for the faults that take time."""
MANY = 12
"""At least as often as two rollouts try within the limits."""
GRACE_S = 2.0
"""What a busy machine may add to a limit."""


class Outcome(StrEnum):
    """What the docs' table says of a fault in a phase."""

    RETRIED = "retried"
    """Once: as without it. Every time: the rollout is failed, or, at close, the session is left."""
    FAILED = "failed"
    """The rollout is failed, even if it happens once."""
    LEFT = "left"
    """The rollout is as without it, and the session is left to the server's reaper, even if it happens once."""
    HARMLESS = "harmless"
    """As without it, even if it happens every time."""
    IMPOSSIBLE = "-"


class Often(StrEnum):
    ONCE = "once"
    ALWAYS = "always"


@dataclass(frozen=True)
class Cell:
    """One fault in one phase, once or every time: one task, played by a group of two rollouts."""

    kind: FaultKind
    phase: Phase
    often: Often

    @property
    def environment(self) -> str:
        """All cells share a server, but for those that cost it all its sessions."""
        return f"restart-{self.phase}-{self.often}" if self.kind is FaultKind.RESTART else "faults"

    @property
    def task_index(self) -> int:
        return SHARED.index(self) if self.environment == "faults" else 0

    @property
    def fault(self) -> Fault:
        return Fault(
            self.kind,
            self.phase,
            task_index=self.task_index,
            tool="win" if self.phase is Phase.CALL else None,
            times=1 if self.often is Often.ONCE else MANY,
            seconds=TOO_LONG_S,
            retry_after_s=1,
        )

    def num_failed(self, outcome: Outcome) -> int:
        """How many of the two rollouts are failed: a fault that happens once hits one of them."""
        if outcome is Outcome.FAILED:
            loses_both = self.kind is FaultKind.RESTART and self.phase is Phase.CALL
            return 2 if self.often is Often.ALWAYS or loses_both else 1
        return 2 * (outcome is Outcome.RETRIED and self.phase is not Phase.CLOSE and self.often is Often.ALWAYS)

    def num_left(self, outcome: Outcome) -> int:
        """How many of the two sessions the server keeps, because it was told to close them and did not."""
        if self.phase is not Phase.CLOSE or outcome is Outcome.HARMLESS:
            return 0
        return 2 if self.often is Often.ALWAYS else int(outcome is Outcome.LEFT)


PHASES = (Phase.OPENING, Phase.PROMPT, Phase.CALL, Phase.CLOSE)
CELLS = [
    Cell(kind, phase, often)
    for kind in FaultKind
    for phase in PHASES
    if Fault.is_possible(kind, phase)
    for often in Often
]
SHARED = [cell for cell in CELLS if cell.kind is not FaultKind.RESTART]
HEALTHY = range(len(SHARED), len(SHARED) + 4)
"""Tasks that no fault hits."""


def documented() -> dict[tuple[FaultKind, Phase], Outcome]:
    """Read the table of the docs."""
    rows = re.findall(r"^\| (.+?) +\| (.+?) +\| (.+?) +\| (.+?) +\| (.+?) +\|$", DOCS.read_text(), re.MULTILINE)
    header, *faults = rows
    assert header == ("Fault", "while opening", "at the prompt", "in a tool call", "at close")
    return {
        (FaultKind(kind), phase): Outcome(outcome)
        for kind, *outcomes in faults
        for phase, outcome in zip(PHASES, outcomes, strict=True)
    }


def policy(text: str, turn: int) -> str:
    """Work, then win; on odd healthy tasks only work."""
    match = re.search(r"Task (\d+)\. Win\.", text)
    task = int(match[1]) if match else None
    if turn == 0 and task is not None:
        return call("work", hours=1)
    if turn == 1 and not (task is not None and task in HEALTHY and task % 2 == 1):
        return call("win")
    return "done"


def runs_of_each(server: FaultServer) -> set[int]:
    """How often the tool calls of each session ran; the policy makes each call once."""
    return set(Counter(server.runs).values())


@dataclass
class Played:
    """What a training left behind."""

    servers: Mapping[str, FaultServer]
    adapters: Mapping[tuple[str, int], list[Adapter]]
    steps: Mapping[str, list[Counter[str]]]
    log: Mapping[str, Any]
    took_s: float

    def episodes(self, environment: str, task_index: int) -> list[Episode]:
        return [adapter.episode for adapter in self.adapters[environment, task_index]]

    def rewards(self, environment: str, task_index: int) -> list[float | None]:
        return [adapter.reward for adapter in self.adapters[environment, task_index]]


def play(
    servers: Mapping[str, FaultServer],
    output_dir: Path,
    *,
    indices: Sequence[int] | None = None,
    limits: Limits = LIMITS,
    trainer_class: type | None = MultiEnvGRPOTrainer,
    max_steps: int = 1,
    callbacks: Callable[[MultiEnvSpec], list[TrainerCallback]] = lambda _: [],
) -> Played:
    """Train; in every step every task is played by two rollouts. Afterwards everything is closed."""
    adapters: defaultdict[tuple[str, int], list[Adapter]] = defaultdict(list)
    steps: defaultdict[str, list[Counter[str]]] = defaultdict(list)

    def watch(environments: list[Any], **_: Any) -> list[None]:
        for name in servers:
            its = [adapter for adapter in environments if adapter.environment == name]
            steps[name].append(Counter(f"{adapter.episode.status} {adapter.reward}" for adapter in its))
        for adapter in environments:
            adapters[adapter.environment, int(adapter.episode.task_id.rpartition("/")[2])].append(adapter)
        return [None] * len(environments)

    environments = {}
    for name, server in servers.items():
        # One at a time where a server forgets its sessions, so that it is always the same rollouts that lose theirs.
        its_limits = limits.model_copy(update={"max_concurrent_starts": 1}) if name.startswith("restart") else limits
        environments[name] = EnvSpec(server.url, indices=indices, discover_task_tools=False, limits=its_limits)
    with MultiEnvSpec(environments, reward_funcs=watch, curriculum="dataset") as spec, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an episode failed", RuntimeWarning)
        num_rollouts = 2 * len(spec.train_dataset)
        options = {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": num_rollouts // 2,
            "max_steps": max_steps,
        }
        slots: dict[str, Any] = {"spec": spec} if trainer_class else spec.trainer_kwargs()
        trainer = scripted_trainer(policy, output_dir, options, trainer_class, callbacks=callbacks(spec), **slots)
        started = time.monotonic()
        trainer.train()
        took_s = time.monotonic() - started
    return Played(servers, adapters, steps, trainer.state.log_history[0], took_s)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """One training that carries every cell."""
    with ExitStack() as stack:
        servers = {
            "faults": FaultServer(num_tasks=HEALTHY.stop, faults=[cell.fault for cell in SHARED]),
            **{cell.environment: FaultServer(num_tasks=1, faults=[cell.fault]) for cell in CELLS if cell not in SHARED},
        }
        for server in servers.values():
            stack.enter_context(server)
        yield play(servers, tmp_path_factory.mktemp("faults"))


def test_the_docs_say_what_every_fault_does_in_every_phase() -> None:
    outcomes = documented()
    assert list(outcomes) == [(kind, phase) for kind in FaultKind for phase in PHASES]
    for (kind, phase), outcome in outcomes.items():
        assert (outcome is Outcome.IMPOSSIBLE) == (not Fault.is_possible(kind, phase))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.kind}-{cell.phase}-{cell.often}")
def test_the_fault_does_what_the_docs_say_and_nothing_else(played: Played, cell: Cell) -> None:
    server = played.servers[cell.environment]
    outcome = documented()[cell.kind, cell.phase]
    assert server.num_played[cell.fault] == 1 or cell.often is Often.ALWAYS
    assert server.num_played[cell.fault] > 0, "the fault has happened"

    episodes = played.episodes(cell.environment, cell.task_index)
    assert len(episodes) == 2
    for episode, reward in zip(episodes, played.rewards(cell.environment, cell.task_index), strict=True):
        if episode.status is EpisodeStatus.FAILED:
            assert reward is None, "even after the reward of an earlier step"
            assert cell.environment in episode.reason
            assert all(step.duration_s < LIMITS.tool_timeout_s + GRACE_S for step in episode.steps)
            assert len(episode.steps) == (2 if cell.phase is Phase.CALL else 0)
        else:
            assert (episode.status, reward, episode.reason) == (EpisodeStatus.FINISHED, 1.0, "")
            assert [step.tool for step in episode.steps] == ["work", "win"]
    statuses = Counter(episode.status for episode in episodes)
    assert statuses[EpisodeStatus.FAILED] == cell.num_failed(outcome)
    left = [session for session, task_index in server.open_sessions.items() if task_index == cell.task_index]
    assert len(left) == cell.num_left(outcome)


def test_the_docs_explain_every_reason(played: Played) -> None:
    explained = re.findall(r"^\| `([^`]+)`", DOCS.read_text(), re.MULTILINE)
    episodes = [adapter.episode for adapters in played.adapters.values() for adapter in adapters]
    reasons = {episode.reason for episode in episodes if episode.reason}
    assert reasons
    for reason in reasons:
        assert any(re.search(".+".join(map(re.escape, phrase.split("…"))), reason) for phrase in explained), reason


def test_no_tool_ran_twice(played: Played) -> None:
    for server in played.servers.values():
        assert runs_of_each(server) <= {1}


def test_the_other_rollouts_are_what_they_are_without_any_fault(played: Played, tmp_path: Path) -> None:
    with FaultServer(num_tasks=HEALTHY.stop) as server:
        without = play({"faults": server}, tmp_path, indices=HEALTHY)
    for task in HEALTHY:
        assert played.rewards("faults", task) == without.rewards("faults", task) == [0.25 if task % 2 else 1.0] * 2
    assert server.open_sessions == {}


def test_failed_rollouts_do_not_count_in_the_logged_reward(played: Played) -> None:
    rewards = [reward for (name, task) in played.adapters if name == "faults" for reward in played.rewards(name, task)]
    scored = [reward for reward in rewards if reward is not None]
    assert 0 < len(scored) < len(rewards)
    assert played.log["rewards/faults/mean"] == pytest.approx(sum(scored) / len(scored))


def test_the_time_lost_is_bounded_by_the_limits(played: Played) -> None:
    longest_opening_s = (LIMITS.max_retries + 1) * (LIMITS.open_timeout_s + LIMITS.prompt_timeout_s)
    num_slow = 2 * sum(cell.phase in (Phase.OPENING, Phase.PROMPT) for cell in CELLS)
    num_waves = -(-num_slow // LIMITS.max_concurrent_starts)
    assert played.took_s < num_waves * longest_opening_s + 2 * LIMITS.tool_timeout_s + 30


PLAIN = [
    Cell(kind, phase, Often.ALWAYS)
    for kind, phase in (
        (FaultKind.ERROR, Phase.OPENING),
        (FaultKind.HANG, Phase.PROMPT),
        (FaultKind.HANG, Phase.CALL),
        (FaultKind.BAD_GATEWAY, Phase.CALL),
        (FaultKind.TOO_MANY, Phase.CALL),
        (FaultKind.NAN, Phase.CALL),
        (FaultKind.DELETED, Phase.CALL),
        (FaultKind.LOST, Phase.CLOSE),
    )
]


def test_the_plain_trainer_is_kept_going_too(tmp_path: Path) -> None:
    healthy, once = HEALTHY[0], Cell(FaultKind.ERROR, Phase.OPENING, Often.ONCE)
    tasks = [once.task_index, *(cell.task_index for cell in PLAIN), healthy]
    limits = LIMITS.model_copy(update={"prompt_timeout_s": 1.0, "tool_timeout_s": 1.0})
    with FaultServer(num_tasks=HEALTHY.stop, faults=[once.fault, *(cell.fault for cell in PLAIN)]) as server:
        played = play({"faults": server}, tmp_path, indices=tasks, limits=limits, trainer_class=None)
        assert server.open_sessions == {}
        assert runs_of_each(server) <= {1}
    for cell in PLAIN:
        is_failed = cell.phase is not Phase.CLOSE
        assert played.rewards("faults", cell.task_index) == [None if is_failed else 1.0] * 2
        for episode in played.episodes("faults", cell.task_index):
            assert (episode.status is EpisodeStatus.FAILED, bool(episode.reason)) == (is_failed, is_failed)
    assert played.rewards("faults", once.task_index) == played.rewards("faults", healthy) == [1.0, 1.0]
    assert played.took_s < 30


class Outage(TrainerCallback):
    """Kills a server in the middle of the second step, and starts it again on its port before the fourth one.

    Attributes:
        seen: The circuit breaker's state at the beginning of each step.
    """

    def __init__(self, spec: MultiEnvSpec, name: str, server: FaultServer) -> None:
        self.spec, self.name, self.server = spec, name, server
        self.seen: list[Circuit] = []

    @property
    def circuit(self) -> Circuit:
        return self.spec.live.clients[self.name].opener.breaker.state

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self.server.faults = [Fault(FaultKind.HANG, Phase.CALL, tool="win", times=None)]
            threading.Thread(target=self.kill_when_called).start()
        if state.global_step == 3:
            wait_for(lambda: self.circuit is Circuit.HALF_OPEN)
            self.server.faults = []
            self.server.start()
        self.seen.append(self.circuit)

    def kill_when_called(self) -> None:
        num_before = len(self.server.runs)
        wait_for(lambda: len(self.server.runs) == num_before + 6 and any(self.server.num_played.values()))
        self.server.stop()


def wait_for(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_server_that_is_killed_and_restarted_is_left_alone_and_then_used_again(tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"failure_threshold": 0.5, "failure_window": 6, "cool_down_s": 4.0})
    outages: list[Outage] = []

    with FaultServer() as one, FaultServer() as two, FaultServer() as three:
        servers = {"one": one, "two": two, "three": three}

        def outage(spec: MultiEnvSpec) -> list[TrainerCallback]:
            outages.append(Outage(spec, "two", two))
            return [outages[0]]

        played = play(servers, tmp_path, limits=limits, max_steps=5, callbacks=outage)
        for server in servers.values():
            assert server.open_sessions == {}
            assert runs_of_each(server) <= {1}
    assert outages[0].seen == [Circuit.CLOSED, Circuit.CLOSED, Circuit.OPEN, Circuit.HALF_OPEN, Circuit.CLOSED]
    for name in ("one", "three"):
        assert played.steps[name] == [{"finished 1.0": 6}] * 5
    assert played.steps["two"] == [
        {"finished 1.0": 6},
        {"failed None": 6},
        {"refused None": 6},
        {"finished 1.0": 1, "refused None": 5},
        {"finished 1.0": 6},
    ]
    assert played.took_s < 60


def test_the_examples_of_the_docs_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an episode failed", RuntimeWarning)
        for block in blocks:
            exec(block, {})
    assert capsys.readouterr().out == "failed None 1\n"
