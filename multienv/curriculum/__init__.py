"""CURRICULUM: WHICH task next. Pure and deterministic, the standard library only.

Flow: `specs` declare → `training.sampling` plans and observes → here.
"""

from multienv.curriculum.account import COLUMNS, Account, Line
from multienv.curriculum.batch import Batch
from multienv.curriculum.curriculum import Curriculum
from multienv.curriculum.entries import Entry
from multienv.curriculum.outcomes import Outcome, Pick
from multienv.curriculum.quotas import Quotas, capped
from multienv.curriculum.repeats import repeated_rows
from multienv.curriculum.shares import base_weights, normalised, scheduled

__all__ = [
    "COLUMNS",
    "Account",
    "Batch",
    "Curriculum",
    "Entry",
    "Line",
    "Outcome",
    "Pick",
    "Quotas",
    "base_weights",
    "capped",
    "normalised",
    "repeated_rows",
    "scheduled",
]
