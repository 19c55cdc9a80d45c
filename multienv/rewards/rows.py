"""Decides which rows of a batch belong to which environment.

Flow: every reward function asks `owners` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multienv.errors import RoutingError, nearest
from multienv.types import Column


def owners(known: Sequence[str], batch: Mapping[str, Any]) -> list[str]:
    """Return the environment of every row.

    The adapters know it best; the column is what TRL routed on. Where both are given they must agree.

    Args:
        known: The environments of the mixture.
        batch: The keywords TRL passed to a reward function, each list of batch length.

    Returns:
        One name per row.

    Raises:
        RoutingError: A row belongs to no environment of the mixture, or its adapter to another one than the row.
    """
    adapters: Sequence[Any] | None = batch.get("environments")
    column: Sequence[Any] | None = batch.get(Column.ENVIRONMENT)
    if adapters is None and column is None:
        raise RoutingError(
            "a reward function was called without 'environments' and without the column 'environment', so no row can "
            "be routed; pass environments=[...], as GRPOTrainer does"
        )
    by_adapter = None if adapters is None else [getattr(adapter, "environment", None) for adapter in adapters]
    names: list[Any] = list(column) if column is not None else list(by_adapter or ())
    if by_adapter is not None and len(by_adapter) != len(names):
        raise RoutingError(
            f"{len(names)} rows came with {len(by_adapter)} environments; pass one environment per row, in their order"
        )
    for row, name in enumerate(names):
        if name not in known:
            hint = nearest(name, known) if isinstance(name, str) else ""
            raise RoutingError(f"row {row} belongs to unknown environment {name!r}{hint}; known: {', '.join(known)}")
        # An environment class of another making has no name of its own; the row's says whose it is.
        if by_adapter is not None and by_adapter[row] not in (name, None):
            raise RoutingError(
                f"row {row} says environment {name!r}, its adapter belongs to {by_adapter[row]!r}; rows and adapters "
                "must be in the same order"
            )
    return names
