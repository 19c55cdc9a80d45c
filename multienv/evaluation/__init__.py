"""EVALUATION: HOW good a policy is on a mixture: attempts at every task, counted with their uncertainty.

Flow: `MultiEnvSpec` and a policy → `evaluate` → a record → `pass@k`, and what two records say of each other.
"""

from multienv.evaluation.comparison import Change, Comparison, compared
from multienv.evaluation.declaration import EvalSpec
from multienv.evaluation.endpoint import EndpointPolicy
from multienv.evaluation.local import LocalPolicy
from multienv.evaluation.policies import Call, Policy, PolicyFailedError, PromptTooLongError, Reply
from multienv.evaluation.results import Evaluation, Result
from multienv.evaluation.run import evaluate
from multienv.evaluation.show import show_comparison, show_evaluation
from multienv.evaluation.statistics import Estimate, pass_at_k

__all__ = [
    "Call",
    "Change",
    "Comparison",
    "EndpointPolicy",
    "Estimate",
    "EvalSpec",
    "Evaluation",
    "LocalPolicy",
    "Policy",
    "PolicyFailedError",
    "PromptTooLongError",
    "Reply",
    "Result",
    "compared",
    "evaluate",
    "pass_at_k",
    "show_comparison",
    "show_evaluation",
]
