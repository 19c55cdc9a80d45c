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
    are a success. Groups that infrastructure ended say nothing, and neither do those of batches that were planned in an
    earlier stage, with its horizons.

    Args:
        stages: The declarations, in order; may be none.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self._stages = tuple(stages)
        self._place = 0
        self._begins = 0
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

    def observe(self, index: int, outcomes: Iterable[Outcome], num_planned: int) -> None:
        """Take in the groups of one batch, and go on to the next stage when this one's goals are met.

        Args:
            index: The batch.
            outcomes: Of its groups.
            num_planned: How many batches are planned; a stage that begins now begins with the next one.
        """
        stage = self.current
        if stage is None or not stage.until or index < self._begins:
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
            self._begins = num_planned
            self._rates, self._counts = {}, {}

    def _is_reached(self, stage: Stage, name: str, goal: float) -> bool:
        return self._counts.get(name, 0) >= stage.min_groups and self._rates[name] >= goal

    def metrics(self) -> dict[str, float]:
        """Return the stage, counted from 0; nothing where there are none."""
        return {"stage": float(self._place)} if self._stages else {}

    def rename(self, names: Mapping[str, str]) -> None:
        """Keep only the environments named, under their new names."""
        self._rates, self._counts = renamed(self._rates, names), renamed(self._counts, names)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after a restart; plain JSON."""
        return {
            "num_stages": len(self._stages),
            "place": self._place,
            "begins": self._begins,
            "rates": dict(self._rates),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; where there are fewer stages now than it had come to, in the last one.

        Raises:
            CheckpointError: It is none.
        """
        loaded = read(
            state,
            "the stages",
            num_stages=is_count,
            place=is_count,
            begins=is_count,
            rates=mapping_of(is_share),
            counts=mapping_of(is_count),
        )
        if loaded["place"] >= max(1, loaded["num_stages"]) or loaded["rates"].keys() != loaded["counts"].keys():
            raise CheckpointError("the state of the stages is in a stage that it does not have, or has rates of others")
        self._place = min(loaded["place"], max(0, len(self._stages) - 1))
        self._begins = loaded["begins"]
        is_same = self._place == loaded["place"]
        self._rates, self._counts = (dict(loaded[key]) if is_same else {} for key in ("rates", "counts"))
