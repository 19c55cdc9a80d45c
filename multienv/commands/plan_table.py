"""Decides how `multienv plan` looks on a terminal: the run, its environments, its first batches, its pace, its limits.

Flow: `plan.run_plan` → `show_plan` → standard output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from multienv.commands.planning import BatchPlan, Plan

_BATCHES_ABREAST: Final = 8
_FULL: Final = "bold red"


def show_plan(plan: Plan, console: Console) -> None:
    """Show a plan.

    Args:
        plan: What a run will do.
        console: Where to.
    """
    for line in _run(plan):
        _say(console, line)
    for table in _tables(plan):
        console.print()
        console.print(table)
    console.print()
    for what, sentences, style in (
        ("assumed", plan.assumed, ""),
        ("not known", plan.unknown, ""),
        ("it cannot work", plan.problems, _FULL),
    ):
        for sentence in sentences:
            _say(console, f"{what}: {sentence}", style)


def _tables(plan: Plan) -> Iterator[Table]:
    if not plan.environments:
        return
    yield _environments(plan)
    yield _sessions(plan)
    if plan.earlier is not None:
        yield _recorded(plan)
    for start in range(0, len(plan.batches), _BATCHES_ABREAST):
        yield _batches(plan.batches[start : start + _BATCHES_ABREAST], start, plan)
    yield _seconds(plan)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False)


def _run(plan: Plan) -> Iterator[str]:
    on = "" if plan.num_processes == 1 else f", {plan.rollouts_per_process:,} on each of {plan.num_processes} processes"
    yield (
        f"a batch: {plan.rollouts_per_batch:,} rollouts, {plan.groups_per_batch:,} groups of {plan.num_generations}{on}"
    )
    if plan.num_steps is not None and plan.num_batches is not None:
        rollouts = sum(each.rollouts for each in plan.environments.values())
        sessions = sum(each.sessions for each in plan.environments.values())
        yield (
            f"the run: {plan.num_steps:,} steps, {plan.num_batches:,} batches, {rollouts:,} rollouts, "
            f"{sessions:,} sessions"
        )
    if not plan.is_curriculum:
        yield "the rows are drawn by TRL's own sampler"


def _table(title: str, first: str, headings: Iterable[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _environments(plan: Plan) -> Table:
    has_record = any(each.recorded_share is not None for each in plan.environments.values())
    headings = ("tasks", "rollouts", "times each\ntask comes", "reward\nweight", "gradient\nshare")
    table = _table("the whole run", "environment", (*headings, *(["as\nrecorded"] if has_record else [])))
    for name, each in plan.environments.items():
        cells = [f"{each.num_tasks:,}", f"{each.rollouts:,}", f"{each.epochs:.2f}", f"{each.reward_weight:g}"]
        cells.append(_number(each.gradient_share, ".0%"))
        table.add_row(Text(name), *cells, *([_number(each.recorded_share, ".0%")] if has_record else []))
    return table


def _sessions(plan: Plan) -> Table:
    headings = ("planned", "at most", "limit", "s to open\none", "s to open\nthe planned")
    table = _table("sessions at once in one process", "environment", headings)
    for name, each in plan.environments.items():
        if each.sessions or each.max_sessions is not None:
            table.add_row(
                Text(name),
                _against(each.planned_sessions, each.max_sessions),
                f"{each.largest_sessions:,}",
                _number(each.max_sessions, ",d", "none"),
                _number(each.open_s, ".2f"),
                _number(each.batch_open_s, ".2f"),
            )
    table.add_row(
        Text("all together", "dim"),
        _against(plan.process_sessions, plan.max_sessions),
        f"{plan.rollouts_per_process:,}",
        _number(plan.max_sessions, ",d", "none"),
        "",
        "",
    )
    return table


def _against(need: int, limit: int | None) -> Text:
    return Text(f"{need:,}", _FULL if limit is not None and need > limit else "")


def _recorded(plan: Plan) -> Table:
    headings = ("rollouts", "tool calls", "s each", "s in tools", "s to open", "tokens")
    table = _table("the earlier record, a rollout on average", "environment", headings)
    for name, each in plan.environments.items():
        if (own := each.recorded) is not None:
            table.add_row(
                Text(name),
                f"{own.num_rollouts:,}",
                f"{own.tool_calls:.1f}",
                f"{own.call_s:.2f}",
                f"{own.tool_s:.2f}",
                f"{own.open_s:.2f}",
                f"{own.completion_tokens:,.0f}",
            )
    return table


def _batches(batches: Sequence[BatchPlan], start: int, plan: Plan) -> Table:
    numbers = [str(start + place) for place in range(len(batches))]
    table = _table("groups of the first batches", "environment", (*(["asked"] if plan.is_curriculum else []), *numbers))
    table.add_column("first tasks", overflow="fold")
    first = batches[0]
    for name in plan.environments:
        groups = [batch.groups.get(name, 0) for batch in batches]
        if any(groups) or first.asked.get(name):
            asked = [f"{first.asked.get(name, 0.0):.0%}"] if plan.is_curriculum else []
            tasks = next((batch.first_tasks[name] for batch in batches if name in batch.first_tasks), ())
            table.add_row(Text(name), *asked, *map(str, groups), Text(_tasks(name, tasks)))
    return table


def _tasks(name: str, task_ids: Sequence[str]) -> str:
    """Return tasks as `split/index`; whose they are is said beside them."""
    return ", ".join(task.removeprefix(f"{name}/") for task in task_ids)


def _seconds(plan: Plan) -> Table:
    table = _table("time", "what", ("s",))
    table.add_column("from")
    seconds, earlier = plan.seconds, plan.earlier
    opening = "one session, measured now, and the limits on starts"
    if earlier is not None and earlier.opening_s is not None:
        opening += f"; it took {earlier.opening_s:.2f} in the record"
    for what, value, source in (
        ("opening a batch's sessions", seconds.opening, opening),
        ("waiting for its tools", seconds.tools, "the record"),
        ("the rest: model, rewards, saving", seconds.rest, "the record"),
        ("a step", seconds.step, f"the sum, by {plan.steps_per_batch:g} steps a batch"),
        ("the whole run", seconds.run, f"{plan.num_batches or 0:,} batches"),
    ):
        table.add_row(what, _number(value, ",.2f"), source if value is not None else "not known, see below")
    return table


def _number(value: float | None, how: str, otherwise: str = "-") -> str:
    return otherwise if value is None else format(value, how)
