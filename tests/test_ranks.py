"""Two processes that train together, and what keeps their tool loops in step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multienv import errors
from multienv.reporting import read_episodes
from multienv.training.ranks import check_groups
from tests.support.servers import ORSServer, loopback_socket

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def trained(climb_server: ORSServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave behind that train what `ranks_child` says; they take long to import."""
    directory = tmp_path_factory.mktemp("ranks")
    with loopback_socket() as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    command += ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={port}", "-m"]
    done = subprocess.run(
        [*command, "tests.support.ranks_child", climb_server.url, str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=ROOT,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return directory


def test_ranks_with_unequal_numbers_of_turns_get_their_own_completions_and_do_not_hang(
    climb_server: ORSServer, trained: Path
) -> None:
    ranks = [json.loads((trained / f"{rank}.json").read_text()) for rank in (0, 1)]
    by_task = {task: rewards for rank in ranks for task, rewards in rank["seen"]}
    assert by_task == {"climb/train/0": [0.5], "climb/train/1": [0.25, 0.5, 0.75, 1.0]}
    assert [len(rank["seen"]) for rank in ranks] == [2, 2]
    assert [rank["rewards"] for rank in ranks if rank["rewards"]] == [[0.75]] * sum(bool(r["rewards"]) for r in ranks)
    assert climb_server.open_sessions == []
    for metrics in (rank["metrics"] for rank in ranks if rank["metrics"]):
        assert (metrics["env/climb/rollouts"], metrics["env/climb/reward"]) == (4.0, 0.75)
        assert metrics["env/climb/reward_std"] == pytest.approx((4 * 0.25**2 / 3) ** 0.5)
        assert (metrics["env/climb/tool_calls"], metrics["env/climb/zero_signal_groups"]) == (2.5, 2.0)
        assert (metrics["env/climb/token_share"], metrics["env/climb/status/finished"]) == (1.0, 0.5)
    episodes = read_episodes(trained / "out")
    assert [(episode.rank, episode.group) for episode in episodes] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert {episode.task_id: [step.reward for step in episode.steps] for episode in episodes} == by_task


def test_ranks_follow_one_curriculum_keep_to_their_limits_and_go_on_as_one(trained: Path) -> None:
    zero, one = (json.loads((trained / "curriculum" / f"{rank}.json").read_text()) for rank in (0, 1))
    for run in ("whole", "killed", "resumed"):
        assert zero[run]["planned"] == one[run]["planned"], "both ranks plan the same"
        assert zero[run]["state"] == one[run]["state"], "and learn the same"
    whole = zero["whole"]
    assert len(whole["planned"]) == 6
    for planned, *slices in zip(whole["planned"], whole["batches"], one["whole"]["batches"], strict=True):
        tasks = [task for _, tasks in slices for task in tasks]
        assert tasks == [f"{name}/train/{task}" for name, task in planned], "rank after rank, groups in one piece"
        for _, own in slices:
            names = [task.partition("/")[0] for task in own]
            assert len(names) == 4
            assert names.count("echo") <= 2, "its share of max_sessions is four rollouts"
    shares = [[name for name, _ in planned].count("echo") for planned in whole["planned"]]
    assert shares[0] == 4, "the limit acts: by its weight it would have five or six"
    assert len({tuple(sorted(name for name, _ in planned)) for planned in whole["planned"]}) > 1, "it adapts"
    for logs in (whole["logs"], zero["resumed"]["logs"]):
        assert [sum(log[f"env/{name}/groups_dispatched"] for name in ("echo", "climb", "quiz")) for log in logs] == (
            [8.0] * 6
        ), "once, not once for each rank"
    dispatched = [log["env/echo/groups_dispatched"] for log in whole["logs"]]
    assert dispatched == shares
    for rank in (zero, one):
        assert rank["killed"]["batches"] == rank["whole"]["batches"][:4]
        assert rank["resumed"]["batches"] == rank["whole"]["batches"][3:]
        assert rank["resumed"]["state"] == rank["whole"]["state"]


def test_a_group_whose_prompts_differ_is_refused() -> None:
    check_groups([[1, 2], [1, 2], [3], [3]], num_generations=2)
    with pytest.raises(errors.RoutingError, match="rollouts 2 and 3 are of one group"):
        check_groups([[1, 2], [1, 2], [3], [4]], num_generations=2)
