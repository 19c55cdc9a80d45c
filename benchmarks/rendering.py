"""What exact schemas cost: rendering and tokenising prompts with published tools, and with TRL's methods for them.

Three environments with the tools that catalogue environments publish, their sessions open. Only the rendering of the
batches is timed: `_tokenize_prompts`, with all that `MultiEnvGRPOTrainer` adds to it, in processor time, for it waits
for nothing. The trainers take turns at every batch. The tokenizer cuts words and has Qwen3's chat template.

Run as `python benchmarks/rendering.py`.
"""

from __future__ import annotations

import gc
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Final

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

from arguments import Arguments
from openreward.environments import Environment, JSONObject, TextBlock
from openreward.environments.types import ListToolsOutput, ToolSpec
from report import Report, Row
from tokenizers.pre_tokenizers import ByteLevel
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.openreward.environment import _RolloutEnvironment

from multienv import EnvSpec, MultiEnvGRPOTrainer, MultiEnvSpec
from multienv.tiny.model import build_model, build_tokenizer
from multienv.training.offers import withdraw

FIXTURES: Final = Path(__file__).parents[1] / "tests" / "fixtures"
ENVIRONMENTS: Final = ("seta", "endlessterminals", "swe_rebench_v2")
TRL_ADAPTER: Final = "GRPOTrainer, TRL's adapter"
METHODS: Final = "GRPOTrainer, methods"
EXACT: Final = "MultiEnvGRPOTrainer, exact schemas"


class CatalogueEnvironment(Environment):  # type: ignore[misc]  # the SDK's classes count as Any
    """An environment that publishes the tools of a catalogue environment, and is never asked to run one."""

    tools: ClassVar[Sequence[ToolSpec]]
    num_listed: ClassVar[int]

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks; each is about as long as a short exercise."""
        return [{"text": f"{split} {index}. " + "Do the exercise. " * 50} for index in range(cls.num_listed)]

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        """List the tools as published."""
        return ListToolsOutput(tools=list(cls.tools))

    def get_prompt(self) -> list[TextBlock]:
        """Show the exercise."""
        return [TextBlock(text=str(self.task_spec["text"]))]


@dataclass(frozen=True, slots=True)
class Times:
    """What was measured, in seconds; the rendered prompts have as many tokens in every repeat.

    Attributes:
        rendering_s: Of each trainer, by repeat: processor time of rendering all prompts.
        num_tokens: Of each trainer: tokens of all prompts.
        toolbox_s: Finding a rollout's toolbox, as each reset does.
        check_s: Checking the arguments of one call.
    """

    rendering_s: Mapping[str, Sequence[float]]
    num_tokens: Mapping[str, int]
    toolbox_s: float
    check_s: float


def published_tools() -> dict[str, list[JSONObject]]:
    """Read the tools that each environment publishes."""
    return {name: json.loads((FIXTURES / f"{name}.json").read_text())["tools"] for name in ENVIRONMENTS}


def environment_class(name: str, tools: Sequence[JSONObject], num_tasks: int) -> type[CatalogueEnvironment]:
    members = {"tools": [ToolSpec.model_validate(tool) for tool in tools], "num_listed": num_tasks}
    return type(name, (CatalogueEnvironment,), members)


def trl_factories() -> dict[str, Callable[[], Any]]:
    """Make TRL's own adapter for each environment: its tools bound as TRL binds them, and no session."""
    return {
        name: partial(
            # A class for each, for TRL binds the tools to the class.
            type(name, (_RolloutEnvironment,), {}),
            base_url="http://127.0.0.1",
            _client=object(),
            _env=object(),
            _tool_specs=tools,
        )
        for name, tools in published_tools().items()
    }


def build_word_tokenizer(texts: Sequence[str]) -> Any:
    """Fit a tokenizer that cuts texts into words; the demo's cuts lines, which makes a recurring line one token."""
    tokenizer = build_tokenizer(re.findall(r" ?\w+|\s+|[^\w\s]+", "\n".join(texts)), vocab_size=4_000)
    tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.model_max_length = 8_192
    return tokenizer


@contextmanager
def trainers(num_tasks: int) -> Iterator[dict[str, Any]]:
    """Make the trainers, each with a mixture of its own."""
    published = published_tools()
    tokenizer = build_word_tokenizer([json.dumps(published), "Do the exercise. " * 3])
    model = build_model(tokenizer, seed=0, hidden_size=16)
    classes = {name: environment_class(name, tools, num_tasks) for name, tools in published.items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        MultiEnvSpec({name: EnvSpec(of) for name, of in classes.items()}) as methods,
        MultiEnvSpec({name: EnvSpec(of) for name, of in classes.items()}) as exact,
    ):
        shared = {
            "model": model,
            "processing_class": tokenizer,
            "args": GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                activation_checkpointing=False,
                report_to="none",
                chat_template_kwargs={"enable_thinking": False},
            ),
        }
        slots = methods.trainer_kwargs()
        yield {
            TRL_ADAPTER: GRPOTrainer(**shared, **slots | {"environment_factory": trl_factories()}),
            METHODS: GRPOTrainer(**shared, **slots),
            EXACT: MultiEnvGRPOTrainer(**shared, spec=exact),
        }


class Lane:
    """One trainer with the environments of a batch, to be asked for prompts again and again.

    Args:
        trainer: The trainer.
        rows: The rows of one batch; the other batches name the same environments in the same order.
    """

    def __init__(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        self._trainer = trainer
        self._names = [row["environment"] for row in rows]
        factories = trainer.environment_factories
        trainer.environments = [factories[name]() for name in self._names]
        self.prompts: list[Any] = []
        if isinstance(trainer, MultiEnvGRPOTrainer):  # the others render the same tools with and without sessions
            for environment, row in zip(trainer.environments, rows, strict=True):
                environment.reset(**row)

    def render(self, prompts: Sequence[Any]) -> float:
        """Render a batch as the trainer does while it generates; return the seconds that it took this thread."""
        self._trainer._batch_environments = list(self._names)  # noqa: SLF001 - as TRL does for each batch
        started = time.thread_time()
        self.prompts, *_ = self._trainer._tokenize_prompts(prompts)  # noqa: SLF001 - what is measured
        withdraw(self._trainer)
        return time.thread_time() - started

    def shown_tools(self, row: int) -> list[JSONObject]:
        """Return the tools that a prompt of the last batch shows, as its text has them."""
        text = self._trainer.processing_class.decode(self.prompts[row])
        listed = text.split("<tools>\n")[1].split("\n</tools>")[0]
        return [json.loads(line)["function"] for line in listed.splitlines()]

    def check_exact(self) -> None:
        """Raise unless each prompt of the last batch shows its environment's tools as published."""
        published = published_tools()
        for row, name in enumerate(self._names):
            for tool, shown in zip(published[name], self.shown_tools(row), strict=True):
                parameters = tool["input_schema"] or {"type": "object", "properties": {}}
                expected = {"name": tool["name"], "description": tool["description"], "parameters": parameters}
                if json.dumps(shown) != json.dumps(expected):
                    raise RuntimeError(f"{name!r} published {expected}, and the prompt shows {shown}")


def measure(num_prompts: int = 1_000, batch_size: int = 50, num_repeats: int = 5) -> Times:
    """Render the same prompts with each trainer, taking turns at every batch, after one untimed.

    Args:
        num_prompts: Prompts in a repeat.
        batch_size: Prompts in a batch.
        num_repeats: How often each trainer renders all of them.
    """
    with trainers(num_tasks=num_prompts) as made:
        names = [ENVIRONMENTS[place % len(ENVIRONMENTS)] for place in range(batch_size)]
        lanes = {
            what: Lane(trainer, [{"environment": name, "task_index": place} for place, name in enumerate(names)])
            for what, trainer in made.items()
        }
        texts = [task["text"] for task in environment_class("tasks", [], num_prompts).list_tasks("train")]
        prompts = [[{"role": "user", "content": text}] for text in texts]
        batches = [prompts[start : start + batch_size] for start in range(0, num_prompts, batch_size)]
        for lane in lanes.values():
            lane.render(batches[0])
        lanes[EXACT].check_exact()
        gc.collect()
        gc.freeze()  # or a collection would walk through all that torch has loaded, at the cost of whose turn it is
        rendering_s: dict[str, list[float]] = {what: [] for what in lanes}
        for _ in range(num_repeats):
            num_tokens = dict.fromkeys(lanes, 0)
            spent_s = dict.fromkeys(lanes, 0.0)
            for number, batch in enumerate(batches):
                order = list(lanes)
                for what in order[number % len(order) :] + order[: number % len(order)]:
                    spent_s[what] += lanes[what].render(batch)
                    num_tokens[what] += sum(map(len, lanes[what].prompts))
            for what, duration_s in spent_s.items():
                rendering_s[what].append(duration_s)
        gc.unfreeze()
        return Times(rendering_s, num_tokens, *per_reset_and_call(made[EXACT].environments[: len(ENVIRONMENTS)]))


def per_reset_and_call(adapters: Sequence[Any], num_repeats: int = 200) -> tuple[float, float]:
    """Return what a reset takes to find its toolbox, and a call to have its arguments checked; medians, in seconds."""
    finding_s, checking_s = [], []
    for number, adapter in product(range(num_repeats + 1), adapters):
        tools = adapter._offered().tools.values()  # noqa: SLF001 - hidden from TRL
        presentation = adapter._route.presentation  # noqa: SLF001 - hidden from TRL
        finding_s.append(timed(presentation.toolbox, [tool.spec for tool in tools]))
        for tool in tools:
            schema = {"type": "object"} | tool.spec.input_schema
            arguments = Arguments(schema, f"{tool.name}/{number}", "").value(schema)
            taken_s = timed(tool.arguments.complaint, arguments)
            if number:  # the first call makes the validator
                checking_s.append(taken_s)
    return median(finding_s), median(checking_s)


def timed(do: Callable[..., Any], argument: Any) -> float:
    started = time.perf_counter()
    do(argument)
    return time.perf_counter() - started


def spread(times: Times, what: str, baseline: str) -> str:
    """Return the median of the repeats' ratios and how far they reach, in words."""
    pairs = zip(times.rendering_s[what], times.rendering_s[baseline], strict=True)
    ratios = [own_s / other_s for own_s, other_s in pairs]
    return f"{median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"


def run(num_prompts: int = 1_000) -> Report:
    times = measure(num_prompts)
    baseline_s = median(times.rendering_s[METHODS])
    rows = [
        Row(what, median(taken_s), baseline_s, f"{times.num_tokens[what] / num_prompts:,.0f} tokens each")
        for what, taken_s in times.rendering_s.items()
    ]
    prompt_s = baseline_s / num_prompts
    return Report(
        title=f"Rendering {num_prompts:,} prompts of {len(ENVIRONMENTS)} environments",
        rows=[
            *rows,
            Row("one prompt, methods", prompt_s, prompt_s),
            Row("finding the toolbox, per reset", times.toolbox_s, prompt_s),
            Row("checking arguments, per call", times.check_s, prompt_s),
        ],
        result=(
            f"exact schemas take {spread(times, EXACT, METHODS)} what the adapters' methods take, and "
            f"{spread(times, EXACT, TRL_ADAPTER)} what TRL's own adapter takes"
        ),
    )


if __name__ == "__main__":
    run().show()
