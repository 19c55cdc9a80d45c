"""PAGE: one HTML file that shows what a run has left behind: its figures, and its episodes to read.

Flow: `episodes.jsonl` and the trainer's log → `figures_of` → `write_report` → `report.html`, which needs nothing else.
"""

from multienv.reporting.page.figures import Phase, figures_of
from multienv.reporting.page.logged import Log, read_log
from multienv.reporting.page.write import Report, make_report, save, write_report

__all__ = ["Log", "Phase", "Report", "figures_of", "make_report", "read_log", "save", "write_report"]
