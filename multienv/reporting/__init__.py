"""REPORTING: what a run leaves behind of its rollouts, and how it is read again.

Flow: `training` writes with `EpisodeRecord` → `episodes.jsonl` → `read_episodes` → `rescore`, or `write_report`, which
shows it all on one page; `account_table` shows what came of the mixture that was asked for.
"""

from multienv.reporting.account import account_table, account_text
from multienv.reporting.lines import MAX_TEXT_CHARS, plain
from multienv.reporting.page import write_report
from multienv.reporting.read import read_episodes, rescore
from multienv.reporting.record import EpisodeRecord
from multienv.reporting.summary import summary, summary_table

__all__ = [
    "MAX_TEXT_CHARS",
    "EpisodeRecord",
    "account_table",
    "account_text",
    "plain",
    "read_episodes",
    "rescore",
    "summary",
    "summary_table",
    "write_report",
]
