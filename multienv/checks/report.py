"""Decides how all tools of a mixture are set side by side: what each is called where, what clashes, what changes.

Flow: `MultiEnvSpec.tools_report` → `make_report` → `ToolsReport`, which `table` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from multienv.checks.differences import as_written, drift_of, schema_differences, tasks_in_words
from multienv.checks.findings import quoted, sentence
from multienv.checks.signatures import transformers_schema, why_renamed
from multienv.checks.table import as_text
from multienv.router import EnvironmentAdapter, MetaEnvironment, Presentation
from multienv.router.foreign import tool_functions
from multienv.types import JSONObject, ToolListing, ToolSpec

_EACH_ITS_OWN: Final = "none: each row is shown its own environment's tool"


@dataclass(frozen=True, slots=True)
class Effects:
    """What something means for each trainer, in words.

    Attributes:
        exact: `MultiEnvGRPOTrainer`, and a trainer given to `make_concurrent`.
        plain: TRL's own trainers with `environment_factory`.
        meta: Trainers with `meta_environment_factory`.
    """

    exact: str
    plain: str
    meta: str


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One tool of one environment.

    Attributes:
        environment: Name of the environment.
        tool: Published name.
        exact: What `MultiEnvGRPOTrainer` calls it; empty for a terminal tool, which no policy sees.
        plain: What TRL's own trainers call it; empty for a terminal tool.
        meta: What `meta_environment_factory` calls it; empty where there is none for this mixture.
        is_terminal: True for the tool that grades the policy's last plain message.
        is_foreign: True for a tool of an environment of another making.
        schema: JSON Schema of its arguments: as published, for a foreign tool as transformers reads it; None where that
            is not known.
        failure: Why no tool of this environment could be listed, in a row without a tool; else empty.
    """

    environment: str
    tool: str
    exact: str = ""
    plain: str = ""
    meta: str = ""
    is_terminal: bool = False
    is_foreign: bool = False
    schema: JSONObject | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Collision:
    """One name in several environments.

    Attributes:
        tool: The published name.
        environments: Who has it.
        is_same: True when all of them publish the same schema.
        differences: How the schemas differ from the first one's, in words.
        effects: What that means for each trainer.
    """

    tool: str
    environments: tuple[str, ...]
    is_same: bool
    differences: tuple[str, ...]
    effects: Effects


@dataclass(frozen=True, slots=True)
class Drift:
    """One tool that is not the same in all tasks of its environment, as far as they are known.

    Attributes:
        environment: Name of the environment.
        tool: The published name.
        differences: How its forms differ, or where it is missing, in words.
        effects: What that means for each trainer.
    """

    environment: str
    tool: str
    differences: tuple[str, ...]
    effects: Effects


@dataclass(frozen=True, slots=True)
class Renamed:
    """One tool that cannot be called what it was published as everywhere.

    Attributes:
        environment: Name of the environment.
        tool: The published name.
        reason: Why not, in words.
        effects: What each trainer calls it.
    """

    environment: str
    tool: str
    reason: str
    effects: Effects


@dataclass(frozen=True, slots=True)
class ToolsReport:
    """Every tool of a mixture, and what must be known of it. Printing it shows tables of at most 120 columns.

    Attributes:
        rows: Every tool of every environment, in order.
        collisions: Names that several environments have.
        drift: Tools that differ between tasks, of the tasks known so far.
        renamed: Tools with another name in some trainer, the reserved ones among them.
        looked_at: Of which tasks the tools are known, in words, by ORS environment that could be listed; nothing is
            known of how the tools of other tasks differ.
    """

    rows: tuple[ToolRow, ...]
    collisions: tuple[Collision, ...]
    drift: tuple[Drift, ...]
    renamed: tuple[Renamed, ...]
    looked_at: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Show tables."""
        return as_text(self)


def make_report(
    factories: Mapping[str, type[EnvironmentAdapter | Any] | Exception],
    meta: type[MetaEnvironment] | None,
    listings: Mapping[str, Mapping[int | str | None, ToolListing]],
    presentation: Presentation,
) -> ToolsReport:
    """Set the tools of a mixture side by side.

    Args:
        factories: The adapter class of each environment, by name; or why there is none.
        meta: The class that stands for all that could be listed; None where there is none.
        listings: What is known of each ORS environment's tools, by task.
        presentation: How tools are shown.
    """
    rows: list[ToolRow] = []
    for name, factory in factories.items():
        if isinstance(factory, Exception):
            rows.append(ToolRow(name, "", failure=f"could not be listed: {sentence(factory)}"))
            continue
        is_ors = issubclass(factory, EnvironmentAdapter)
        rows += _ors_rows(name, factory, meta, presentation) if is_ors else _foreign_rows(name, factory)
    return ToolsReport(
        rows=tuple(rows),
        collisions=tuple(_collisions(rows)),
        drift=tuple(_drift(listings)),
        renamed=tuple(_renamed(rows)),
        looked_at={name: tasks_in_words(known) for name, known in listings.items() if known},
    )


def _ors_rows(
    name: str, factory: type[EnvironmentAdapter], meta: type[MetaEnvironment] | None, presentation: Presentation
) -> Iterator[ToolRow]:
    listing = factory._route.listing  # noqa: SLF001 - hidden from TRL, not from this library
    methods = factory._method_names  # noqa: SLF001 - see above
    toolbox = presentation.toolbox(listing.tools)
    # Both are in the order of the tools: each adds its methods one by one.
    meta_names = meta._tool_names[name] if meta is not None else ("",) * len(listing.tools)  # noqa: SLF001 - see above
    for tool, meta_name in zip(listing.tools, meta_names, strict=True):
        shown = toolbox.tools[tool.name].name
        yield ToolRow(name, tool.name, shown, methods[tool.name], meta_name, schema=dict(tool.input_schema))
    if listing.terminal_tool is not None:
        yield ToolRow(name, listing.terminal_tool.name, is_terminal=True)


def _foreign_rows(name: str, factory: type) -> Iterator[ToolRow]:
    for tool, function in tool_functions(factory).items():
        yield ToolRow(name, tool, tool, tool, is_foreign=True, schema=_schema_of(function))


def _schema_of(function: Callable[..., Any]) -> JSONObject | None:
    try:
        parameters: JSONObject = transformers_schema(function)["function"]["parameters"]
    except Exception:  # noqa: BLE001 - TRL says what is wrong with the user's function, when it needs it
        return None
    return parameters


def _collisions(rows: list[ToolRow]) -> Iterator[Collision]:
    for tool in dict.fromkeys(row.tool for row in rows if not row.failure):
        owners = [row for row in rows if row.tool == tool and not row.is_terminal]
        if len(owners) < 2:  # noqa: PLR2004 - a pair
            continue
        differing = list(_told_apart(owners))
        meta = ", ".join(row.meta for row in owners if row.meta)
        yield Collision(
            tool,
            tuple(row.environment for row in owners),
            not differing,
            tuple(differing),
            Effects(_EACH_ITS_OWN, _EACH_ITS_OWN, f"called {meta}" if meta else "cannot be used here"),
        )


def _told_apart(owners: list[ToolRow]) -> Iterator[str]:
    """Say how each further form of a tool differs from the first one."""
    forms: dict[str, tuple[ToolSpec, list[str]]] = {}
    for row in owners:
        spec = ToolSpec(row.tool, "", row.schema or {})
        _, names = forms.setdefault(as_written(spec.input_schema), (spec, []))
        names.append(row.environment)
    (first, names), *more = forms.values()
    for form, others in more:
        told = schema_differences(first, form, ", ".join(names), ", ".join(others))
        yield f"{', '.join(names)} and {', '.join(others)}: {'; '.join(told)}"


def _drift(listings: Mapping[str, Mapping[int | str | None, ToolListing]]) -> Iterator[Drift]:
    union = "every task is shown it, in the form that is known first"
    for name, known in listings.items():
        for tool, words in drift_of(known).items():
            effects = Effects("none: each rollout is shown its own task's form", union, union)
            yield Drift(name, tool, tuple(words), effects)


def _renamed(rows: list[ToolRow]) -> Iterator[Renamed]:
    for row in rows:
        if row.failure or row.is_terminal or row.is_foreign or row.tool == row.plain == row.exact:
            continue
        reason = f"it {why_renamed(row.tool)}" if row.plain != row.tool else "it holds a special token of the policy"
        exact, plain, meta = (f"called {quoted(name)}" if name else "" for name in (row.exact, row.plain, row.meta))
        yield Renamed(row.environment, row.tool, reason, Effects(exact, plain, meta))
