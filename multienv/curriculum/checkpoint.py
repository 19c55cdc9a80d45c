"""Decides how a curriculum is saved and goes on: exactly with the same environments, and with others as far as it can.

Flow: `Curriculum.state_dict` → `state_of` → the checkpoint → `restore` → the same stream of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from multienv.curriculum.batch import Batch
from multienv.curriculum.outcomes import Outcome, Pick
from multienv.curriculum.state import is_count, is_share, mapping_of, read
from multienv.errors import CheckpointError, SpecError, nearest

if TYPE_CHECKING:
    from multienv.curriculum.curriculum import Curriculum, Entry

_FORMAT: Final = 1
_FIELDS: Final = tuple(name for name in Outcome.__dataclass_fields__ if name not in ("environment", "task"))


def state_of(curriculum: Curriculum) -> dict[str, Any]:
    """Return all that a curriculum needs to go on after a restart; plain JSON, tasks by their ids."""

    def pick(environment: str, task: int) -> list[Any]:
        ids = curriculum.entries[environment].ids
        return [environment, ids[task] if ids else task]

    return {
        "format": _FORMAT,
        "environments": {
            name: {"num_tasks": entry.num_tasks, "prior": curriculum.priors[name]}
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
            }
            for batch in curriculum.batches.values()
        ],
        "waiting": [
            [
                index,
                [[*pick(one.environment, one.task), *(getattr(one, field) for field in _FIELDS)] for one in outcomes],
            ]
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


def restore(curriculum: Curriculum, state: Any, renamed: Mapping[str, str]) -> list[str]:
    """Let a curriculum go on from a state.

    Args:
        curriculum: One that has planned nothing yet.
        state: What `state_of` returned, after a round through JSON.
        renamed: From the names of environments in the state to those they have now, where they differ.

    Returns:
        What is different now, in sentences; empty if the stream goes on exactly.

    Raises:
        CheckpointError: It is no such state.
        SpecError: `renamed` names an environment that there is not.
    """
    loaded = read(
        state,
        "the curriculum",
        format=lambda value: value == _FORMAT,
        environments=mapping_of(_is_known),
        num_groups=is_count,
        num_planned=is_count,
        num_observed=is_count,
        batches=_is_list,
        waiting=_is_list,
        orders=mapping_of(lambda value: isinstance(value, Mapping)),
        quotas=mapping_of(lambda value: type(value) is int),
        outages=lambda value: isinstance(value, Mapping),
        stages=lambda value: isinstance(value, Mapping),
        bandit=lambda value: value is None or isinstance(value, Mapping),
        account=lambda value: isinstance(value, Mapping),
    )
    saved: Mapping[str, Any] = loaded["environments"]
    _check_renamed(renamed, saved, curriculum.entries)
    names = {old: renamed.get(old, old) for old in saved if renamed.get(old, old) in curriculum.entries}
    places = _Places(curriculum.entries, names)
    try:
        for old, new in names.items():
            curriculum.orders[new].load_state_dict(loaded["orders"][old], places.ids_as_saved(old))
        curriculum.quotas.load_state_dict(loaded["quotas"])
        curriculum.outages.load_state_dict(loaded["outages"])
        curriculum.stages.load_state_dict(loaded["stages"])
        curriculum.account.load_state_dict(loaded["account"])
        if curriculum.bandit is not None and loaded["bandit"] is not None:
            curriculum.bandit.load_state_dict(loaded["bandit"])
        batches = [batch for batch in map(places.batch, loaded["batches"]) if batch is not None]
        curriculum.waiting |= {int(index): list(places.outcomes(outcomes)) for index, outcomes in loaded["waiting"]}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the state of the curriculum does not fit: {error!r}") from error
    for part in (curriculum.quotas, curriculum.outages, curriculum.stages, curriculum.account, curriculum.bandit):
        if part is not None:
            part.rename(names)
    curriculum.num_observed = loaded["num_observed"]
    fits = len(batches) == len(loaded["batches"]) and loaded["num_groups"] == curriculum.num_groups
    if fits:
        curriculum.batches |= {batch.index: batch for batch in batches}
    curriculum.num_planned = loaded["num_planned" if fits else "num_observed"]
    return [*_differences(curriculum, loaded, names), *([] if fits else ["batches planned ahead are planned anew"])]


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
        return ids if old == new else [old + task.removeprefix(new) for task in ids]

    def place(self, old: str, task: Any) -> int | None:
        """Return the place of a task; None where there is none now."""
        if old not in self._names:
            return None
        if old not in self._by_id:
            ids = self.ids_as_saved(old)
            self._by_id[old] = {} if ids is None else {name: place for place, name in enumerate(ids)}
        if isinstance(task, int):
            return task if task < self._entries[self._names[old]].num_tasks else None
        return self._by_id[old].get(task)

    def batch(self, saved: Mapping[str, Any]) -> Batch | None:
        """Return a planned batch; None where one of its tasks is gone."""
        groups = [(old, self.place(old, task)) for old, task in saved["groups"]]
        if any(place is None for _, place in groups):
            return None
        return Batch(
            int(saved["index"]),
            tuple(Pick(self._names[old], place) for old, place in groups if place is not None),
            {self._names.get(old, old): float(share) for old, share in saved["asked"].items()},
            {self._names.get(old, old): int(calls) for old, calls in saved["max_tool_calls"].items()},
        )

    def outcomes(self, saved: Sequence[Any]) -> Iterator[Outcome]:
        """Return outcomes that wait to be learnt from; those of tasks that are gone are left out."""
        for old, task, *rest in saved:
            if (place := self.place(old, task)) is not None:
                yield Outcome(self._names[old], place, **dict(zip(_FIELDS, rest, strict=True)))


def _is_known(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() == {"num_tasks", "prior"}
        and is_count(value["num_tasks"])
        and is_share(value["prior"])
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _check_renamed(renamed: Mapping[str, str], saved: Mapping[str, Any], entries: Mapping[str, Any]) -> None:
    for old, new in renamed.items():
        if old not in saved:
            raise SpecError(
                f"renamed has {old!r}{nearest(old, saved)}, which the checkpoint does not know; its environments: "
                f"{', '.join(saved)}"
            )
        if new not in entries:
            raise SpecError(
                f"renamed has {new!r}{nearest(new, entries)}, which the mixture does not have; its environments: "
                f"{', '.join(entries)}"
            )
        if new in saved and renamed.get(new, new) == new:
            raise SpecError(
                f"renamed gives {old!r} the name {new!r}, which the checkpoint has already; rename that too"
            )
    if len(set(renamed.values())) < len(renamed):
        raise SpecError("renamed gives two environments one name; give each its own")


def _differences(curriculum: Curriculum, loaded: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Say in sentences what is not as it was."""
    saved = loaded["environments"]
    sentences = [f"{old!r} is called {new!r} now" for old, new in names.items() if old != new]
    sentences += [f"{old!r} is gone" for old in saved if old not in names]
    sentences += [f"{new!r} is new" for new in curriculum.entries if new not in names.values()]
    for old, new in names.items():
        before, now = saved[old]["num_tasks"], curriculum.entries[new].num_tasks
        if before != now:
            sentences.append(f"{new!r} has {now} tasks now, it had {before}")
    if names.keys() == saved.keys() and set(names.values()) == curriculum.entries.keys():
        for old, new in names.items():
            share, own = saved[old]["prior"], curriculum.priors[new]
            if abs(share - own) > 1e-9:  # noqa: PLR2004 - rounding
                sentences.append(f"the prior share of {new!r} is {own:.3g} now, it was {share:.3g}")
    if loaded["num_groups"] != curriculum.num_groups:
        sentences.append(f"a batch has {curriculum.num_groups} groups now, it had {loaded['num_groups']}")
    if (loaded["bandit"] is None) is not (curriculum.bandit is None):
        sentences.append(f"the mixture {'follows' if curriculum.bandit else 'no longer follows'} the advantages now")
    return sentences
