"""Images from `reset` and from tools in TRL's own trainer, with environments written by hand.

The second half holds what TRL refuses or loses. A test there that fails means that TRL has changed for the better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Qwen2VLImageProcessorPil

from tests.support.training import call, scripted_trainer
from tests.support.vision import IMAGE_TOKEN, TOKEN_SIDE, picture, processor, vision_trainer

Observe = Callable[[int], Any]
"""From the number of the episode to what the policy is shown."""


def blocks(*sides: int, text: str = "Look:", colour: str = "red") -> list[dict[str, Any]]:
    """Content blocks: a text and a square picture for each side, given in image tokens."""
    pictures = [picture(TOKEN_SIDE * side, TOKEN_SIDE * side, colour) for side in sides]
    return [{"type": "text", "text": text}, *({"type": "image", "image": image} for image in pictures)]


def environment(first: Observe, then: Observe) -> Any:
    """An environment class that shows `first` on reset and `then` when its tool is called."""
    numbers = itertools.count()

    class Looker:
        def reset(self, **row: Any) -> Any:
            self.number = next(numbers)
            return first(self.number)

        def look(self, at: str) -> Any:
            """Look somewhere.

            Args:
                at: Where to look.
            """
            return then(self.number)

        def get_reward(self) -> float:
            return float(self.number % 2)

    return Looker


def nothing(_: int) -> None:
    return None


def words(_: int) -> str:
    return "only words"


# Rollouts of a group that say the same have gradients that cancel.
FAREWELLS = itertools.cycle(["I see.", "I see a picture."])


def look_once(text: str, turn: int, farewells: Iterator[str] = FAREWELLS) -> str:
    return call("look", at="left") if turn < 1 else next(farewells)


def rows(number: int, environments: tuple[str, ...] = ()) -> Dataset:
    user = [{"role": "user", "content": "What is there?"}]
    names: list[dict[str, Any]] = [{"environment": name} for name in environments] or [{}]
    return Dataset.from_list([{"prompt": user, **names[i % len(names)]} for i in range(number)])


class Watched:
    """Keeps what one training step hands to the model and what comes back to the vision tower."""

    def __init__(self, output_dir: Path, factory: Any, *, policy: Any = look_once, **slots: Any) -> None:
        options = {"per_device_train_batch_size": 4, "shuffle_dataset": False} | slots.pop("options", {})
        data = rows(4, tuple(factory)) if isinstance(factory, dict) else rows(4)
        slots = {"train_dataset": data, "environment_factory": factory} | slots
        self.forwards: list[dict[str, Any]] = []
        self.vision_gradients: list[float] = []
        trainer = vision_trainer(policy, output_dir, options, **slots)
        trainer.model.register_forward_pre_hook(
            lambda _module, _args, inputs: self.forwards.append(dict(inputs)), with_kwargs=True
        )
        patches = trainer.model.model.visual.patch_embed.proj.weight
        patches.register_hook(lambda gradient: self.vision_gradients.append(float(gradient.norm())))
        trainer.train()
        self.log = trainer.state.log_history[0]

    def image_runs(self) -> list[list[int]]:
        """Per row of the one forward, the lengths of its runs of image tokens."""
        (inputs,) = self.forwards
        is_image = inputs["input_ids"] == processor().image_token_id
        return [[len(list(run)) for is_one, run in itertools.groupby(row) if is_one] for row in is_image.tolist()]


def tokens_of(grid: torch.Tensor) -> list[int]:
    return [int(one.prod()) // processor().image_processor.merge_size ** 2 for one in grid]


# What works


def test_images_from_reset_and_from_a_tool_reach_the_forward_and_are_learnt_from(tmp_path: Path) -> None:
    looker = environment(lambda n: blocks(1 + n % 2), lambda n: blocks(3, colour="blue"))
    watched = Watched(tmp_path, looker)
    (inputs,) = watched.forwards
    runs = watched.image_runs()
    assert sorted(runs) == [[1, 9], [1, 9], [4, 9], [4, 9]]
    assert list(itertools.chain(*runs)) == tokens_of(inputs["image_grid_thw"]), "rows and grids in one order"
    assert torch.equal(inputs["mm_token_type_ids"] == 1, inputs["input_ids"] == processor().image_token_id)

    shown = [
        picture(TOKEN_SIDE * side, TOKEN_SIDE * side, colour)
        for first, _ in runs
        for side, colour in ((math.isqrt(first), "red"), (3, "blue"))
    ]
    assert torch.equal(inputs["pixel_values"], processor().image_processor(images=shown)["pixel_values"])

    assert math.isfinite(watched.log["loss"])
    assert watched.vision_gradients[0] > 0.0
    assert watched.log["tools/failure_frequency"] == 0.0


def test_pictures_of_several_turns_and_of_several_calls_stay_in_order(tmp_path: Path) -> None:
    sizes = itertools.count()

    def policy(text: str, turn: int) -> str:
        return call("look", at="left") + "\n" + call("look", at="right") if turn < 4 else "I see."

    watched = Watched(tmp_path, environment(lambda n: blocks(3), lambda n: blocks(1 + next(sizes) % 2)), policy=policy)
    assert watched.image_runs() == [[9, 1, 4, 1, 4]] * 4
    assert watched.log["tools/call_frequency"] == 4.0


@pytest.mark.parametrize(
    ("first", "then", "runs"),
    [
        (nothing, lambda n: blocks(2) if n == 1 else "only words", [[], [], [], [4]]),
        (
            lambda n: blocks(1) if n < 2 else None,
            lambda n: blocks(2) if n == 0 else "only words",
            [[], [], [1], [1, 4]],
        ),
        (lambda n: blocks(1), words, [[1]] * 4),
        (nothing, words, [[]] * 4),
        (nothing, lambda n: blocks(), [[]] * 4),
    ],
    ids=["one tool result", "some of each", "only from reset", "none", "blocks of text"],
)
def test_a_batch_may_hold_images_in_some_rollouts(tmp_path: Path, first: Any, then: Any, runs: Any) -> None:
    watched = Watched(tmp_path, environment(first, then))
    assert sorted(watched.image_runs()) == runs
    assert math.isfinite(watched.log["loss"])


def test_an_environment_of_words_shares_a_batch_with_one_whose_tool_returns_images(tmp_path: Path) -> None:
    both = {"words": environment(nothing, words), "images": environment(lambda n: blocks(1), lambda n: blocks(2))}
    watched = Watched(tmp_path, both, options={"per_device_train_batch_size": 8})
    assert sorted(watched.image_runs()) == [[], [], [], [], [1, 4], [1, 4], [1, 4], [1, 4]]


def test_a_picture_too_long_for_the_completion_is_taken_back(tmp_path: Path) -> None:
    looker = environment(nothing, lambda n: blocks(4 if n % 2 else 1))
    watched = Watched(tmp_path, looker, options={"max_completion_length": 36})
    assert sorted(watched.image_runs()) == [[], [], [1], [1]]


# What TRL refuses or loses


def test_trl_refuses_a_batch_where_only_some_prompts_hold_images_and_no_tool_returns_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="only a single or a list of entries is supported"):
        Watched(tmp_path / "one", environment(lambda n: blocks(1) if n % 2 else None, words))
    both = {"words": environment(nothing, words), "images": environment(lambda n: blocks(1), words)}
    with pytest.raises(TypeError, match="only a single or a list of entries is supported"):
        Watched(tmp_path / "two", both, options={"per_device_train_batch_size": 8})


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 4}, {"steps_per_generation": 4}])
def test_trl_hands_the_model_an_empty_image_where_a_small_batch_holds_none(tmp_path: Path, options: Any) -> None:
    looker = environment(nothing, lambda n: blocks(2) if n == 0 else "only words")
    with pytest.raises(RuntimeError, match="repeats must have the same size"):
        Watched(tmp_path, looker, options={"per_device_train_batch_size": 2, **options})


@pytest.mark.parametrize(
    ("first", "then"),
    [(nothing, lambda n: f"a {IMAGE_TOKEN} b"), (lambda n: blocks(1, text=IMAGE_TOKEN), words)],
    ids=["tool", "reset"],
)
def test_trl_takes_the_image_token_in_a_text_for_an_image_and_stops(tmp_path: Path, first: Any, then: Any) -> None:
    with pytest.raises(ValueError, match=r"image_pad\|> tokens"):
        Watched(tmp_path, environment(first, then))


def test_trl_drops_every_image_of_the_batch_where_one_rollout_writes_the_image_token(tmp_path: Path) -> None:
    farewells = itertools.cycle([IMAGE_TOKEN, "I see."])
    watched = Watched(
        tmp_path, environment(nothing, lambda n: blocks(1)), policy=lambda t, n: look_once(t, n, farewells)
    )
    assert sum(map(len, watched.image_runs())) == 6
    assert "pixel_values" not in watched.forwards[0]


@pytest.mark.parametrize("image", ["url"])
def test_trl_knows_an_image_block_by_its_image_key_only(tmp_path: Path, image: str) -> None:
    with pytest.raises(KeyError, match="image"):
        Watched(tmp_path / "tool", environment(nothing, lambda n: [{"type": "image", image: "picture.png"}]))
    with pytest.raises(ValueError, match="does not match number of image placeholders"):
        Watched(tmp_path / "reset", environment(lambda n: [{"type": "image", image: "picture.png"}], words))


@pytest.mark.parametrize("result", [["a", "b"], [1, 2], [{"text": "no type"}]], ids=repr)
def test_trl_takes_any_list_from_a_tool_for_content_blocks(tmp_path: Path, result: Any) -> None:
    with pytest.raises((TypeError, KeyError)):
        Watched(tmp_path, environment(nothing, lambda n: result))


def test_trl_cannot_log_completions_where_a_tool_returns_blocks(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot mix list and non-list") as caught:
        Watched(tmp_path, environment(nothing, lambda n: blocks(1)), options={"log_completions": True})
    assert type(caught.value).__name__ == "ArrowInvalid"


def test_trl_needs_tensors_that_an_image_processor_without_torchvision_does_not_give(tmp_path: Path) -> None:
    plain = processor(Qwen2VLImageProcessorPil)
    with pytest.raises(AttributeError, match="'list' object has no attribute 'prod'"):
        Watched(tmp_path / "prompt", environment(lambda n: blocks(1), words), processing_class=plain)
    watched = Watched(tmp_path / "both", environment(lambda n: blocks(1), lambda n: blocks(2)), processing_class=plain)
    assert watched.image_runs() == [[1, 4]] * 4, "an image from a tool is asked for as a tensor"


def test_a_text_models_template_loses_blocks_silently_and_images_stop_it(tmp_path: Path) -> None:
    texts: list[str] = []

    def policy(text: str, turn: int) -> str:
        texts.append(text)
        return call("look", at="left") if turn < 1 else "done"

    def play(name: str, factory: Any) -> None:
        options = {"per_device_train_batch_size": 4}
        scripted_trainer(policy, tmp_path / name, options, train_dataset=rows(4), environment_factory=factory).train()

    play("text", environment(lambda n: blocks(text="Mind the gap."), lambda n: blocks(text="Seen.")))
    assert all("Mind the gap." not in text and "What is there?" not in text and "Seen." not in text for text in texts)
    with pytest.raises(KeyError, match="pixel_values"):
        play("image", environment(lambda n: blocks(1), words))
