"""Decides what an ORS environment that shows pictures looks like in tests, and what a training run on it is seen to do.

Flow: a task spells out its blocks, `Looker` sends them over HTTP, `Watched` trains and keeps what the model was given.
"""

from __future__ import annotations

import base64
import io
import itertools
from pathlib import Path
from typing import Any, ClassVar

import torch
from openreward.environments import Environment, ImageBlock, JSONObject, Split, TextBlock, ToolOutput, tool
from PIL import Image
from pydantic import BaseModel
from trl import GRPOTrainer

from multienv import MultiEnvGRPOTrainer, MultiEnvSpec
from tests.support.environments import Base, EchoParams, output
from tests.support.training import call
from tests.support.vision import TOKEN_SIDE, picture, processor, vision_trainer


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> str:
    """A picture as the wire carries it."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def sent(*blocks: int | str | dict[str, str]) -> list[dict[str, str]]:
    """Blocks of a task: texts, red squares by their side in image tokens, and what an image block holds itself."""
    made: list[dict[str, str]] = []
    for block in blocks:
        if isinstance(block, str):
            made.append({"text": block})
        elif isinstance(block, int):
            made.append({"mimeType": "image/png", "data": encoded(picture(TOKEN_SIDE * block, TOKEN_SIDE * block))})
        else:
            made.append({"mimeType": "image/png"} | block)
    return made


class Place(BaseModel):
    at: str = "left"


class Looker(Environment):
    """Shows `first` as its prompt and `then` when looked at; looking left is right."""

    tasks: ClassVar[list[JSONObject]] = []

    @classmethod
    def list_splits(cls) -> list[Split | str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return list(cls.tasks)

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        return as_blocks(self.task_spec["first"])

    @tool
    def look(self, params: Place) -> ToolOutput:
        """Look somewhere."""
        return ToolOutput(blocks=as_blocks(self.task_spec["then"]), reward=float(params.at == "left"), finished=False)


def as_blocks(made: list[dict[str, str]]) -> list[TextBlock | ImageBlock]:
    return [TextBlock(**block) if "text" in block else ImageBlock(**block) for block in made]


class Writer(Base):
    """Writes only."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"target": "one"}, {"target": "two"}]

    @tool
    def echo(self, params: EchoParams) -> ToolOutput:
        """Say it back."""
        return output(params.text, float(params.text == "left"))


def looking(*tasks: tuple[list[Any], list[Any]]) -> type[Looker]:
    """A class of its own, for the SDK keeps an answer per class."""
    made = [{"first": sent(*first), "then": sent(*then)} for first, then in tasks]
    return type("Looker", (Looker,), {"tasks": made})


class TwoMinds:
    """A policy that looks left and right by turns, so that the rollouts of a group are not all alike.

    Attributes:
        texts: All it was asked to go on from.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._sides = itertools.cycle(["left", "right"])

    def __call__(self, text: str, turn: int) -> str:
        self.texts.append(text)
        if turn:
            return "I see."
        side = next(self._sides)
        return call("echo", text=side) if "Echo '" in text else call("look", at=side)


class Watched:
    """A training run of the vision model; keeps what the model was given, and what came back to its eyes.

    Attributes:
        forwards: The arguments of each forward pass that is learnt from.
        log: What was logged first.
        policy: What was asked of the policy.
    """

    def __init__(
        self, output_dir: Path, spec: MultiEnvSpec, options: Any = None, trainer_class: Any = None, **slots: Any
    ) -> None:
        self.policy = TwoMinds()
        self.forwards: list[dict[str, Any]] = []
        self.vision_gradients: list[float] = []
        options = {"shuffle_dataset": False, "max_tool_calling_iterations": 2} | (options or {})
        with spec:
            slots = slots or {"spec": spec}
            cls = None if trainer_class is GRPOTrainer else trainer_class or MultiEnvGRPOTrainer
            trainer = vision_trainer(self.policy, output_dir, options, cls, **slots)
            trainer.model.register_forward_pre_hook(self._keep, with_kwargs=True)
            trainer.model.model.visual.patch_embed.proj.weight.register_hook(
                lambda gradient: self.vision_gradients.append(float(gradient.norm()))
            )
            trainer.train()
        self.trainer = trainer
        self.log = trainer.state.log_history[0]

    def _keep(self, _module: Any, _args: Any, inputs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self.forwards.append(dict(inputs))

    def image_runs(self) -> list[list[int]]:
        """Per rollout, the lengths of its runs of image tokens; sorted."""
        runs = []
        for inputs in self.forwards:
            is_image = inputs["input_ids"] == processor().image_token_id
            assert int(is_image.sum()) == self._num_tokens(inputs), "as many image tokens as there are in pixel_values"
            runs += [[len(list(run)) for is_one, run in itertools.groupby(row) if is_one] for row in is_image.tolist()]
        return sorted(runs)

    @staticmethod
    def _num_tokens(inputs: dict[str, Any]) -> int:
        if "pixel_values" not in inputs:
            return 0
        assert len(inputs["pixel_values"]) == int(inputs["image_grid_thw"].prod(-1).sum()) > 0
        return len(inputs["pixel_values"]) // int(processor().image_processor.merge_size ** 2)
