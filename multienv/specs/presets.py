"""Decides how three real environments are declared: target, reward, limits and horizon, with the reasons in notes.

A preset says what is known about an environment before anyone has asked it. It reaches nothing, and holds no key.

Flow: user or run file → `preset` → `EnvSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from multienv.errors import SpecError, nearest
from multienv.specs.declaration import Declaration
from multienv.specs.environment import EnvSpec
from multienv.specs.limits import Limits
from multienv.specs.reward import RewardSpec
from multienv.types import JSONObject

_ALL_PASSED: Final = 0.999
"""SETA's reward for all tests passed, less what adding up the weights of many may lose."""

_SCREENFUL: Final = 8_000
"""Characters of one result that the policy is shown: some 2,000 tokens, so that a whole horizon fits a context."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What is known about a real environment.

    Args:
        name: What users call it.
        target: Its name in the catalogue.
        options: Options of its `EnvSpec`.
        notes: How many tasks it has, how long it takes to start, what it pays, and how its forks differ.
    """

    name: str
    target: str
    options: Mapping[str, Any]
    notes: str


def reports_infrastructure_failure(metadata: JSONObject) -> bool:
    """Recognise what ApGa's fork of SWE-rebench-V2 says of an outage that it hides behind an ordinary result.

    Args:
        metadata: The metadata of a step.

    Example:
        >>> reports_infrastructure_failure({"invalid": True, "failure_class": "infrastructure"})
        True
    """
    return metadata.get("failure_class") == "infrastructure"


_SETA: Final = Preset(
    name="seta",
    target="Eigent/SETA",
    options=MappingProxyType(
        {
            "reward": RewardSpec(reduction="last", unscored=0.0, success_threshold=_ALL_PASSED),
            "limits": Limits(
                open_timeout_s=300.0,
                prompt_timeout_s=960.0,
                tool_timeout_s=960.0,
                episode_timeout_s=3600.0,
                max_tool_calls=30,
                max_observation_chars=_SCREENFUL,
            ),
        }
    ),
    notes=(
        "Tasks: 1,371 in split train; 1,376 are indexed, of which the newest source drops five that need several "
        "containers; an older README says 400. Also served as EnvCommons/seta.\n"
        "Start: a sandbox takes 5 to 30 s; setup() and the grader may take 900 s each, so prompt and tool calls are "
        "waited for a minute longer than that.\n"
        "Reward: only submit_solution is scored, with the weighted fraction of passed tests, 0.0 after a timeout. All "
        "passed is a success. Older servers give 0.0 for each command, and -0.1 for a second submission, which no "
        "longer counts.\n"
        "Horizon: 30 tool calls, as in SETA's own training; TRL's documentation uses 20."
    ),
)

_ENDLESS_TERMINALS: Final = Preset(
    name="endless-terminals",
    target="kanishk/EndlessTerminals",
    options=MappingProxyType(
        {
            "reward": RewardSpec(reduction="last", unscored=0.0),
            "limits": Limits(
                open_timeout_s=300.0,
                prompt_timeout_s=600.0,
                tool_timeout_s=600.0,
                episode_timeout_s=1800.0,
                max_tool_calls=16,
                max_observation_chars=_SCREENFUL,
            ),
        }
    ),
    notes=(
        "Tasks: 2,490 in split train; the paper counts 3,255.\n"
        "Start: a sandbox takes 5 to 30 s; each task has an image of its own, and the first session of a task may wait "
        "for it.\n"
        "Reward: only submit_answer is scored, 1.0 where the tests pass and 0.0 otherwise.\n"
        "Horizon: 16 tool calls, the cap of the paper's training.\n"
        "The source is not public: three of the five tools, all schemas and the form of the task specs are inferred "
        "from servers of the same family."
    ),
)

_SWE_REBENCH_V2: Final = Preset(
    name="swe-rebench-v2",
    target="nebius/SWE-rebench-V2",
    options=MappingProxyType(
        {
            "reward": RewardSpec(reduction="last", unscored=0.0, is_failure=reports_infrastructure_failure),
            "limits": Limits(
                open_timeout_s=1860.0,
                prompt_timeout_s=1860.0,
                tool_timeout_s=660.0,
                episode_timeout_s=5400.0,
                max_tool_calls=50,
                max_observation_chars=_SCREENFUL,
            ),
        }
    ),
    notes=(
        "Tasks: 32,079 in split train, to be had by index only; name num_tasks or indices, for a dataset of all of "
        "them is large. A subset that others have filtered and verified counts 6,272.\n"
        "Start: a sandbox takes 5 to 30 s, after its image has been pulled; setup() tidies the repository. ApGa's fork "
        "allows 1,800 s for it, and a session is waited for a minute longer than that.\n"
        "Reward: only submit_answer is scored, 1.0 where the tests pass and 0.0 otherwise; the tests may take 600 s.\n"
        "Horizon: 50 tool calls; its README says 10 to 50 and more.\n"
        "Forks: ApGa's adds a key of its own to each tool's schema, and reports outages in the metadata of a result, "
        "which are recognised. In its task specs test_cmd, too, may be a text or a list, as install may be everywhere."
    ),
)

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {found.name: found for found in (_SETA, _ENDLESS_TERMINALS, _SWE_REBENCH_V2)}
)
"""All presets by name."""


def preset(name: str, /, **options: Any) -> EnvSpec:
    """Declare a real environment with what is known about it.

    Args:
        name: Name of a preset: `"seta"`, `"endless-terminals"` or `"swe-rebench-v2"`.
        **options: Options of `EnvSpec`, `target` included; they win over the preset's. `limits` and `reward` given as
            mappings change only the options they name; given as `Limits` and `RewardSpec` they replace the preset's.

    Raises:
        SpecError: There is no such preset, or an option cannot be right.

    Example:
        >>> spec = preset("seta", num_tasks=64, limits={"max_tool_calls": 20})
        >>> spec.target, spec.limits.max_tool_calls, spec.limits.tool_timeout_s
        ('Eigent/SETA', 20, 960.0)
    """
    known = PRESETS.get(name) if isinstance(name, str) else None
    if known is None:
        raise SpecError(
            f"there is no preset {name!r}{nearest(str(name), PRESETS)}; known: {', '.join(PRESETS)}. For any other "
            "environment write EnvSpec(target)"
        )
    merged = {"target": known.target, **known.options, **options}
    for group, declared in known.options.items():
        if isinstance(declared, Declaration) and isinstance(given := options.get(group), Mapping):
            merged[group] = {**{option: getattr(declared, option) for option in declared.model_fields_set}, **given}
    return EnvSpec(**merged)
