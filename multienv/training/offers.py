"""Decides what TRL renders, parses and calls for each rollout: the tools of its own session, as published.

TRL keys a prompt's tools by the name of its environment. While a batch is generated, each row gets a key of its own
instead, so that rendering, parsing and the tool loop all see the tools of that row's session.

Flow: `trainer` applies an `Offers` around one batch; TRL reads `_env_tools` and `_batch_environments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multienv.errors import SpecError
from multienv.router import EnvironmentAdapter
from multienv.router.rollout_tools import RolloutTools

RowKey = tuple[str, int]
"""Name of the environment, and the identity of the toolbox: rows with the same tools share a key."""


def offer_own_tools(trainer: Any) -> None:
    """Give each row of the batch the tools of its own session.

    Args:
        trainer: TRL's trainer, after the resets of a batch and before its prompts are rendered.

    Raises:
        SpecError: TRL was set up without tools, and a session has some: their calls would be taken for answers.

    Source:
        `GRPOTrainer._env_tools` and `_batch_environments`, read by `_tokenize_prompts`, `_generate` and
        `_tool_call_loop`.
    """
    for row, environment in enumerate(trainer.environments):
        if isinstance(environment, EnvironmentAdapter):
            offered = environment._offered()  # noqa: SLF001 - hidden from TRL, which would show it to the policy
            key: RowKey = (environment.environment, id(offered))
            if offered.shown and not trainer.tools:
                raise _late_tools(environment.environment, offered.shown)
            trainer._env_tools.setdefault(key, [*trainer._standalone_tools, *offered.functions])  # noqa: SLF001 - a seam
            trainer._batch_environments[row] = key  # noqa: SLF001 - a seam


def _late_tools(name: str | None, tools: Iterable[str]) -> SpecError:
    return SpecError(
        f"environment {name!r} has tools that only some tasks have ({', '.join(tools)}), none was known when the "
        "trainer was made, and TRL has set itself up for a run without tools; name a task that has some, with "
        "EnvSpec(task_tools_discovery_index=...)",
        environment=name,
    )


def withdraw(trainer: Any) -> None:
    """Forget the keys of a batch's rows."""
    for key in [key for key in trainer._env_tools if isinstance(key, tuple)]:  # noqa: SLF001 - a seam
        del trainer._env_tools[key]  # noqa: SLF001 - a seam


def callable_tools(trainer: Any) -> list[Mapping[str, Any]]:
    """Return the table of callable tools of each rollout: TRL's own, or the session's under their shown names."""
    standalone = {tool.__name__ for tool in trainer._standalone_tools}  # noqa: SLF001 - a seam
    tables: list[Mapping[str, Any]] = []
    for environment, own, elsewhere in zip(
        trainer.environments,
        trainer._sync_tool_dicts,  # noqa: SLF001 - a seam
        trainer._async_tool_dicts,  # noqa: SLF001 - a seam
        strict=True,
    ):
        if isinstance(environment, EnvironmentAdapter):
            users = {
                name: tool
                for name, tool in own.items()
                if name in standalone and getattr(tool, "__self__", None) is not environment
            }
            tables.append(RolloutTools(environment, users, elsewhere))
        else:
            tables.append(own)
    return tables
