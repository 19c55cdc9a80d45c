"""Decides how an evaluation and a comparison are shown on a terminal.

Flow: `Evaluation`, `Comparison` → rich tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from multienv.evaluation.comparison import Change, Comparison
from multienv.evaluation.results import Evaluation, Result
from multienv.evaluation.statistics import Estimate


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Show what an evaluation found."""
    ks = sorted({k for result in evaluation.environments.values() for k in result.passes})
    table = _table(f"{evaluation.policy}: 95 % intervals over tasks", "environment")
    for heading in ("tasks", "attempts", *(f"pass@{k}" for k in ks), "reward", "lost"):
        table.add_column(heading, justify="right")
    for name, result in evaluation.environments.items():
        table.add_row(name, *_cells(result, ks))
        for level, inner in evaluation.difficulties.get(name, {}).items():
            table.add_row(f"  {level}", *_cells(inner, ks), style="dim")
    if len(evaluation.environments) > 1 and evaluation.overall:
        passes = (_shown(evaluation.overall[k]) if k in evaluation.overall else "-" for k in ks)
        reward = "-" if evaluation.overall_reward is None else _shown(evaluation.overall_reward, ".3f")
        table.add_section()
        table.add_row("mean of environments", "", "", *passes, reward, "")
    console.print(table)
    latency, tokens = evaluation.latency, evaluation.tokens
    console.print(
        f"a request {latency['request_p50_s']:.2f} s, 95th percentile {latency['request_p95_s']:.2f} s; an attempt "
        f"{latency['attempt_p50_s']:.2f} s, {latency['attempt_p95_s']:.2f} s",
        highlight=False,
    )
    cost = "" if evaluation.cost is None else f"; cost {evaluation.cost:,.4f}"
    console.print(f"tokens: {tokens['prompt']:,} read, {tokens['completion']:,} written{cost}", highlight=False)


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Show what two evaluations say of each other."""
    for what, changes in (("success", comparison.success), ("reward", comparison.reward)):
        if changes:
            console.print(_changes(what, changes, comparison))
    if comparison.num_left_out:
        console.print(f"left out: {comparison.num_left_out} tasks that only one of the two has", highlight=False)


def _changes(what: str, changes: Mapping[str, Change], comparison: Comparison) -> Table:
    table = _table(f"{what}: {comparison.before} → {comparison.after}, paired by task", "environment")
    for heading in ("tasks", "before", "after", "difference", "better", "worse", "p (Holm)"):
        table.add_column(heading, justify="right")
    for name, change in changes.items():
        table.add_row(
            name,
            str(change.difference.num_tasks),
            f"{change.before:.3f}",
            f"{change.after:.3f}",
            _shown(change.difference, "+.3f"),
            str(change.num_better),
            str(change.num_worse),
            f"{change.p_value:.4f}",
        )
    return table


def _cells(result: Result, ks: list[int]) -> list[str]:
    passes = [_shown(result.passes[k]) if k in result.passes else "-" for k in ks]
    reward = "-" if result.reward is None else _shown(result.reward, ".3f")
    return [str(result.num_tasks), str(result.num_attempts), *passes, reward, str(result.num_lost)]


def _shown(estimate: Estimate, how: str = ".1%") -> str:
    if math.isnan(estimate.low):
        return format(estimate.value, how)
    return f"{format(estimate.value, how)} [{format(estimate.low, how)}, {format(estimate.high, how)}]"


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, no_wrap=True)
    return table
