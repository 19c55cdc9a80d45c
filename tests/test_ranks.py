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
from tests.support.servers import ORSServer

ROOT = Path(__file__).parent.parent


def test_ranks_with_unequal_numbers_of_turns_get_their_own_completions_and_do_not_hang(
    climb_server: ORSServer, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=2",
    ]
    done = subprocess.run(
        [*command, "-m", "tests.support.ranks_child", climb_server.url, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=ROOT,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
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
    episodes = read_episodes(tmp_path / "out")
    assert [(episode.rank, episode.group) for episode in episodes] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert {episode.task_id: [step.reward for step in episode.steps] for episode in episodes} == by_task


def test_a_group_whose_prompts_differ_is_refused() -> None:
    check_groups([[1, 2], [1, 2], [3], [3]], num_generations=2)
    with pytest.raises(errors.RoutingError, match="rollouts 2 and 3 are of one group"):
        check_groups([[1, 2], [1, 2], [3], [4]], num_generations=2)
