"""Decides which stage the training is in: the next one once its environments succeed often enough.

Flow: `Curriculum.observe` → `Stages.observe`; `Curriculum.plan` reads `Stages.current`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from multienv.curriculum.outcomes import Outcome
from multienv.curriculum.state import is_count, is_share, mapping_of, read, renamed
from multienv.errors import CheckpointError
from multienv.specs import Stage

logger = logging.getLogger(__name__)

_SMOOTHING: Final = 0.2
"""Weight of the newest group in an environment's success rate."""


class Stages:
    """The stages of a training, and how far it has come.

    An environment's success rate is a running mean over its groups in this stage, of the share of scored rollouts that
    are a success. Groups that infrastructure ended say nothing.

    Args:
        stages: The declarations, in order; may be none.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self._stages = tuple(stages)
        self._place = 0
        self._rates: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    @property
    def current(self) -> Stage | None:
        """The stage the training is in; None where there are none."""
        return self._stages[self._place] if self._stages else None

    @property
    def place(self) -> int:
        """Its place, from 0."""
        return self._place

    def observe(self, outcomes: Iterable[Outcome]) -> None:
        """Take in the groups of one batch, and go on to the next stage when this one's goals are met."""
        stage = self.current
        if stage is None or not stage.until:
            return
        for outcome in outcomes:
            if outcome.num_scored and outcome.environment in stage.until:
                name, newest = outcome.environment, outcome.num_successes / outcome.num_scored
                weight = _SMOOTHING if name in self._rates else 1.0
                self._rates[name] = (1 - weight) * self._rates.get(name, 0.0) + weight * min(1.0, newest)
                self._counts[name] = self._counts.get(name, 0) + 1
        if all(self._is_reached(stage, name, goal) for name, goal in stage.until.items()):
            logger.info("stage %d ends: %s", self._place, self._rates)
            self._place += 1
            self._rates, self._counts = {}, {}

    def _is_reached(self, stage: Stage, name: str, goal: float) -> bool:
        return self._counts.get(name, 0) >= stage.min_groups and self._rates[name] >= goal

    def rename(self, names: Mapping[str, str]) -> None:
        """Keep only the environments named, under their new names."""
        self._rates, self._counts = renamed(self._rates, names), renamed(self._counts, names)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after a restart; plain JSON."""
        return {"place": self._place, "rates": dict(self._rates), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: It is none, or there are fewer stages now.
        """
        loaded = read(state, "the stages", place=is_count, rates=mapping_of(is_share), counts=mapping_of(is_count))
        if loaded["place"] >= max(1, len(self._stages)):
            raise CheckpointError(
                f"the checkpoint is in stage {loaded['place']}, and there are {len(self._stages)} stages now; declare "
                "the stages it was trained with, or start anew"
            )
        self._place = loaded["place"]
        self._rates, self._counts = dict(loaded["rates"]), dict(loaded["counts"])
