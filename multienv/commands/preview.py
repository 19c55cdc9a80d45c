"""Decides what `multienv preview` shows of a task: the exact prompt and tools, as the model will get them.

Flow: `cli.preview` → `run_preview` → one session, opened and closed → the rendered prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from multienv.commands.changes import changes
from multienv.commands.rendering import Rendered, chat_template_of, has_tools, methods_shown, render
from multienv.commands.screen import print_json
from multienv.commands.tasks import OpenedEpisode, named, opened_episode
from multienv.commands.texts import as_shown, put, show_messages
from multienv.reporting import plain
from multienv.router import reserved_texts
from multienv.types import Column, JSONObject

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec


@dataclass(frozen=True, slots=True)
class _Preview:
    """What there is to show.

    Attributes:
        row: The task's row.
        messages: The prompt.
        tools: What the trainer gives to the chat template: functions, or methods in a plain trainer.
        functions: The same as functions.
        changes: What is shown differently from what was published, a sentence each.
        special: Special tokens of the tokenizer.
        rendered: The prompt as the model reads it; None where no model is known.
    """

    row: Mapping[str, Any]
    messages: Sequence[JSONObject]
    tools: Sequence[Any]
    functions: Sequence[JSONObject]
    changes: Sequence[str]
    special: Sequence[str] = ()
    rendered: Rendered | None = None


def run_preview(  # noqa: PLR0913 - the options of a command, and where the model comes from
    spec: MultiEnvSpec,
    *,
    environment: str | None,
    task: int | str | None = None,
    processing_class: Any,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    console: Console,
    shows_schemas: bool = True,
    is_plain: bool = False,
    is_json: bool = False,
) -> int:
    """Show a task's prompt and tools as `MultiEnvGRPOTrainer` gives them to the model.

    Args:
        spec: The mixture.
        environment: The environment; None where there is one only.
        task: Index of the task, or its task id; None for the first.
        processing_class: The model's tokenizer or processor; None shows the messages unrendered.
        chat_template_kwargs: As in `GRPOConfig`.
        console: Where it is shown.
        shows_schemas: As in `MultiEnvGRPOTrainer`.
        is_plain: Show what TRL's own `GRPOTrainer` gives to the model instead.
        is_json: Show it as JSON instead.

    Returns:
        0.

    Raises:
        SpecError: There is no such environment or task, or the chat template cannot show it.
        SessionError: Its session cannot be opened.
    """
    row = named(spec, environment, task)
    template: str | None = None
    special: Sequence[str] = ()
    shows_schemas = shows_schemas and not is_plain
    factories = spec.environment_factory
    if processing_class is not None:
        template = chat_template_of(processing_class, has_tools=has_tools(factories.values()))
        special = reserved_texts(processing_class, template)
    if processing_class is not None and not is_plain:
        spec.present_to(processing_class, chat_template=template, has_conversations=shows_schemas)
    else:
        spec.live.take_messages(is_on=shows_schemas)
    with opened_episode(spec, row) as opened:
        tools, functions, told = _published(opened) if shows_schemas else _methods(opened)
    rendered = None
    if processing_class is not None:
        rendered = render(processing_class, opened.messages, tools, chat_template_kwargs, chat_template=template)
    preview = _Preview(row, opened.messages, tools, functions, told, special, rendered)
    if is_json:
        print_json(_document(preview))
    else:
        _show(preview, console)
    return 0


def _published(opened: OpenedEpisode) -> tuple[list[JSONObject], list[JSONObject], list[str]]:
    """Return the tools of the task as published, and what is shown differently."""
    play = opened.adapter._play  # noqa: SLF001 - hidden from TRL only
    functions = play.offered.functions
    prompt = () if play.session is None else play.session.prompt
    return functions, functions, changes(prompt, play.offered, opened.adapter._route.presentation)  # noqa: SLF001 - see above


def _methods(opened: OpenedEpisode) -> tuple[list[Any], list[JSONObject], list[str]]:
    """Return the methods that TRL's own trainer takes for tools, which read alike for all tasks."""
    from transformers.utils import get_json_schema  # noqa: PLC0415 - imports torch

    methods = [getattr(opened.adapter, name) for name in methods_shown(type(opened.adapter))]
    return methods, [get_json_schema(method) for method in methods], []


def _document(preview: _Preview) -> dict[str, Any]:
    document = {
        "environment": preview.row[Column.ENVIRONMENT],
        "task_id": preview.row[Column.TASK_ID],
        "messages": plain(preview.messages),
        "tools": preview.functions,
        "changes": preview.changes,
    }
    if (rendered := preview.rendered) is not None:
        document |= {
            "text": rendered.text,
            "num_tokens": len(rendered.ids),
            "num_tool_tokens": rendered.num_tool_tokens,
            "num_system_tokens": rendered.num_system_tokens,
        }
    return document


def _show(preview: _Preview, console: Console) -> None:
    rendered = preview.rendered
    console.print(Rule(as_shown(preview.row[Column.TASK_ID]), align="left"))
    if rendered is None:
        console.print("the file names no model, so the messages are shown as they are", style="dim")
        show_messages(console, preview.messages)
    else:
        put(console, rendered.text, special=preview.special)
    console.print(Rule("tools", align="left"))
    console.print(_tools(preview.functions))
    for sentence in preview.changes:
        put(console, sentence, style="yellow")
    if rendered is not None:
        parts = [("of the tools", rendered.num_tool_tokens), ("of the system message", rendered.num_system_tokens)]
        listed = [f"{num:,} {what}" for what, num in parts if num is not None]
        listed.append(f"{rendered.num_other_tokens:,} of the rest")
        console.print(f"{len(rendered.ids):,} tokens: {', '.join(listed)}", highlight=False)


def _tools(functions: Sequence[JSONObject]) -> Table | Text:
    if not functions:
        return Text("none")
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("tool", "parameters (* required)", "description"):
        table.add_column(heading, overflow="fold")
    for function in (each["function"] for each in functions):
        schema: Any = function.get("parameters") or {}
        properties, required = schema.get("properties"), schema.get("required")
        required = required if isinstance(required, list) else ()
        names = [f"{name}*" if name in required else name for name in properties or ()]
        first = next(iter(str(function.get("description") or "").splitlines()), "")
        table.add_row(*(as_shown(text) for text in (function["name"], ", ".join(names), first)))
    return table
