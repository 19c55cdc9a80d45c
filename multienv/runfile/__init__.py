"""RUN FILE: one file that declares a whole run: the environments, their mixture, and TRL's own arguments.

Flow: a YAML or TOML file → `read_run` → `RunFile` → `commands`.
"""

from multienv.runfile.declaration import RunSpec, TrainerSpec
from multienv.runfile.reading import RunFile, read_run

__all__ = ["RunFile", "RunSpec", "TrainerSpec", "read_run"]
