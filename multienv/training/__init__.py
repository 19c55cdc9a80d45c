"""TRAINING: the only room, beside the demo, that imports trl and torch.

Flow: the user → `MultiEnvGRPOTrainer` → TRL, whose seams are in `seams`.
"""

from multienv.training.async_grpo import make_concurrent
from multienv.training.log_file import LogFile
from multienv.training.trainer import MultiEnvGRPOTrainer

__all__ = ["LogFile", "MultiEnvGRPOTrainer", "make_concurrent"]
