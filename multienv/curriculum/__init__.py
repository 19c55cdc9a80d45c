"""CURRICULUM: WHICH task next. Pure and deterministic, the standard library only.

Flow: `specs` declare → `training.sampling` plans and observes → here.
"""

from multienv.curriculum.account import COLUMNS, Account, Line
from multienv.curriculum.batch import Batch
from multienv.curriculum.curriculum import Curriculum, Entry
from multienv.curriculum.outcomes import Outcome, Pick
from multienv.curriculum.quotas import Quotas
from multienv.curriculum.repeats import repeated_rows

__all__ = ["COLUMNS", "Account", "Batch", "Curriculum", "Entry", "Line", "Outcome", "Pick", "Quotas", "repeated_rows"]
