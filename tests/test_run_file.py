"""Run files: what they declare, what `${NAME}` and `module:name` stand for, and how what is wrong is said."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multienv.errors import SpecError
from multienv.rewards import episode_reward
from multienv.runfile import RunFile, read_run
from multienv.specs import EnvSpec
from multienv.types import Episode, EpisodeStatus, Step

WHOLE = """\
environments:
  seta: {preset: seta, num_tasks: 64, sampling_weight: 2.0}
  swe:
    target: https://swe.example.org
    api_key: ${SWE_KEY}
    secrets: {token: [$SWE_TOKEN, [api.example.org]]}
    indices: [0, 5]
    reward: {reduction: total, clip: [-1, 1]}
    limits: {max_sessions: 32}
    reward_funcs: [own_rewards:brevity]
  mine: own_environments:Mine
curriculum:
  stages:
    - {weights: {seta: 1.0}, until: {seta: 0.5}}
    - {}
max_sessions: 64
model: {model_name_or_path: Qwen/Qwen3-4B, dtype: bfloat16}
grpo: {output_dir: out, learning_rate: 1e-6, num_generations: 8, max_steps: 100}
trainer: {balance: rollouts}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_rewards.py").write_text(
        "def brevity(completions, **_):\n    return [0.0 for _ in completions]\n\n"
        "def first(rewards):\n    return rewards[0]\n"
    )
    (tmp_path / "own_environments.py").write_text(
        "from openreward.environments import Environment\n\nclass Mine(Environment):\n    pass\n"
    )
    monkeypatch.setenv("SWE_KEY", "sk-of-swe")
    monkeypatch.setenv("SWE_TOKEN", "t-of-swe")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for module in ("own_rewards", "own_environments"):
        sys.modules.pop(module, None)


def run_of(folder: Path, text: str, name: str = "run.yaml", **options: Any) -> RunFile:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_run(path, **options)


def refused(folder: Path, text: str, **options: Any) -> str:
    with pytest.raises(SpecError) as caught:
        run_of(folder, text, **options)
    return str(caught.value)


def test_a_file_declares_what_the_same_values_declare_in_python(folder: Path) -> None:
    run = run_of(folder, WHOLE)
    swe = run.spec.environments["swe"]
    assert swe.api_key.get_secret_value() == "sk-of-swe"
    assert swe.secrets["token"][0].get_secret_value() == "t-of-swe"
    assert swe.secrets["token"][1] == ("api.example.org",)
    assert (swe.indices, swe.reward.clip, swe.limits.max_sessions) == ((0, 5), (-1.0, 1.0), 32)
    assert [function.__name__ for function in swe.reward_funcs] == ["brevity"]
    assert run.spec.environments["mine"].__name__ == "Mine"
    assert run.spec.environments["seta"].target == "Eigent/SETA"
    assert run.presets == {"seta": "seta"}
    with run.mixture() as spec:
        assert list(spec.environments) == ["seta", "swe", "mine"]
        assert [function.__name__ for function in spec.reward_funcs] == ["seta", "swe", "swe/brevity", "mine"]
        assert spec.curriculum.stages[0].until == {"seta": 0.5}


def test_trls_arguments_are_its_own_under_their_own_names(folder: Path) -> None:
    run = run_of(folder, WHOLE)
    config = run.grpo_config(is_to_train=False)
    assert (config.learning_rate, config.num_generations, config.max_steps) == (1e-6, 8, 100)
    assert run.model_config().dtype == "bfloat16"


def test_a_secret_appears_nowhere_in_what_is_read(folder: Path) -> None:
    run = run_of(folder, WHOLE)
    assert "sk-of-swe" not in repr(run) + json.dumps(run.document.values)


@pytest.mark.parametrize("option", ["api_key: sk-123", "secrets: {token: sk-123}", "env_overrides: {T: sk-123}"])
def test_a_secret_in_the_file_is_refused_without_being_shown(folder: Path, option: str) -> None:
    said = refused(folder, f"environments:\n  swe:\n    target: https://swe.example.org\n    {option}\n")
    assert "line 4: " in said
    assert "no reference to an environment variable" in said
    assert "sk-123" not in said


def test_a_variable_that_is_not_set_is_named_with_its_nearest_and_no_value(folder: Path) -> None:
    said = refused(folder, "environments:\n  swe: {target: 'https://x.org', api_key: '${SWE_KEI}'}\n")
    assert "line 2" in said
    assert "SWE_KEI is not set" in said
    assert "'SWE_KEY'" in said
    assert os.environ["SWE_KEY"] not in said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("enviroments: {}\n", ["line 1", "'enviroments'", "'environments'"]),
        ("environments:\n  a: {preset: setta}\n", ["line 2", "'setta'", "'seta'"]),
        ("environments:\n  a:\n    preset: seta\n    num_taks: 3\n", ["line 4", "'num_taks'", "'num_tasks'"]),
        (
            "environments:\n  a:\n    preset: seta\n    limits:\n      max_sesions: 3\n",
            ["line 5", "'max_sesions'", "'max_sessions'"],
        ),
        ("environments:\n  a:\n    target: Eigent/SETA\n    reward: {reduction: lst}\n", ["line 4", "'lst'", "'last'"]),
        ("environments:\n  a:\n    num_tasks: 3\n", ["line 2", "target is missing"]),
        ("environments:\n  a:\n", ["line 2", "it is empty"]),
        ("environments:\n  a: Eigent/SETA\ntrainer: {balanc: tokens}\n", ["line 3", "'balanc'", "'balance'"]),
        ("environments:\n  a: Eigent/SETA\ncurriculum: adaptve\n", ["line 3", "'adaptve'", "'adaptive'"]),
        ("environments:\n  a: Eigent/SETA\n  A: Eigent/SETA2\n", ["line 2", "'a' and 'A'"]),
        ("environments:\n  a: Eigent/SETA\n  b: Eigent/SETA\n", ["line 3", "both hold task 0"]),
        ("environments:\n  a: no_such_module:Mine\n", ["line 2", "'no_such_module' cannot be imported"]),
        ("environments:\n  a: own_environments:Mein\n", ["line 2", "no 'Mein'", "'Mine'"]),
        ("environments:\n  a: Eigent/SETA\nreward_funcs: [brevity]\n", ["line 3", "'brevity' names no function"]),
        ("environments: [a]\n", ["line 1", "environments"]),
        ("environments:\n  a: {target: x/y, api_key: ${SWE_KEY}}\n", ["line 2", "'${NAME}' in quotes, or $NAME"]),
        ("[1]\n", ["the file says [1]"]),
        ("", ["the file is empty"]),
    ],
)
def test_what_is_wrong_is_said_with_file_line_key_and_the_nearest_known_one(
    folder: Path, text: str, parts: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        run_of(folder, text).mixture()
    said = str(caught.value)
    assert str(folder / "run.yaml") in said
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("grpo: {max_step: 3}", ["line 3", "'max_step'", "'max_steps'"]),
        ("grpo: {max_steps: many}", ["line 3", "max_steps='many'", "integer"]),
        ("grpo: {num_generations: 1}", ["line 3", "refuses", "2 generations"]),
        ("grpo: {lr_scheduler_type: wavy}", ["line 3", "wavy"]),
        ("grpo: {num_generations: 0}", ["line 3", "num_generations=0", "from 1"]),
        ("grpo: {gradient_accumulation_steps: 0}", ["line 3", "gradient_accumulation_steps=0", "from 1"]),
        ("grpo: {parallelism_config: {a: 1}}", ["line 3", "AttributeError"]),
        ("grpo: {accelerator_config: no-such-file.json}", ["line 3", "no-such-file.json"]),
    ],
)
def test_what_is_wrong_with_trls_arguments_is_said_as_well(folder: Path, line: str, parts: list[str]) -> None:
    run = run_of(folder, f"environments:\n  a: Eigent/SETA\n{line}\n")
    with pytest.raises(SpecError) as caught:
        run.grpo_config(is_to_train=False)
    for part in parts:
        assert part in str(caught.value)


def test_a_model_that_is_not_named_is_asked_for(folder: Path) -> None:
    run = run_of(folder, "environments:\n  a: Eigent/SETA\nmodel: {dtype: float32}\n")
    with pytest.raises(SpecError, match=r"line 3: model: model_name_or_path is missing"):
        run.model_config()


def test_several_mistakes_are_told_at_once_a_line_each(folder: Path) -> None:
    said = refused(
        folder, "environments:\n  a: {preset: seta, api_key: sk-1}\n  b: {target: x/y, splt: z}\ngrpo: {}\nmodl: {}\n"
    )
    assert [line.split(": ")[0].rpartition(" ")[2] for line in said.splitlines()] == ["2", "3", "5"]


def test_toml_says_the_same(folder: Path) -> None:
    toml = '[environments.a]\npreset = "seta"\nnum_tasks = 3\n\n[grpo]\nmax_stepz = 3\n'
    run = run_of(folder, toml, "run.toml")
    assert run.spec.environments["a"].num_tasks == 3
    with pytest.raises(SpecError, match=r"run\.toml, line 6: .*'max_steps'"):
        run.grpo_config(is_to_train=False)


def test_rules_that_are_functions_are_named_by_module(folder: Path) -> None:
    reward = "{reduction: own_rewards:first}"
    run = run_of(folder, f"environments:\n  a: {{target: x/y, reward: {reward}}}\n")
    steps = (Step("t", {}, "", reward=0.25), Step("t", {}, "", reward=1.0, finished=True))
    episode = Episode("a", "a/train/0", "s", steps, EpisodeStatus.FINISHED)
    assert episode_reward(episode, run.spec.environments["a"].reward) == 0.25
    discounted = run_of(folder, "environments:\n  a: {target: x/y, reward: {reduction: {discounted: 0.5}}}\n")
    assert episode_reward(episode, discounted.spec.environments["a"].reward) == pytest.approx(0.25 + 0.5)


def test_offline_replaces_environments_by_replicas_and_needs_no_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    text = (
        "environments:\n  a: {preset: seta, api_key: '${NO_SUCH_KEY}', num_tasks: 64}\n  b: x/y\n"
        "grpo: {max_steps: 100, num_generations: 8}\n"
        "offline:\n  environments: {a: {num_tasks: 2}, b: null}\n  grpo: {max_steps: 3}\n"
    )
    run = run_of(folder, text, offline=True)
    assert isinstance(run.spec.environments["a"], EnvSpec)
    assert list(run.spec.environments) == ["a"]
    assert run.grpo_config(is_to_train=False).max_steps == 3
    with run.mixture() as spec:
        assert len(spec.task_dataset) == 2


def test_offline_says_which_environment_has_no_replica(folder: Path) -> None:
    said = refused(folder, "environments:\n  a: {preset: seta}\n  b: x/y\n", offline=True)
    assert "line 3" in said
    assert "no preset" in said


@pytest.mark.parametrize("section", ["[1]", "5", "abc"])
def test_a_section_offline_that_is_no_mapping_is_refused(folder: Path, section: str) -> None:
    said = refused(folder, f"environments:\n  a: {{preset: seta}}\noffline: {section}\n", offline=True)
    assert "line 3: offline is of type" in said


def test_a_preset_that_is_no_name_is_refused_offline_too(folder: Path) -> None:
    assert "there is no preset ['seta']" in refused(folder, "environments:\n  a: {preset: [seta]}\n", offline=True)


def test_null_in_offline_takes_away_what_is_not_there(folder: Path) -> None:
    text = "environments:\n  a: {preset: seta}\noffline: {trainer: {renamed: null, balance: tokens}}\n"
    assert run_of(folder, text, offline=True).spec.trainer.balance == "tokens"


@pytest.mark.parametrize("section", ["grpo", "model", "trainer", "evaluation", "offline", "reward_funcs", "curriculum"])
def test_a_section_with_nothing_in_it_is_as_one_left_out(folder: Path, section: str) -> None:
    without = "environments:\n  a: x/y\n"
    assert run_of(folder, f"{without}{section}:\n").spec == run_of(folder, without).spec


@pytest.mark.parametrize(
    "text",
    [
        "environments:\n  a: {target: x/y, secrets: {token: [$SWE_TOKEN, 5]}}\n",
        "environments:\n  a: {target: x/y, secrets: {token: [$SWE_TOKEN, {x: t-of-swe}]}}\n",
        "environments:\n  a: {target: x/y, secrets: t-of-swe}\n",
        "environments:\n  a: {target: x/y, env_overrides: t-of-swe}\n",
        "environments:\n  - {target: x/y, api_key: t-of-swe}\n",
        "environments:\n  a: x/y\nevaluation:\n  - api_key: t-of-swe\n",
        "environments:\n  a: x/y\ngrpo:\n  - hub_token: t-of-swe\n",
    ],
)
def test_a_secret_in_the_wrong_form_is_not_shown(folder: Path, text: str) -> None:
    said = refused(folder, text)
    assert "line " in said
    assert "t-of-swe" not in said


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def __getattr__(name):\n    raise RuntimeError(name)\n", "has no 'reward'"),
    ],
)
def test_a_module_that_cannot_be_used_is_said_whatever_it_raises(folder: Path, source: str, message: str) -> None:
    (folder / "odd_rewards.py").write_text(source, encoding="utf-8")
    said = refused(folder, "environments:\n  a: x/y\nreward_funcs: [odd_rewards:reward]\n")
    sys.modules.pop("odd_rewards", None)
    assert "line 3" in said
    assert message in said


def test_a_module_that_hides_behind_another_of_its_name_is_said_with_the_others_file(folder: Path) -> None:
    (folder / "json.py").write_text("def reward(**_):\n    return []\n", encoding="utf-8")
    said = refused(folder, "environments:\n  a: x/y\nreward_funcs: [json:reward]\n")
    assert str(json.__file__) in said
    assert "rename your module" in said


def test_fields_of_requests_that_cannot_be_sent_are_refused(folder: Path) -> None:
    said = refused(folder, "environments:\n  a: x/y\nevaluation:\n  extra_body: {since: 2020-01-01}\n")
    assert "line 4: evaluation: extra_body cannot be sent as JSON" in said
