"""Decides how a run file becomes live values: a mixture, TRL's configuration, the model's arguments.

Flow: `commands` → `read_run` → `RunFile` → `MultiEnvSpec`, `GRPOConfig`, `ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from multienv.errors import SpecError
from multienv.files import Document, Wrong, explained, refusal
from multienv.meta import MultiEnvSpec
from multienv.runfile.arguments import made_of
from multienv.runfile.declaration import DECLARATIONS, RunSpec
from multienv.runfile.offline import at_replicas
from multienv.runfile.references import Resolver

if TYPE_CHECKING:
    from trl import GRPOConfig, ModelConfig

_OFFLINE: Final = "offline"
_ON_CPU: Final = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None}


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run file, read and checked.

    Attributes:
        document: The file.
        spec: What it declares.
        presets: From the names of the environments that have a preset to the preset's name.
        is_offline: True where the environments are replicas.
        has_tiny_model: True where the model is a tiny one made on the spot: offline, unless `offline` names another.
    """

    document: Document
    spec: RunSpec
    presets: Mapping[str, str]
    is_offline: bool = False
    has_tiny_model: bool = False

    def mixture(self) -> MultiEnvSpec:
        """Make the mixture; nothing is fetched yet.

        Raises:
            SpecError: The environments cannot be right together.
        """
        spec = self.spec
        manifest = None if spec.manifest is None else self.document.path.parent / spec.manifest
        try:
            return MultiEnvSpec(
                spec.environments,
                reward_funcs=spec.reward_funcs,
                system_prompt=spec.system_prompt,
                max_sessions=spec.max_sessions,
                max_concurrent_starts=spec.max_concurrent_starts,
                curriculum=spec.curriculum,
                manifest=manifest,
            )
        except SpecError as error:
            place = ("environments", *([error.environment] if error.environment else ()))
            line = self.document.line(place)
            raise SpecError(f"{self.document.path}, line {line}: {error}", environment=error.environment) from None

    def grpo_config(self, *, is_to_train: bool = True, **more: Any) -> GRPOConfig:
        """Make TRL's configuration.

        Args:
            is_to_train: False to look at it on a machine that may have no accelerator.
            **more: Fields that win over the file's.

        Raises:
            SpecError: A field is unknown, of the wrong type, or refused by TRL.
        """
        from trl import GRPOConfig  # noqa: PLC0415 - imports torch

        if not is_to_train:
            more = {**_ON_CPU, "report_to": "none", **more}
        return made_of(GRPOConfig, "grpo", self.spec.grpo, self.document, **more)

    def model_config(self, **more: Any) -> ModelConfig:
        """Make TRL's description of the model.

        Raises:
            SpecError: A field is unknown or of the wrong type, or there is no model.
        """
        from trl import ModelConfig  # noqa: PLC0415 - imports torch

        config: ModelConfig = made_of(ModelConfig, "model", self.spec.model, self.document, **more)
        if not config.model_name_or_path:
            raise refusal(
                self.document,
                [Wrong(("model",), ("model",), "model_name_or_path is missing; name a model or give its folder")],
            )
        return config


def read_run(path: str | PathLike[str], *, offline: bool = False) -> RunFile:
    """Read a run file.

    Args:
        path: A YAML or TOML file.
        offline: Lay its section `offline` over the rest, and put the presets' replicas in the environments' place.

    Raises:
        SpecError: It cannot be read, or says something that cannot be right: each finding with its line.
    """
    document = Document.read(Path(path))
    document.check_mapping(RunSpec.model_fields)
    over = document.values.get(_OFFLINE)
    if not isinstance(over, Mapping | None):
        text = f"offline is of type {type(over).__name__}; accepted: a mapping, laid over the rest of the file"
        raise refusal(document, [Wrong((_OFFLINE,), (), text)])
    model = over.get("model") if over is not None else None
    own_model = isinstance(model, Mapping) and model.get("model_name_or_path") is not None
    if offline:
        document = document.overlaid(_OFFLINE)
    wrongs: list[Wrong] = []
    values = {key: value for key, value in document.values.items() if value is not None}  # `grpo:` with nothing in it
    if offline:
        values = at_replicas(values, wrongs)
    values = Resolver(document.path.parent, wrongs).run(values)
    try:
        spec = explained(document, DECLARATIONS, lambda: RunSpec(**values))
    except SpecError as error:
        if not wrongs:
            raise
        raise SpecError(f"{refusal(document, wrongs)}\n{error}") from None
    if wrongs:
        raise refusal(document, wrongs)
    return RunFile(document, spec, _presets(document.values), offline, offline and not own_model)


def _presets(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value["preset"]
        for name, value in values["environments"].items()
        if isinstance(value, Mapping) and value.get("preset") is not None
    }
