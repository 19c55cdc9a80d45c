"""Decides when the sessions of the next batch are opened: as soon as the data loader has read it, one batch early.

Flow: accelerate's data loader reads one batch ahead and collates it → `ReadAhead` → `MultiEnvSpec.open_ahead`.
"""

from __future__ import annotations

import logging
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
        self._num_collated = 0
        self._is_on = True

    def __call__(self, rows: Any) -> Any:
        """Collate a batch, and start opening its sessions if TRL will generate for it."""
        is_generated = self._num_collated % self._generate_every == 0
        is_first = self._num_collated == 0  # nothing is being optimised yet
        self._num_collated += 1
        if self._is_on and is_generated and not is_first:
            self._open(rows)
        return self._collate(rows)

    def _open(self, rows: Rows) -> None:
        own = [row for row in rows if row.get(Column.ENVIRONMENT) in self._spec.environments]
        needed = Counter(row[Column.ENVIRONMENT] for row in own)
        if not self._spec.has_room_for({name: 2 * count for name, count in needed.items()}):
            logger.warning("read-ahead is off: two batches need more sessions than the limits allow (%s)", dict(needed))
            self._is_on = False
            return
        for row in own:
            self._spec.open_ahead(row[Column.ENVIRONMENT], int(row[Column.TASK_INDEX]))
