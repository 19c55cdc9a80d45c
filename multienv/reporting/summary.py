"""Decides how a run is summed up: per environment, what was attempted, how it went, and what was learnt.

Flow: `read_episodes` → `summary` → a table on the console, or JSON.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from multienv.rewards import is_success
from multienv.types import Episode, EpisodeStatus

if TYPE_CHECKING:
    from multienv.specs import RewardSpec

_NUM_FIFTHS: Final = 5
_LABELS: Final[Mapping[str, tuple[str, str]]] = {
    "num_tasks": ("tasks", "d"),
    "num_rollouts": ("rollouts", "d"),
    "scored": ("scored", ".1%"),
    **{status.value: (status.value, "d") for status in EpisodeStatus},
    "success": ("success", ".1%"),
    "reward_first_fifth": ("mean reward, first fifth of the steps", ".2f"),
    "reward_last_fifth": ("mean reward, last fifth", ".2f"),
    "reward_change": ("change", "+.2f"),
    "zero_signal_groups": ("groups without a signal", ".1%"),
    "tool_calls": ("tool calls per rollout", ".2f"),
    "tool_failures": ("of them failed", ".2f"),
    "turns": ("turns per rollout", ".2f"),
    "completion_tokens": ("completion tokens per rollout", ".2f"),
    "token_share": ("share of all tokens", ".1%"),
    "retries": ("retries to open a session", "d"),
    "open_ms": ("ms to open a session", ".2f"),
    "tool_ms": ("ms in tools per rollout", ".2f"),
}
"""From a figure to its row in the table and how it is written."""
_ENDS_OF_SECTIONS: Final = frozenset({"scored", EpisodeStatus.REFUSED.value, "success", "reward_change"})


def summary(episodes: Sequence[Episode], rewards: Mapping[str, RewardSpec | None]) -> dict[str, dict[str, Any]]:
    """Sum up a run.

    Args:
        episodes: All rollouts of the run; those of evaluations are left out.
        rewards: The rule of each environment, None for one that has none.

    Returns:
        Figures by environment and name, None where there is nothing to say. A fifth is at least one step, so a very
        short run has overlapping fifths.
    """
    trained = [episode for episode in episodes if not episode.is_evaluation]
    first, last = _ends(trained)
    num_tokens = sum(episode.num_completion_tokens for episode in trained)
    figures: dict[str, dict[str, Any]] = {}
    for name, rule in rewards.items():
        own = [episode for episode in trained if episode.environment == name]
        its_tokens = sum(episode.num_completion_tokens for episode in own)
        figures[name] = {
            **_figures(own, rule, first, last),
            "token_share": its_tokens / num_tokens if num_tokens else None,
        }
    return figures


def summary_table(episodes: Sequence[Episode], rewards: Mapping[str, RewardSpec | None]) -> Table:
    """Lay out how a run went, one column per environment; see `summary`.

    Args:
        episodes: All rollouts of the run.
        rewards: The rule of each environment, in the order in which they are to appear.
    """
    figures = summary(episodes, rewards)
    steps = {episode.training_step for episode in episodes if not episode.is_evaluation}
    grid = Table("", title=f"training steps: {len(steps)}", title_justify="left")
    for name in rewards:
        grid.add_column(name, justify="right", min_width=8)
    for key, (label, how) in _LABELS.items():
        cells = (figures[name][key] for name in rewards)
        written = ("-" if cell is None else format(cell, how) for cell in cells)
        grid.add_row(label, *written, end_section=key in _ENDS_OF_SECTIONS)
    return grid


def _ends(episodes: Iterable[Episode]) -> tuple[Collection[int], Collection[int]]:
    """Return the steps of the first fifth and those of the last."""
    steps = sorted({episode.training_step or 0 for episode in episodes})
    num_steps = max(1, len(steps) // _NUM_FIFTHS)
    return steps[:num_steps], steps[-num_steps:]


def _figures(
    own: Sequence[Episode], rule: RewardSpec | None, first_steps: Collection[int], last_steps: Collection[int]
) -> dict[str, Any]:
    statuses = Counter(episode.status for episode in own)
    first, last = _mean_reward(own, first_steps), _mean_reward(own, last_steps)
    return {
        "num_tasks": len({episode.task_id for episode in own}),
        "num_rollouts": len(own),
        "scored": _mean(episode.reward is not None for episode in own),
        **{status.value: statuses[status] for status in EpisodeStatus},
        "success": _mean(_succeeded(episode, rule) for episode in own if episode.is_scorable),
        "reward_first_fifth": first,
        "reward_last_fifth": last,
        "reward_change": None if first is None or last is None else last - first,
        "zero_signal_groups": _mean(_teach_nothing(own)),
        "tool_calls": _mean(episode.num_tool_calls for episode in own),
        "tool_failures": _mean(episode.num_tool_failures for episode in own),
        "turns": _mean(_num_turns(episode) for episode in own),
        "completion_tokens": _mean(episode.num_completion_tokens for episode in own),
        "retries": sum(episode.num_retries for episode in own),
        "open_ms": _mean(1000 * episode.open_s for episode in own if episode.session_id is not None),
        "tool_ms": _mean(1000 * sum(step.duration_s for step in episode.steps) for episode in own),
    }


def _succeeded(episode: Episode, rule: RewardSpec | None) -> bool:
    if rule is None:
        return episode.reward is not None and episode.reward > 0
    return is_success(episode, rule) is True


def _num_turns(episode: Episode) -> int:
    return sum(message.get("role") == "assistant" for message in episode.completion)


def _teach_nothing(own: Iterable[Episode]) -> list[bool]:
    """Tell of each group whether its rewards leave nothing to compare."""
    groups: defaultdict[tuple[int | None, int | None], set[float]] = defaultdict(set)
    for episode in own:
        rewards = groups[episode.training_step, episode.group]
        rewards |= set() if episode.reward is None else {episode.reward}
    return [len(rewards) <= 1 for rewards in groups.values()]


def _mean_reward(own: Iterable[Episode], steps: Collection[int]) -> float | None:
    return _mean(e.reward for e in own if e.training_step in steps and e.reward is not None)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None
