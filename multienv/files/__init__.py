"""FILES: WHAT a file declares, with the line of everything in it, so that whatever is wrong with it can be found.

Flow: a YAML or TOML file → `Document` → `runfile`, `simulate` → a finding with its line.
"""

from multienv.files.document import Document
from multienv.files.findings import Declarations, Wrong, explained, found_in, in_words, refusal
from multienv.files.places import Place
from multienv.files.writing import write_whole

__all__ = ["Declarations", "Document", "Place", "Wrong", "explained", "found_in", "in_words", "refusal", "write_whole"]
