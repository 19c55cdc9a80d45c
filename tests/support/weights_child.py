"""One of two ranks that train a step on weighed environments.

Run by torchrun with DIR; what each rank used is written to DIR/<rank>.json.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.test_weights import growing, train


def main(directory: str) -> None:
    warnings.filterwarnings("ignore", "reward_weight", UserWarning)
    options = {"per_device_train_batch_size": 1, "ddp_backend": "gloo"}
    switches: dict[str, Any] = {"balance": "rollouts", "normalize_advantages": True}
    trainer = train(Path(directory) / "out", 2.0, growing, options=options, **switches)
    used = {"factors": dict(trainer.advantage_factors), "logged": sorted(trainer._logs["advantages"])}
    Path(directory, f"{trainer.accelerator.process_index}.json").write_text(json.dumps(used), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
