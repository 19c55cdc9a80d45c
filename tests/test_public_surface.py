from __future__ import annotations

import subprocess
import sys

import pytest

import multienv


def test_the_public_names_are_these() -> None:
    assert multienv.__all__ == sorted(multienv.__all__, key=lambda name: (name.islower(), name))
    assert multienv.__all__ == [
        "Adapter",
        "Adaptive",
        "CurriculumSpec",
        "EnvSpec",
        "Episode",
        "EpisodeStatus",
        "Finding",
        "ForeignSpec",
        "Limits",
        "MultiEnvGRPOTrainer",
        "MultiEnvSpec",
        "RewardSpec",
        "Schedule",
        "Severity",
        "Stage",
        "Step",
        "TaskRules",
        "ToolCallError",
        "ToolsReport",
        "discounted",
        "errors",
        "preset",
    ]
    for name in multienv.__all__:
        assert getattr(multienv, name) is not None
        assert name in dir(multienv)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="public names: Adapter, Adaptive, CurriculumSpec, EnvSpec, "):
        _ = multienv.MultienvSpec


def test_importing_and_declaring_loads_nothing_heavy_and_prints_nothing() -> None:
    program = (
        "import os, sys; before = dict(os.environ)\n"
        "import multienv\n"
        "light = set(sys.modules)\n"
        "spec = multienv.MultiEnvSpec({'a': 'owner/name', 'b': multienv.EnvSpec('http://localhost:1')})\n"
        "spec.reward_funcs, spec.reward_weights, spec.reward_func\n"
        "heavy = {'torch', 'trl', 'datasets', 'transformers', 'openreward', 'aiohttp', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'pydantic' not in light\n"
        "assert dict(os.environ) == before\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
