"""Decides how a curriculum is saved and goes on: exactly with the same environments, and with others as far as it can.

Flow: `Curriculum.state_dict` → `state_of` → the checkpoint → `restore` → the same stream of tasks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from multienv.curriculum.batch import Batch
from multienv.curriculum.differences import check_renamed, differences
from multienv.curriculum.outcomes import Outcome, Pick
from multienv.curriculum.state import is_amount, is_count, is_list, is_share, mapping_of, read
from multienv.errors import CheckpointError

if TYPE_CHECKING:
    from multienv.curriculum.curriculum import Curriculum
from multienv.curriculum.entries import Entry

_FORMAT: Final = 1
_COUNTS: Final = tuple(
    name for name in Outcome.__dataclass_fields__ if name not in ("environment", "task", "sum_abs_advantage")
)
_PARTS: Final = ("orders", "quotas", "outages", "stages", "account", "bandit")


def digest(name: str, ids: Sequence[str]) -> str:
    """Return what tells one list of tasks from another, whatever its environment is called."""
    return blake2b("\n".join(task.removeprefix(f"{name}/") for task in ids).encode(), digest_size=8).hexdigest()


def state_of(curriculum: Curriculum) -> dict[str, Any]:
    """Return all that a curriculum needs to go on after a restart; plain JSON, tasks by their ids.

    Of the batches that were observed only the last is kept: it may still be trained on.
    """

    def pick(environment: str, task: int) -> list[Any]:
        ids = curriculum.entries[environment].ids
        return [environment, ids[task] if ids else task]

    return {
        "format": _FORMAT,
        "declared": json.loads(curriculum.spec.model_dump_json()),
        "seed": curriculum.seed,
        "environments": {
            name: {"num_tasks": entry.num_tasks, "tasks": curriculum.digests[name], "prior": curriculum.priors[name]}
            for name, entry in curriculum.entries.items()
        },
        "num_groups": curriculum.num_groups,
        "num_planned": curriculum.num_planned,
        "num_observed": curriculum.num_observed,
        "batches": [
            {
                "index": batch.index,
                "groups": [pick(one.environment, one.task) for one in batch.groups],
                "asked": dict(batch.asked),
                "max_tool_calls": dict(batch.max_tool_calls),
                "stage": batch.stage,
            }
            for batch in curriculum.batches.values()
            if batch.index >= curriculum.num_observed - 1
        ],
        "waiting": [
            {"index": index, "outcomes": [[*pick(one.environment, one.task), *_figures(one)] for one in outcomes]}
            for index, outcomes in curriculum.waiting.items()
        ],
        "orders": {
            name: order.state_dict(curriculum.entries[name].ids or None) for name, order in curriculum.orders.items()
        },
        "quotas": curriculum.quotas.state_dict(),
        "outages": curriculum.outages.state_dict(),
        "stages": curriculum.stages.state_dict(),
        "bandit": None if curriculum.bandit is None else curriculum.bandit.state_dict(),
        "account": curriculum.account.state_dict(),
    }


def _figures(outcome: Outcome) -> list[Any]:
    """Return the figures of an outcome; a sum that is no number is None, for JSON knows none."""
    size = outcome.sum_abs_advantage
    return [size if math.isfinite(size) else None, *(getattr(outcome, name) for name in _COUNTS)]


def restore(curriculum: Curriculum, state: Any, renamed: Mapping[str, str]) -> list[str]:
    """Let a curriculum go on from a state, or leave it as it is.

    Args:
        curriculum: The one.
        state: What `state_of` returned, after a round through JSON.
        renamed: From the names of environments in the state to those they have now, where they differ.

    Returns:
        What is different now, in sentences; empty if the stream goes on exactly.

    Raises:
        CheckpointError: It is no such state.
        SpecError: `renamed` names an environment that there is not.
    """
    loaded = _read(state)
    saved: Mapping[str, Any] = loaded["environments"]
    renamed = {old: new for old, new in renamed.items() if old in saved or new not in saved}  # not those done before
    check_renamed(renamed, saved, curriculum.entries)
    names = {old: renamed.get(old, old) for old in saved if renamed.get(old, old) in curriculum.entries}
    places = _Places(curriculum.entries, names)
    parts = {part: deepcopy(getattr(curriculum, part)) for part in _PARTS}
    for old, new in names.items():
        is_same_order = old == new and loaded["seed"] == curriculum.seed
        own = loaded["orders"][old]
        parts["orders"][new].load_state_dict(own, places.ids_as_saved(old))
        if not is_same_order:  # the order of a pass follows from seed and name: what is left of this one is another
            own = {**own, "pass": own["pass"] + 1, "position": 0}
            parts["orders"][new].load_state_dict(own, places.ids_as_saved(old))
    for part in _PARTS[1:]:
        if parts[part] is not None and loaded[part] is not None:
            parts[part].load_state_dict(loaded[part])
            parts[part].rename(names)
    batches = list(takewhile(lambda batch: batch is not None, map(places.batch, loaded["batches"])))
    if loaded["num_groups"] != curriculum.num_groups:
        batches = []
    waiting = {own["index"]: list(places.outcomes(own["outcomes"])) for own in loaded["waiting"]}

    vars(curriculum).update(parts)
    curriculum.batches = {batch.index: batch for batch in batches if batch is not None}
    curriculum.waiting = waiting
    curriculum.num_observed = loaded["num_observed"]
    curriculum.num_planned = loaded["num_planned"]
    is_cut = len(batches) < len(loaded["batches"])
    if is_cut:
        # A batch that was observed is not planned again: nothing would be learnt from it.
        curriculum.num_planned = max(loaded["batches"][len(batches)]["index"], loaded["num_observed"])
    return [*differences(curriculum, loaded, names), *(["batches planned ahead are planned anew"] if is_cut else [])]


def _read(state: Any) -> dict[str, Any]:
    """Check a state as far as it is the curriculum's own.

    Raises:
        CheckpointError: It does not fit.
    """
    loaded = read(
        state,
        "the curriculum",
        format=lambda value: type(value) is int and value == _FORMAT,
        declared=mapping_of(lambda _: True),
        seed=lambda value: type(value) is int,
        environments=mapping_of(lambda value: isinstance(value, Mapping)),
        num_groups=is_count,
        num_planned=is_count,
        num_observed=is_count,
        batches=is_list,
        waiting=is_list,
        orders=mapping_of(lambda value: isinstance(value, Mapping)),
        quotas=mapping_of(lambda value: type(value) is int),
        outages=lambda value: isinstance(value, Mapping),
        stages=lambda value: isinstance(value, Mapping),
        bandit=lambda value: value is None or isinstance(value, Mapping),
        account=lambda value: isinstance(value, Mapping),
    )
    for own in loaded["environments"].values():
        read(own, "an environment", num_tasks=is_count, tasks=_is_text, prior=is_share)
    for own in loaded["batches"]:
        horizons = mapping_of(lambda value: is_count(value) and value > 0)
        picks = _list_of(_is_pick)
        shares = mapping_of(is_share)
        read(own, "a batch", index=is_count, groups=picks, asked=shares, max_tool_calls=horizons, stage=is_count)
    for own in loaded["waiting"]:
        read(own, "outcomes", index=is_count, outcomes=_list_of(_is_outcome))
    num_planned, num_observed = loaded["num_planned"], loaded["num_observed"]
    planned = [own["index"] for own in loaded["batches"]]
    waiting = [own["index"] for own in loaded["waiting"]]
    if (
        not num_observed - 1 <= num_planned <= num_observed + len(planned)
        or planned != list(range(num_planned - len(planned), num_planned))
        or waiting != list(range(num_observed - len(waiting), num_observed))
        or loaded["orders"].keys() != loaded["environments"].keys()
    ):
        raise CheckpointError(
            "the state of the curriculum does not fit: its batches or environments do not belong together. Resume from "
            "another checkpoint, or start anew"
        )
    return loaded


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(check: Any) -> Any:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_pick(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2  # noqa: PLR2004 - environment and task
        and isinstance(value[0], str)
        and (isinstance(value[1], str) or is_count(value[1]))
    )


def _is_outcome(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3 + len(_COUNTS)
        and _is_pick(value[:2])
        and (value[2] is None or is_amount(value[2]))
        and all(map(is_count, value[3:]))
        and value[3 + _COUNTS.index("num_successes")] <= value[3 + _COUNTS.index("num_scored")]
    )


class _Places:
    """From the tasks of a state to the places they have now."""

    def __init__(self, entries: Mapping[str, Entry], names: Mapping[str, str]) -> None:
        self._entries, self._names = entries, names
        self._by_id: dict[str, dict[str, int]] = {}

    def ids_as_saved(self, old: str) -> Sequence[str] | None:
        """Return the ids of an environment's tasks under the name it had."""
        new = self._names[old]
        ids = self._entries[new].ids
        if not ids:
            return None
        if old == new:
            return ids
        return [f"{old}/{task.removeprefix(f'{new}/')}" if task.startswith(f"{new}/") else task for task in ids]

    def place(self, old: str, task: str | int) -> int | None:
        """Return the place of a task; None where there is none now."""
        if old not in self._names:
            return None
        if isinstance(task, int):
            return task if task < self._entries[self._names[old]].num_tasks else None
        if old not in self._by_id:
            self._by_id[old] = {name: place for place, name in enumerate(self.ids_as_saved(old) or ())}
        return self._by_id[old].get(task)

    def batch(self, saved: Mapping[str, Any]) -> Batch | None:
        """Return a planned batch; None where one of its tasks is gone."""
        groups = [(old, self.place(old, task)) for old, task in saved["groups"]]
        if any(place is None for _, place in groups):
            return None
        return Batch(
            saved["index"],
            tuple(Pick(self._names[old], place) for old, place in groups if place is not None),
            {self._names.get(old, old): share for old, share in saved["asked"].items()},
            {self._names.get(old, old): calls for old, calls in saved["max_tool_calls"].items()},
            saved["stage"],
        )

    def outcomes(self, saved: Sequence[Sequence[Any]]) -> Iterator[Outcome]:
        """Return outcomes that wait to be learnt from; those of tasks that are gone are left out."""
        for old, task, size, *counts in saved:
            if (place := self.place(old, task)) is not None:
                size = math.nan if size is None else size  # noqa: PLW2901 - as it was
                own = dict(zip(_COUNTS, counts, strict=True))
                yield Outcome(self._names[old], place, sum_abs_advantage=size, **own)
