"""RUN FILE: one file that declares a whole run: the environments, their mixture, and TRL's own arguments.

Flow: a YAML or TOML file → `read_run` → `RunSpec` → `commands`.
"""
