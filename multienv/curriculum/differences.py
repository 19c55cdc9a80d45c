"""Decides what is said where training goes on with other environments, or another declaration, than it was saved with.

Flow: `checkpoint.restore` → here → the trainer's warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from multienv.errors import SpecError, nearest

if TYPE_CHECKING:
    from multienv.curriculum.curriculum import Curriculum


def check_renamed(renamed: Mapping[str, str], saved: Mapping[str, Any], entries: Mapping[str, Any]) -> None:
    """Check a map from the names that environments had to those they have.

    Args:
        renamed: The map.
        saved: The environments of the checkpoint.
        entries: The environments there are.

    Raises:
        SpecError: It names one that there is not, or gives two one name.
    """
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
        if new in saved and renamed.get(new, new) == new and new != old:
            raise SpecError(
                f"renamed gives {old!r} the name {new!r}, which the checkpoint has already; rename that too"
            )
    if len(set(renamed.values())) < len(renamed):
        twice = next(new for new in renamed.values() if list(renamed.values()).count(new) > 1)
        raise SpecError(f"renamed gives two environments the name {twice!r}; give each its own")


def differences(curriculum: Curriculum, loaded: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    """Say in sentences what is not as it was.

    Args:
        curriculum: As it is now.
        loaded: The state it was loaded from.
        names: From the names of the state to those there are now.
    """
    yield from _environments(curriculum, loaded["environments"], names)
    if loaded["num_groups"] != curriculum.num_groups:
        yield f"a batch has {curriculum.num_groups} groups now, it had {loaded['num_groups']}"
    if loaded["seed"] != curriculum.seed:
        yield f"the tasks are shuffled with seed {curriculum.seed} now, it was {loaded['seed']}"
    if (loaded["bandit"] is None) is not (curriculum.bandit is None):
        yield f"the mixture {'follows' if curriculum.bandit else 'no longer follows'} the advantages now"
    now, place = len(curriculum.spec.stages), loaded["stages"]["place"]
    if (before := loaded["stages"]["num_stages"]) != now:
        yield f"there {'is 1 stage' if now == 1 else f'are {now} stages'} now, there {_were(before)}"
        if now and curriculum.stages.place != place:
            yield f"training had come to stage {place} and goes on in stage {curriculum.stages.place}"
    declared = json.loads(curriculum.spec.model_dump_json())
    said = {"seed", *(["adaptive"] if (loaded["bandit"] is None) is not (curriculum.bandit is None) else [])}
    said |= {"stages"} if before != now else set()
    for option in sorted(declared.keys() - said):
        if loaded["declared"].get(option) != declared[option]:
            yield f"the curriculum's {option} was declared otherwise"


def _were(num: int) -> str:
    return "was 1" if num == 1 else f"were {num}"


def _environments(curriculum: Curriculum, saved: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    """Say what is not as it was of the environments."""
    for old, new in names.items():
        if old != new:
            yield f"{old!r} is called {new!r} now"
    for old in saved:
        if old not in names:
            yield f"{old!r} is gone"
    for new in curriculum.entries:
        if new not in names.values():
            yield f"{new!r} is new"
    yield from _tasks_and_priors(curriculum, saved, names)


def _tasks_and_priors(curriculum: Curriculum, saved: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    """Say what is not as it was of environments that there were before."""
    for old, new in names.items():
        before, now = saved[old]["num_tasks"], curriculum.entries[new].num_tasks
        if before != now:
            yield f"{new!r} has {now} tasks now, it had {before}"
        elif saved[old]["tasks"] != curriculum.digests[new]:
            yield f"{new!r} has other tasks now, or in another order"
    if names.keys() == saved.keys() and set(names.values()) == curriculum.entries.keys():
        for old, new in names.items():
            share, own = saved[old]["prior"], curriculum.priors[new]
            if abs(share - own) > 1e-9:  # noqa: PLR2004 - rounding
                yield f"the prior share of {new!r} is {own:.3g} now, it was {share:.3g}"
