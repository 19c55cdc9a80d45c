"""What a curriculum costs: planning a batch of 64 groups and taking in its outcomes, with a million tasks in all.

All task rules are on. Run as `python benchmarks/curriculum_cost.py`. Times are processor time, so other work on the
machine does not count. In the last row the policy succeeds at everything: nearly every task is solved and gated, and a
decision walks far to find one that is not. Memory is what Python has allocated after so many batches.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median

from report import Report, Row

from multienv.curriculum import Curriculum, Entry, Outcome, Pick
from multienv.specs import CurriculumSpec, TaskRules

NUM_TASKS = 1_000_000
NUM_GROUPS = 64
NUM_GENERATIONS = 8
RULES = TaskRules(solved_at=0.9, hopeless_at=0.05, gate_after=2, set_aside_after=3)
CURRICULA = {"weights": CurriculumSpec(), "adaptive": CurriculumSpec(adaptive=True)}


def built(num_environments: int, curriculum: str, num_tasks: int = NUM_TASKS) -> Curriculum:
    """Make a curriculum whose environments have weights of 1, 2 and 3 and share the tasks."""
    num = num_tasks // num_environments
    entries = [Entry(f"environment{i}", num, 1.0 + i % 3, RULES) for i in range(num_environments)]
    return Curriculum(entries, CURRICULA[curriculum], NUM_GROUPS)


def outcome(pick: Pick, num_successes: int) -> Outcome:
    has_signal = 0 < num_successes < NUM_GENERATIONS
    return Outcome(
        pick.environment,
        pick.task,
        NUM_GENERATIONS,
        num_finished=NUM_GENERATIONS,
        num_scored=NUM_GENERATIONS,
        num_successes=num_successes,
        num_nonzero=NUM_GENERATIONS if has_signal else 0,
        sum_abs_advantage=7.0 if has_signal else 0.0,
        num_tokens=4000,
    )


def play(curriculum: Curriculum, num_batches: int, *, is_solved: bool = False, seed: int = 0) -> list[float]:
    """Play batches with drawn successes, or with nothing but successes.

    Returns:
        Seconds of each batch: planning it, and taking in its outcomes.
    """
    draws = random.Random(seed)
    durations_s = []
    for _ in range(num_batches):
        started = time.thread_time()
        batch = curriculum.plan()
        planned_s = time.thread_time() - started
        outcomes = [
            outcome(pick, NUM_GENERATIONS if is_solved else draws.randint(0, NUM_GENERATIONS)) for pick in batch.groups
        ]
        started = time.thread_time()
        curriculum.observe(batch.index, outcomes)
        curriculum.forget(batch.index)
        durations_s.append(planned_s + time.thread_time() - started)
    return durations_s


def memory(nums_batches: Sequence[int] = (1_000, 10_000), num_tasks: int = NUM_TASKS) -> dict[int, float]:
    """Return the MiB allocated after numbers of batches of one run, 30 environments, adaptive."""
    tracemalloc.start()
    try:
        curriculum = built(30, "adaptive", num_tasks)
        allocated, done = {}, 0
        for num in sorted(nums_batches):
            play(curriculum, num - done, seed=num)
            done = num
            allocated[num] = tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()
    return allocated


def run(
    nums_environments: Sequence[int] = (3, 30, 300),
    num_batches: int = 1_000,
    nums_memory: Sequence[int] = (1_000, 10_000),
) -> Report:
    """Measure everything, and put it in a table."""
    cases = {
        f"{num} environments, {curriculum}": play(built(num, curriculum), num_batches)
        for num in nums_environments
        for curriculum in CURRICULA
    }
    mastered = built(3, "weights", num_tasks=3_000)
    play(mastered, num_batches // 10, is_solved=True)
    cases["3 environments, weights, 3,000 tasks all solved"] = play(mastered, num_batches, is_solved=True)
    allocated = memory(nums_memory)
    baseline_s = median(next(iter(cases.values())))
    rows = [
        Row(what, median(taken), baseline_s, f"99th percentile {1000 * sorted(taken)[len(taken) * 99 // 100]:.2f} ms")
        for what, taken in cases.items()
    ]
    sizes = ", ".join(f"{size:.1f} MiB after {num:,} batches" for num, size in allocated.items())
    return Report(
        f"Planning {NUM_GROUPS} groups and taking in their outcomes, {NUM_TASKS:,} tasks, all task rules on",
        rows,
        f"a batch costs {1000 * rows[0].duration_s:.2f} ms; memory: {sizes}",
    )


if __name__ == "__main__":
    run().show()
