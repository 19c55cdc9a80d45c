"""Decides when the sessions of the next batch are opened: as soon as the data loader has read it, one batch early.

Flow: accelerate's data loader reads one batch ahead and collates it → `ReadAhead` → `LiveMixture.open_ahead`.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multienv.meta import MultiEnvSpec
from multienv.types import Column

logger = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any]]


class ReadAhead:
    """A data collator that starts opening the sessions of the batch it is given.

    Args:
        spec: The mixture.
        collate: The collator it stands before.
        generate_every: TRL collates every batch so often and generates for it once.
    """

    def __init__(self, spec: MultiEnvSpec, collate: Callable[[Any], Any], generate_every: int) -> None:
        self._spec = spec
        self._collate = collate
        self._generate_every = generate_every
        self._pid = os.getpid()
        self._num_collated = 0
        self._current: Counter[str] = Counter()

    def __call__(self, rows: Any) -> Any:
        """Collate a batch, and start opening its sessions if TRL will generate for it."""
        is_generated = self._num_collated % self._generate_every == 0
        is_first = self._num_collated == 0  # nothing is being optimised yet
        self._num_collated += 1
        if is_generated and self._pid == os.getpid():  # a data loader's worker has no use for sessions
            own = [row for row in rows if row.get(Column.ENVIRONMENT) in self._spec.environments]
            needed = Counter(str(row[Column.ENVIRONMENT]) for row in own)
            if not is_first:
                self._open(own, self._current + needed)
            self._current = needed
        return self._collate(rows)

    def _open(self, own: Rows, needed: Counter[str]) -> None:
        if not self._spec.live.has_room_for(needed):
            logger.info("not read ahead: two batches need more sessions than the limits allow (%s)", dict(needed))
            return
        for row in own:
            self._spec.live.open_ahead(str(row[Column.ENVIRONMENT]), row)
