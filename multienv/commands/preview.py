"""Decides what `multienv preview` shows of a task: the exact prompt and tools, as the model will get them.

Flow: `cli.preview` → `run_preview` → one session, opened and closed → the rendered prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table

from multienv.commands.rendering import Rendered, chat_template_of, render
from multienv.commands.screen import print_json, working
from multienv.commands.tasks import named
from multienv.errors import SessionError
from multienv.reporting import plain
from multienv.router.conversations import whole_prompt
from multienv.types import Column

if TYPE_CHECKING:
    from rich.console import Console

    from multienv.meta import MultiEnvSpec
    from multienv.router.toolbox import Toolbox


def run_preview(
    spec: MultiEnvSpec,
    *,
    environment: str | None,
    task: str,
    processing_class: Any,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    console: Console,
    is_json: bool = False,
) -> int:
    """Show a task's prompt and tools as `MultiEnvGRPOTrainer` gives them to the model.

    Args:
        spec: The mixture.
        environment: The environment; None where there is one only.
        task: Index of the task, or its task id.
        processing_class: The model's tokenizer or processor; None shows the messages unrendered.
        chat_template_kwargs: As in `GRPOConfig`.
        console: Where it is shown.
        is_json: Show it as JSON instead.

    Returns:
        0.

    Raises:
        SpecError: There is no such environment or task.
        SessionError: Its session cannot be opened.
    """
    row = named(spec, environment, task)
    template = None
    if processing_class is not None:
        template = chat_template_of(processing_class, has_tools=True)
        spec.present_to(processing_class, chat_template=template, has_conversations=True)
    else:
        spec.live.take_messages(is_on=True)
    factory: Any = spec.environment_factory[row[Column.ENVIRONMENT]]
    adapter = factory()
    try:
        with working(f"opening a session for {row[Column.TASK_ID]}"):
            content = adapter.reset(**row)
        if not adapter.episode.is_scorable:
            raise SessionError(adapter.episode.reason, environment=row[Column.ENVIRONMENT])
        messages = whole_prompt(row, adapter._play.conversation, content)  # noqa: SLF001 - hidden from TRL only
        offered: Toolbox = adapter._offered()  # noqa: SLF001 - see above
    finally:
        adapter._close()  # noqa: SLF001 - see above
    rendered = None
    if processing_class is not None:
        rendered = render(processing_class, messages, offered.functions, chat_template_kwargs, chat_template=template)
    if is_json:
        print_json(_document(row, messages, offered, rendered))
    else:
        _show(row, messages, offered, rendered, console)
    return 0


def _document(row: Mapping[str, Any], messages: Any, offered: Toolbox, rendered: Rendered | None) -> dict[str, Any]:
    document = {
        "environment": row[Column.ENVIRONMENT],
        "task_id": row[Column.TASK_ID],
        "messages": plain(messages),
        "tools": offered.functions,
        "changed": _changed(offered),
    }
    if rendered is not None:
        document |= {
            "text": rendered.text,
            "num_tokens": len(rendered.ids),
            "num_tool_tokens": rendered.num_tool_tokens,
        }
    return document


def _show(row: Mapping[str, Any], messages: Any, offered: Toolbox, rendered: Rendered | None, console: Console) -> None:
    console.print(Rule(escape(str(row[Column.TASK_ID])), align="left"))
    if rendered is None:
        console.print("the file names no model, so the messages are shown as they are", style="dim")
        for message in messages:
            console.print(f"[bold]{message['role']}[/bold]")
            console.print(str(message["content"]), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(rendered.text, markup=False, highlight=False, soft_wrap=True)
    console.print(Rule("tools", align="left"))
    console.print(_tools(offered))
    for published, shown in _changed(offered).items():
        console.print(f"{published!r} is shown as {shown!r}", markup=False, highlight=False)
    if rendered is not None:
        rest = len(rendered.ids) - rendered.num_tool_tokens
        console.print(
            f"{len(rendered.ids):,} tokens: {rendered.num_tool_tokens:,} of the tools, {rest:,} of the rest",
            highlight=False,
        )


def _tools(offered: Toolbox) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("tool", "parameters (* required)", "description"):
        table.add_column(heading)
    for tool in offered.shown.values():
        schema = tool.function["function"]["parameters"]
        required = schema.get("required", ())
        names = (f"{name}*" if name in required else name for name in schema.get("properties", {}))
        first, *_ = tool.spec.description.splitlines() or [""]
        table.add_row(*(escape(text) for text in (tool.name, ", ".join(names), first)))
    return table


def _changed(offered: Toolbox) -> dict[str, str]:
    """Return the tools whose names are shown differently, for they hold special tokens of the tokenizer."""
    return {tool.spec.name: tool.name for tool in offered.shown.values() if tool.spec.name != tool.name}
