"""Decides what the demo shows at the end: per environment, what was attempted, how it went, and what was learnt.

Flow: `run` reads the record of the rollouts and prints the table made of it here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final

from rich.table import Table

from multienv.rewards import is_success
from multienv.types import Episode, EpisodeStatus

if TYPE_CHECKING:
    from multienv.specs import RewardSpec

_NUM_FIFTHS: Final = 5
_ENDS_OF_SECTIONS: Final = frozenset({"scored", EpisodeStatus.REFUSED.value, "success", "change"})


def table(episodes: Sequence[Episode], rewards: Mapping[str, RewardSpec]) -> Table:
    """Lay out how a run went, one column per environment.

    Args:
        episodes: All rollouts of the run.
        rewards: The rule of each environment, in the order in which they are to appear.

    Returns:
        A table for a rich console. A fifth is at least one step, so a very short run has overlapping fifths.
    """
    steps = sorted({episode.training_step or 0 for episode in episodes})
    num_steps = max(1, len(steps) // _NUM_FIFTHS)
    first, last = steps[:num_steps], steps[-num_steps:]
    num_tokens = sum(episode.num_completion_tokens for episode in episodes)
    columns = [
        _column([episode for episode in episodes if episode.environment == name], rule, first, last, num_tokens)
        for name, rule in rewards.items()
    ]
    grid = Table("", title=f"training steps: {len(steps)}", title_justify="left")
    for name in rewards:
        grid.add_column(name, justify="right", min_width=8)
    for label in dict.fromkeys(label for column in columns for label in column):
        grid.add_row(label, *(column[label] for column in columns), end_section=label in _ENDS_OF_SECTIONS)
    return grid


def _column(
    own: Sequence[Episode],
    rule: RewardSpec,
    first_steps: Collection[int],
    last_steps: Collection[int],
    num_tokens: int,
) -> dict[str, str]:
    """Return the figures of one environment by what they are; `num_tokens` are those of all environments."""
    statuses = Counter(episode.status for episode in own)
    first, last = _mean_reward(own, first_steps), _mean_reward(own, last_steps)
    return {
        "tasks": str(len({episode.task_id for episode in own})),
        "rollouts": str(len(own)),
        "scored": _share(episode.reward is not None for episode in own),
        **{status.value: str(statuses[status]) for status in EpisodeStatus},
        "success": _share(is_success(episode, rule) is True for episode in own if episode.is_scorable),
        "mean reward, first fifth of the steps": _number(first),
        "mean reward, last fifth": _number(last),
        "change": _number(None if first is None or last is None else last - first, "+"),
        "groups without a signal": _share(_teach_nothing(own)),
        "tool calls per rollout": _mean(episode.num_tool_calls for episode in own),
        "of them failed": _mean(episode.num_tool_failures for episode in own),
        "turns per rollout": _mean(_num_turns(episode) for episode in own),
        "completion tokens per rollout": _mean(episode.num_completion_tokens for episode in own),
        "share of all tokens": (
            f"{sum(episode.num_completion_tokens for episode in own) / num_tokens:.1%}" if num_tokens else "-"
        ),
        "retries to open a session": str(sum(episode.num_retries for episode in own)),
        "ms to open a session": _mean(1000 * episode.open_s for episode in own if episode.session_id is not None),
        "ms in tools per rollout": _mean(1000 * sum(step.duration_s for step in episode.steps) for episode in own),
    }


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
    rewards = [episode.reward for episode in own if episode.training_step in steps and episode.reward is not None]
    return fmean(rewards) if rewards else None


def _mean(values: Iterable[float]) -> str:
    known = list(values)
    return _number(fmean(known) if known else None)


def _share(answers: Iterable[bool]) -> str:
    known = list(answers)
    return f"{fmean(known):.1%}" if known else "-"


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.2f}"
