"""EVALUATION: HOW good a policy is on a mixture: attempts at every task, counted with their uncertainty.

Flow: `MultiEnvSpec` and a policy → `evaluate` → a record → `pass@k`, and what two records say of each other.
"""

from multienv.evaluation.declaration import EvalSpec

__all__ = ["EvalSpec"]
