"""Decides which environments there are, and what an episode of each is worth.

Flow: `run` serves each environment named here, `learning` declares it with its rule, `report` asks what a success is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multienv.specs import RewardSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

REWARDS: Final[Mapping[str, RewardSpec]] = {
    "echo": RewardSpec(reduction="last"),
    "vault": RewardSpec(reduction="last"),
    "climb": RewardSpec(reduction="total", success_threshold=1.0),
}
"""From the name of each environment, in the order in which they are shown, to its rule."""
