"""OFFLINE: a run without key, network or GPU: the presets' replicas, and a tiny policy that knows their tools.

Flow: `commands` with `--offline` → `policy` → `tiny`, `testing`.
"""

from multienv.offline.policy import offline_policy, offline_tokenizer

__all__ = ["offline_policy", "offline_tokenizer"]
