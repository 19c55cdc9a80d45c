"""FILES: WHAT a file declares, with the line of everything in it, so that whatever is wrong with it can be found.

Flow: a YAML or TOML file → `Document` → `runfile`, `simulate` → a finding with its line.
"""
