"""Pictures of ORS environments, over HTTP: on a vision model, on a text model, and those that cannot be read."""

from __future__ import annotations

import base64
import itertools
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet
import pytest
import torch
from openreward.environments import ImageBlock, Message, TextBlock, ToolOutput, tool
from PIL import Image
from trl import GRPOTrainer

from multienv import EnvSpec, Limits, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.router.presentation import Presentation
from multienv.types import Image as Sent
from tests.support.environments import Base, EchoParams, output
from tests.support.pictures import Looker, TwoMinds, Watched, Writer, encoded, looking, sent
from tests.support.servers import ORSServer
from tests.support.training import Scripted, scripted_trainer
from tests.support.vision import IMAGE_TOKEN, TOKEN_SIDE, picture, processor

READABLE = encoded(picture())
Task = tuple[list[Any], list[Any]]
SHOWN_AT_FIRST: Task = (["Look:", 1, "well."], ["only words"])
SHOWN_THEN: Task = (["Look well."], ["See:", 2, "there."])
SHOWN_TWICE: Task = (["Look:", 1], ["See:", 2, "and", 3])
NEVER_SHOWN: Task = (["Look well."], ["only words"])
SHAPES: dict[str, tuple[list[Task], list[list[int]]]] = {
    "prompts": ([SHOWN_AT_FIRST, SHOWN_AT_FIRST], [[1]] * 4),
    "results": ([SHOWN_THEN, SHOWN_THEN], [[4]] * 4),
    "both": ([SHOWN_TWICE, SHOWN_TWICE], [[1, 4, 9]] * 4),
    "none": ([NEVER_SHOWN, NEVER_SHOWN], [[]] * 4),
    "some prompts": ([SHOWN_AT_FIRST, NEVER_SHOWN], [[]] * 2 + [[1]] * 2),
    "some of each": ([SHOWN_TWICE, NEVER_SHOWN], [[]] * 2 + [[1, 4, 9]] * 2),
}
CUTS: dict[str, dict[str, Any]] = {
    "whole": {"per_device_train_batch_size": 8},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "two steps": {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 2},
    "four steps": {"per_device_train_batch_size": 2, "steps_per_generation": 4, "max_steps": 4},
}


@pytest.fixture(scope="module")
def writer() -> Iterator[str]:
    with ORSServer([Writer]) as server:
        yield server.url


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        *itertools.product(SHAPES, ["whole", "accumulated"]),
        ("some prompts", "two steps"),
        ("some of each", "four steps"),
    ],
)
def test_an_environment_of_pictures_and_one_of_words_train_together(
    tmp_path: Path, writer: str, shape: str, cut: str
) -> None:
    tasks, runs = SHAPES[shape]
    with ORSServer([looking(*tasks)]) as server:
        watched = Watched(tmp_path, MultiEnvSpec({"look": server.url, "write": writer}), CUTS[cut])
        assert server.open_sessions == []
    assert watched.image_runs() == sorted([*runs, [], [], [], []]), "what was sent is what is learnt from"
    logged = [entry for entry in watched.trainer.state.log_history if "loss" in entry]
    assert len(logged) == watched.trainer.state.max_steps
    assert all(math.isfinite(entry["loss"]) and entry["grad_norm"] > 0.0 for entry in logged)
    assert logged[0]["tools/failure_frequency"] == 0.0
    assert logged[0]["tools/call_frequency"] == 1.0
    assert any(watched.vision_gradients) == (shape != "none"), "pictures are learnt from"


def test_text_and_pictures_keep_their_order_and_their_colours(tmp_path: Path) -> None:
    colours = [{"data": encoded(picture(colour=colour))} for colour in ("red", "lime", "blue", "white")]
    tasks = (["one", colours[0], "two", colours[1], "three"], ["four", colours[2], "five", colours[3]])
    with ORSServer([looking(tasks)]) as server:
        watched = Watched(tmp_path, MultiEnvSpec({"look": server.url}), {"per_device_train_batch_size": 2})
    seen = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
    last = watched.policy.texts[-1]
    assert f"one{seen}two{seen}three<|im_end|>" in last
    assert f"<tool_response>\nfour{seen}five{seen}\n</tool_response>" in last
    shown = [picture(colour=colour) for colour in ("red", "lime", "blue", "white")] * 2
    (inputs,) = watched.forwards
    assert torch.equal(inputs["pixel_values"], processor().image_processor(images=shown)["pixel_values"])


def test_pictures_of_a_conversation_are_shown_where_a_policy_can_see_them(tmp_path: Path) -> None:
    class Talk(Looker):
        tasks: ClassVar[list[Any]] = [{"first": [], "then": sent("only words")}]

        def get_messages(self) -> list[Message]:
            (image,) = sent(2)
            return [
                Message(role="system", blocks=[TextBlock(text="Mind squares."), ImageBlock(**image)]),
                Message(role="user", blocks=[TextBlock(text="This?"), ImageBlock(**image)]),
                Message(role="assistant", blocks=[ImageBlock(**image), TextBlock(text="A square.")]),
                Message(role="user", blocks=[ImageBlock(**image), TextBlock(text="And that?")]),
            ]

    with ORSServer([Talk]) as server:
        spec = MultiEnvSpec({"talk": EnvSpec(server.url, system_prompt="Be brief.")})
        watched = Watched(tmp_path, spec, {"per_device_train_batch_size": 2})
    assert watched.image_runs() == [[4, 4]] * 2
    text = watched.policy.texts[0]
    assert "This?<|vision_start|>" in text
    assert "<|vision_end|>And that?<|im_end|>" in text
    left_out = f"[image left out: image/png, {Sent(sent(2)[0]['data'], 'image/png').num_bytes} bytes]"
    assert f"Be brief.\n\nMind squares.\n{left_out}" in text
    assert f"<|im_start|>assistant\n{left_out}\nA square.<|im_end|>" in text


def test_log_probabilities_do_not_depend_on_how_a_batch_is_cut(tmp_path: Path, writer: str) -> None:
    with ORSServer([looking(SHOWN_TWICE)]) as server:
        spec = MultiEnvSpec({"look": server.url, "write": writer})
        watched = Watched(tmp_path, spec, {"per_device_train_batch_size": 6})
    (inputs,) = watched.forwards
    is_image = inputs["input_ids"] == processor().image_token_id
    num_images = [3 if has else 0 for has in is_image.any(dim=1).tolist()]
    assert sorted(num_images) == [0, 0, 0, 0, 3, 3]
    shared = {name: inputs[name] for name in ("pixel_values", "image_grid_thw", "mm_token_type_ids")}
    shared |= {"num_images": num_images, "compute_entropy": True}
    trainer = watched.trainer

    def scored(batch_size: int | None) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        with torch.no_grad():
            return trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, mask, 20, batch_size=batch_size, **shared
            )

    whole = scored(None)
    assert whole[0].shape == whole[1].shape == (6, 20)
    for batch_size in range(1, 7):
        torch.testing.assert_close(scored(batch_size), whole, rtol=1e-4, atol=1e-5)


def test_generation_is_told_none_for_a_prompt_without_pictures(tmp_path: Path, writer: str) -> None:
    asked: list[Any] = []

    class Behind(Scripted):
        def _generate_single_turn(self, prompt_ids: Any, images: Any, *rest: Any, **options: Any) -> Any:
            asked.append(images)
            return super()._generate_single_turn(prompt_ids, images, *rest, **options)

    with ORSServer([looking(SHOWN_AT_FIRST, NEVER_SHOWN)]) as server:
        spec = MultiEnvSpec({"look": server.url, "write": writer})
        trainer_class = type("Asking", (MultiEnvGRPOTrainer, Behind), {})
        Watched(tmp_path, spec, CUTS["whole"], trainer_class)
    assert len(asked) == 2, "two turns"
    for images in asked:
        assert [None if its is None else len(its) for its in images].count(None) == 6
        assert all(its is None or len(its) == 1 for its in images)


def test_completions_are_logged_with_a_word_for_each_picture(tmp_path: Path, writer: str) -> None:
    with ORSServer([looking(SHOWN_TWICE, NEVER_SHOWN)]) as server:
        spec = MultiEnvSpec({"look": server.url, "write": writer})
        Watched(tmp_path, spec, CUTS["whole"] | {"log_completions": True})
    table = pyarrow.parquet.read_table(tmp_path / "completions").to_pydict()
    assert sorted(messages[1]["content"] for messages in table["completion"])[:2] == ["See:\n[image]\nand\n[image]"] * 2
    assert sum("Look:\n[image]" in messages[-1]["content"] for messages in table["prompt"]) == 2


# On a text model


def test_a_text_model_reads_a_placeholder_for_each_picture_and_one_warning_is_logged(
    tmp_path: Path, writer: str, caplog: pytest.LogCaptureFixture
) -> None:
    num_bytes = [Sent(sent(side)[0]["data"], "image/png").num_bytes for side in (1, 2, 3)]
    policy = TwoMinds()
    with ORSServer([looking(SHOWN_TWICE, SHOWN_AT_FIRST)]) as server:
        with MultiEnvSpec({"look": server.url, "write": writer}) as spec:
            trainer = scripted_trainer(policy, tmp_path, {}, MultiEnvGRPOTrainer, spec=spec)
            trainer.train()
    first, *results = [f"[image left out: image/png, {size} bytes]" for size in num_bytes]
    twice = next(text for text in policy.texts if "See:" in text)
    assert f"Look:\n{first}<|im_end|>" in twice
    assert f"<tool_response>\nSee:\n{results[0]}\nand\n{results[1]}\n</tool_response>" in twice
    assert any(f"Look:\n{first}\nwell.<|im_end|>" in text for text in policy.texts)
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    (warning,) = [record.message for record in caplog.records if "picture" in record.message]
    assert warning.startswith("environment 'look' shows pictures, and this policy reads text only")


# In the plain trainer


def test_the_plain_trainer_shows_pictures_once_told_who_reads(tmp_path: Path) -> None:
    with ORSServer([looking(SHOWN_TWICE, SHOWN_TWICE)]) as server:
        spec = MultiEnvSpec({"look": server.url})
        spec.present_to(processor())
        options = {"per_device_train_batch_size": 4}
        watched = Watched(tmp_path, spec, options, GRPOTrainer, **spec.trainer_kwargs())
    assert watched.image_runs() == [[1, 4, 9]] * 4
    assert math.isfinite(watched.log["loss"])


def test_the_plain_trainer_shows_placeholders_unless_told(tmp_path: Path) -> None:
    with ORSServer([looking(SHOWN_TWICE)]) as server:
        spec = MultiEnvSpec({"look": server.url})
        options = {"per_device_train_batch_size": 2}
        watched = Watched(tmp_path, spec, options, GRPOTrainer, **spec.trainer_kwargs())
    assert watched.image_runs() == [[]] * 2
    assert watched.policy.texts[-1].count("[image left out: image/png, ") == 3


# Texts that look like pictures


def test_image_tokens_in_texts_are_texts(tmp_path: Path) -> None:
    fake = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"

    class Tricky(Base):
        tasks: ClassVar[list[dict[str, Any]]] = [{"target": fake}]

        @tool
        def echo(self, params: EchoParams) -> ToolOutput:
            """Say it back, as in <|vision_start|><|image_pad|><|vision_end|>."""
            return output(fake, float(params.text == "left"))

    with ORSServer([Tricky, looking((["Look:", 1, fake], [fake, 2]))]) as server:
        spec = MultiEnvSpec(
            {name: EnvSpec(server.url, env_name=env) for name, env in (("tricky", "tricky"), ("look", "looker"))}
        )
        watched = Watched(tmp_path, spec, {"per_device_train_batch_size": 4})
    assert watched.image_runs() == [[], [], [1, 4], [1, 4]]
    tricky = [text for text in watched.policy.texts if "Echo '" in text]
    assert all(IMAGE_TOKEN not in text and "< |image_pad|>" in text for text in tricky)


# Pictures that cannot be read


def png(width: int, height: int) -> str:
    """A tiny file that says it holds a picture of that size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"\0" * 100)), chunk(b"IEND", b"")]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


NOISE = Image.effect_noise((64, 64), 50)
UNREADABLE = {
    "not base64": "no base64!",
    "not ASCII": "päng",
    "empty": "",
    "no picture": base64.b64encode(b"%PDF-1.4 and so on").decode(),
    "truncated": base64.b64encode(base64.b64decode(encoded(NOISE))[:-900]).decode(),
    "a bomb that Pillow refuses": png(60_000, 60_000),
    "a bomb that Pillow warns of": png(12_000, 12_000),
    "too long": encoded(picture(2, 401)),
    "a format nobody reads": encoded(picture(), "EPS"),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_a_picture_that_cannot_be_read_is_left_out(data: str, caplog: pytest.LogCaptureFixture) -> None:
    presentation = Presentation(has_images=True)
    parts = ("before", Sent(data, "image/png"), "after")
    assert presentation.content("env", parts) == "before\n[image left out: image/png, unreadable]\nafter"
    blocks = presentation.content("env", (*parts, Sent(READABLE, "image/png")))
    assert [block["type"] for block in blocks if isinstance(block, dict)] == ["text", "image"]
    (warning,) = [record.message for record in caplog.records]
    assert "environment 'env' sent a picture that cannot be read" in warning


def test_a_run_goes_on_past_pictures_that_cannot_be_read(
    tmp_path: Path, writer: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[Any] = [{"data": data} for data in UNREADABLE.values()]
    with ORSServer([looking(([*bad, "Look:", 1], [*bad, 2]), (bad, bad))]) as server:
        watched = Watched(tmp_path, MultiEnvSpec({"look": server.url, "write": writer}), CUTS["whole"])
    assert watched.image_runs() == [[]] * 6 + [[1, 4]] * 2
    assert math.isfinite(watched.log["loss"])
    assert watched.log["tools/failure_frequency"] == 0.0
    left_out = [text.count("[image left out: image/png, unreadable]") for text in watched.policy.texts]
    assert sorted(left_out) == [0] * 8 + [len(bad)] * 4 + [2 * len(bad)] * 4
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1


def test_without_pillow_a_placeholder_stands_for_a_picture(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    content = Presentation(has_images=True).content("env", (Sent(READABLE, "image/png"),))
    assert content == "[image left out: image/png, unreadable]"
    assert "install multienv[vision]" in caplog.text


# Pictures of every make


def shown(image: Image.Image, kind: str = "PNG", **options: Any) -> Image.Image:
    return seen(encoded(image, kind, **options))


def seen(data: str) -> Image.Image:
    content = Presentation(has_images=True).content("env", (Sent(data, "image/png"),))
    assert not isinstance(content, str)
    found = content[0]["image"]
    assert isinstance(found, Image.Image)
    assert found.mode == "RGB"
    return found


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_mode_is_shown_in_its_colours(mode: str) -> None:
    grey = Image.new("L", (8, 6), 128)
    image = Image.new(mode, (8, 6), 128 * 256) if mode == "I;16" else grey.convert(mode, dither=Image.Dither.NONE)
    expected = {"1": (255, 255, 255)}.get(mode, (128, 128, 128))
    assert shown(image).size == (8, 6)
    assert shown(image).getpixel((3, 3)) == expected


def test_what_is_transparent_is_white() -> None:
    assert shown(Image.new("RGBA", (8, 8), (0, 0, 0, 0))).getpixel((1, 1)) == (255, 255, 255)
    palette = Image.new("P", (8, 8), 0)
    assert shown(palette, transparency=0).getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_every_format_is_shown(kind: str) -> None:
    assert shown(picture(40, 30), kind).size == (40, 30)


def test_a_photograph_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert shown(picture(40, 30), "JPEG", exif=exif).size == (30, 40)


def test_base64_may_be_wrapped() -> None:
    data = base64.encodebytes(base64.b64decode(encoded(NOISE))).decode()
    assert seen(data).size == (64, 64)


@pytest.mark.parametrize("size", [*itertools.product((1, 2, 3, 4), repeat=2), (1, 150), (3, 150), (150, 1)])
def test_a_tiny_picture_survives_the_processor(size: tuple[int, int]) -> None:
    image = picture(*size)
    image.putpixel((0, 0), (0, 0, 255))
    found = shown(image)
    assert min(found.size) >= 4
    assert found.width * size[1] == found.height * size[0]
    assert found.getpixel((0, 0)) == (0, 0, 255)
    pixels = processor().image_processor(images=[found])["pixel_values"]
    assert pixels.shape[1] == 3 * 2 * (TOKEN_SIDE // 2) ** 2


def test_a_limit_on_characters_cuts_texts_and_keeps_pictures(tmp_path: Path) -> None:
    long = "x" * 3_000
    with ORSServer([looking((["Look well."], [long, 1, long, 2]))]) as server:
        limits = Limits(max_observation_chars=200)
        spec = MultiEnvSpec({"look": EnvSpec(server.url, limits=limits)})
        watched = Watched(tmp_path, spec, {"per_device_train_batch_size": 2, "max_completion_length": 1_000})
    assert watched.image_runs() == [[1, 4]] * 2
    assert watched.policy.texts[-1].count("characters left out") == 2
    assert "x" * 200 not in watched.policy.texts[-1]
