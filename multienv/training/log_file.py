"""Decides how TRL's log is kept beside the record of the rollouts: `log.jsonl`, a line as soon as it is logged.

Flow: the trainer logs → `LogFile` → `log.jsonl` → `multienv report`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback

from multienv.reporting import plain

logger = logging.getLogger(__name__)

LOG_NAME: Final = "log.jsonl"
"""The file in the output directory."""


class LogFile(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Writes each entry of TRL's log history to `log.jsonl` in the output directory, one JSON object a line.

    A training that begins replaces the file; one that goes on from a checkpoint keeps what was logged up to there. Only
    the first process writes. A disk that fails costs the log, not the run.

    Example:
        `trainer.add_callback(LogFile())`
    """

    def __init__(self) -> None:
        self._num_written = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' names
        """Begin the file with what the checkpoint knows."""
        self._num_written = len(state.log_history)
        self._write(args, state, state.log_history, "w")

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' names
        """Add what is new."""
        new, self._num_written = state.log_history[self._num_written :], len(state.log_history)
        self._write(args, state, new, "a")

    def _write(self, args: Any, state: Any, entries: Iterable[Any], mode: str) -> None:
        if not state.is_world_process_zero:
            return
        path = Path(args.output_dir, LOG_NAME)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(plain(entry)) + "\n" for entry in entries)
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error)
