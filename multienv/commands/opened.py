"""Decides what a command gets of a run file: the mixture, TRL's configuration, and who reads the prompts.

Flow: `cli` → `opened` → `run_check`, `run_plan`, `run_preview`, `run_play`, `run_eval`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from multienv.commands.screen import counted, working
from multienv.files import Wrong, refusal
from multienv.runfile import RunFile, read_run

if TYPE_CHECKING:
    from trl import GRPOConfig

    from multienv.meta import MultiEnvSpec

_NO_TEMPLATE: Final = (
    "its tokenizer has no chat template, by which tools and messages become a prompt; use the model's instruct variant"
)
_MOST_TOKENS: Final = 10_000_000
"""Tokenizers that know no limit say a number far above this."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Who reads the prompts.

    Attributes:
        processing_class: The tokenizer or processor; None where the file names no model.
        max_tokens: Most tokens of a prompt and a completion together; None where nobody says.
    """

    processing_class: Any = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A run file whose mixture is there.

    Attributes:
        run: The file.
        spec: The mixture.
    """

    run: RunFile
    spec: MultiEnvSpec

    def args(self) -> GRPOConfig:
        """Return TRL's configuration, to look at."""
        with working("loading torch and TRL"):
            from multienv.tiny.surroundings import quietly  # noqa: PLC0415 - imports torch

            with quietly():
                return self.run.grpo_config(is_to_train=False)

    def policy(self) -> Policy:
        """Load the model's tokenizer, not the model.

        Raises:
            SpecError: It cannot be loaded.
        """
        if self.run.has_tiny_model:
            return self._offline_policy()
        if "model_name_or_path" not in self.run.spec.model:
            return Policy()
        from transformers import AutoConfig, AutoProcessor  # noqa: PLC0415 - imports torch

        described = self.run.model_config()
        options = {
            "revision": described.model_revision,
            "trust_remote_code": bool(self.run.spec.grpo.get("trust_remote_code", False)),
        }
        try:
            with working(f"loading the tokenizer of {described.model_name_or_path}"):
                reader = AutoProcessor.from_pretrained(described.model_name_or_path, **options)
                config = AutoConfig.from_pretrained(described.model_name_or_path, **options)
        except (OSError, ValueError) as error:
            raise unusable_model(self.run, error) from None
        if getattr(reader, "chat_template", None) is None:
            raise unusable_model(self.run, ValueError(_NO_TEMPLATE))
        most = [getattr(config.get_text_config(), "max_position_embeddings", None)]
        most.append(getattr(getattr(reader, "tokenizer", reader), "model_max_length", None))
        most.append(self.run.spec.grpo.get("vllm_max_model_length"))
        known = [int(each) for each in most if each is not None and each < _MOST_TOKENS]
        return Policy(reader, min(known, default=None))

    def _offline_policy(self) -> Policy:
        from multienv.offline import offline_tokenizer  # noqa: PLC0415 - imports torch

        with counted() as on_progress:
            seed = self.args().seed
            tokenizer = offline_tokenizer(self.spec, self.run.presets, seed=seed, on_progress=on_progress)
        return Policy(tokenizer, tokenizer.model_max_length)


@contextmanager
def opened(file: Path, *, offline: bool = False) -> Iterator[Opened]:
    """Read a run file and make its mixture, which is closed at the end.

    Args:
        file: The run file.
        offline: Put the presets' replicas in the environments' place.

    Raises:
        SpecError: The file cannot be right.
    """
    run = read_run(file, offline=offline)
    with run.mixture() as spec:
        yield Opened(run, spec)


def unusable_model(run: RunFile, error: Exception) -> Exception:
    """Return the error that says, with its line, that a run file's model cannot be used."""
    name = run.spec.model.get("model_name_or_path")
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if str(name).startswith(("/", "./", "../", "~")) and not Path(str(name)).is_dir():
        first = "there is no such folder; give that of a saved model, or a model's name on the hub"
    text = f"model_name_or_path={name!r} cannot be used: {first}"
    return refusal(run.document, [Wrong(("model", "model_name_or_path"), ("model",), text)])
