"""The policy of offline runs, warmed up for a few seconds; what it learns in a whole run is told in the docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec
from multienv.errors import SpecError
from multienv.offline.habits import MAX_CALLS, Apprentice
from multienv.offline.policy import RECIPE, offline_policy, offline_tokenizer
from multienv.reporting import read_episodes
from multienv.specs.presets import PRESETS
from multienv.testing import replica
from multienv.testing.replicas.assignments import make_task_spec
from multienv.tiny.rehearsal import Scene, rehearse
from multienv.tiny.surroundings import on_one_thread, quietly
from multienv.tiny.warmup import Policy
from multienv.training import MultiEnvGRPOTrainer

NAMES = {"shell": "seta", "terminals": "endless-terminals", "swe": "swe-rebench-v2"}
FEW_STEPS = dataclasses.replace(RECIPE, num_steps=60)
NUM_GENERATIONS = 16


def mixture(num_tasks: int = 2, **options: Any) -> MultiEnvSpec:
    return MultiEnvSpec(
        {name: EnvSpec(replica(preset), num_tasks=num_tasks) for name, preset in NAMES.items()}, **options
    )


@pytest.fixture(scope="module")
def spec() -> Iterator[MultiEnvSpec]:
    with mixture() as made:
        yield made


@pytest.fixture(scope="module")
def progress() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def policy(spec: MultiEnvSpec, cache_dir: Path, progress: list[tuple[str, int, int]]) -> Policy:
    return offline_policy(
        spec, NAMES, cache_dir=cache_dir, recipe=FEW_STEPS, on_progress=lambda *told: progress.append(told)
    )


def test_a_policy_of_a_few_seconds_calls_the_tools_as_they_want_to_be_called(
    spec: MultiEnvSpec, policy: Policy, tmp_path: Path
) -> None:
    from trl import GRPOConfig

    policy.save(tmp_path / "policy")
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=len(NAMES) * NUM_GENERATIONS,
        num_generations=NUM_GENERATIONS,
        max_completion_length=128,
        max_tool_calling_iterations=MAX_CALLS,
        chat_template_kwargs={"enable_thinking": False},
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    with on_one_thread(), quietly():
        MultiEnvGRPOTrainer(model=str(tmp_path / "policy"), args=config, spec=spec).train()
    played = read_episodes(tmp_path)
    for name in NAMES:
        statuses = [episode.status for episode in played if episode.environment == name]
        assert len(statuses) == NUM_GENERATIONS
        assert statuses.count(EpisodeStatus.FINISHED) > 0
        assert statuses.count(EpisodeStatus.UNFINISHED) > 0
    steps = [step for episode in played for step in episode.steps]
    assert len(steps) > len(played) / 2
    assert sum(step.refused for step in steps) < len(steps) / 4


def test_progress_is_told_to_the_end(policy: Policy, progress: list[tuple[str, int, int]]) -> None:
    num_dialogues = progress[0][2]
    assert progress == [
        *(("rehearsing", num_done, num_dialogues) for num_done in range(1, num_dialogues + 1)),
        *(("warming up", num_done, 60) for num_done in range(1, 61)),
    ]


def test_a_policy_that_was_kept_is_not_warmed_up_again(spec: MultiEnvSpec, policy: Policy, cache_dir: Path) -> None:
    told: set[str] = set()
    again = offline_policy(
        spec, NAMES, cache_dir=cache_dir, recipe=FEW_STEPS, on_progress=lambda what, *_: told.add(what)
    )
    assert told == {"rehearsing"}
    assert again.tokenizer.get_vocab() == policy.tokenizer.get_vocab()


def test_a_prompt_is_short_in_the_tokens_of_the_policy(spec: MultiEnvSpec, policy: Policy) -> None:
    tokenizer = offline_tokenizer(spec, NAMES)
    assert tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    for row in spec.task_dataset:
        adapter = spec.environment_factory[row["environment"]]()
        messages = [{"role": "user", "content": adapter.reset(**row)}]
        tools = adapter._offered().functions
        prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert len(prompt) > 2_900
        assert len(tokenizer(prompt)["input_ids"]) < 100
        adapter._close()


def test_a_rehearsal_needs_one_session_at_a_time_and_leaves_none_open() -> None:
    lazy = Apprentice("seta", stop=0.9)
    with MultiEnvSpec({"only": EnvSpec(replica("seta"), num_tasks=2, limits={"max_sessions": 1})}) as spec:
        for _ in range(2):
            adapters = {"only": spec.environment_factory["only"]()}
            dialogues = rehearse(
                spec.task_dataset, adapters, {"only": lazy}, num_dialogues_per_task=3, max_calls=2, rng=Random(0)
            )
            assert len(list(dialogues)) == 6


@pytest.mark.parametrize("preset", PRESETS)
def test_a_careful_apprentice_solves_every_task(preset: str) -> None:
    careful = Apprentice(preset, look=1.0, stop=0.0, haste=0.0, slip=0.0)
    with MultiEnvSpec({"only": EnvSpec(replica(preset), num_tasks=12)}) as spec:
        adapter = spec.environment_factory["only"]()
        rewards = []
        for row in spec.task_dataset:
            list(
                rehearse(
                    [row], {"only": adapter}, {"only": careful}, num_dialogues_per_task=1, max_calls=6, rng=Random(0)
                )
            )
            rewards.append(adapter.reward)
    assert rewards == pytest.approx([1.0] * 12)


@pytest.mark.parametrize("preset", PRESETS)
@given(seed=st.integers(0, 10_000), index=st.integers(0, 40))
def test_an_apprentice_only_calls_published_tools_with_all_that_they_require(
    preset: str, seed: int, index: int
) -> None:
    tools = replica(preset).list_tools().tools
    required = {tool.name: set((tool.input_schema or {}).get("required", ())) for tool in tools}
    rng, scene, apprentice = Random(seed), Scene(make_task_spec(preset, index)), Apprentice(preset)
    while len(scene.calls) < MAX_CALLS and (call := apprentice(rng, scene)) is not None:
        assert required[call.tool] <= set(call.arguments)
        scene = dataclasses.replace(scene, calls=[*scene.calls, call])


@pytest.mark.parametrize(
    ("presets", "complaint"),
    [
        ({}, "leaves nothing to rehearse"),
        ({"shel": "seta"}, "no environment 'shel' (did you mean 'shell'?); the mixture has: shell, terminals, swe"),
        ({"shell": "setta"}, "'setta' (did you mean 'seta'?)"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(spec: MultiEnvSpec, presets: dict[str, str], complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        offline_policy(spec, presets)
    assert complaint in str(caught.value)
