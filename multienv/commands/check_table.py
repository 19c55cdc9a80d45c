"""Decides how `multienv check` looks on a terminal: a row for each environment, then what was found, gravest first.

Flow: `check.run_check` → `show_check` → standard output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from multienv.checks import Severity

STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
"""How findings of each severity are shown."""
_IN_PYTHON: Final = {"in-process": "in this process", "foreign": "no ORS environment"}


def show_check(document: Mapping[str, Any], console: Console) -> None:
    """Show what was found.

    Args:
        document: What `check_document` returned.
        console: Where to.
    """
    console.print(_table(document))
    if document["max_model_tokens"] is not None:
        _say(console, f"the model takes {document['max_model_tokens']:,} tokens, prompt and completion together")
    for collision in document["collisions"]:
        told = "the same schema" if collision["is_same"] else ". ".join(collision["differences"])
        _say(console, f"tool {collision['tool']!r} is in {', '.join(collision['environments'])}: {told}")
    for severity in Severity:
        found = [finding for finding in document["findings"] if finding["severity"] == severity]
        if found:
            console.print()
            _say(console, f"{len(found)} {severity}{'s' if len(found) > 1 else ''}", STYLES[severity])
        for finding in found:
            owner = f"{finding['environment']}: " if finding["environment"] else ""
            message = finding["message"].removeprefix(f"environment {finding['environment']!r}: ")
            _say(console, f"- {owner}{message} [{finding['code']}]")
            if finding["fix"]:
                _say(console, f"  {finding['fix']}", "dim")
    if not document["findings"]:
        _say(console, "nothing was found that could go wrong")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False)


def _table(document: Mapping[str, Any]) -> Table:
    rows: Mapping[str, Mapping[str, Any]] = document["environments"]
    has_lengths = any(row.get("prompt_tokens") for row in rows.values())
    has_secrets = any(row.get("required_secrets") for row in rows.values())
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for heading in ("environment", "where"):
        table.add_column(heading, overflow="fold")
    for heading in ("tasks", "tools", *(["secrets"] if has_secrets else [])):
        table.add_column(heading)
    for heading in ("opens\nin s", *(["prompt\ntokens", "with\ncompletion"] if has_lengths else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        cells = [Text(name), _where(name, row, document["findings"]), _tasks(row), _tools(row)]
        cells += [_secrets(row)] if has_secrets else []
        cells.append(_opening(row))
        cells += [_range(row.get("prompt_tokens", ()), ",d"), _room(row, document)] if has_lengths else []
        table.add_row(*cells)
    return table


def _where(name: str, row: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Text:
    kind = row["kind"]
    where = Text(row["target"] if kind not in _IN_PYTHON else row["target"].rpartition(":")[2])
    if beside := _IN_PYTHON.get(kind, row.get("served_name")):
        where.append(f"\n{beside}", "dim")
    if not row.get("is_reached", True):
        code = next((one["code"] for one in findings if one["environment"] == name), "no answer")
        where.append(f"\nnot reached: {code}", STYLES[Severity.ERROR])
    return where


def _tasks(row: Mapping[str, Any]) -> Text:
    return Text("\n".join(_parts(row)) or "-")


def _parts(row: Mapping[str, Any]) -> Iterator[str]:
    """Say of each split how many tasks it has, and how many are trained and evaluated on."""
    chosen = [
        (row.get("split"), row["num_tasks"], ""),
        (row.get("eval_split"), row.get("num_eval_tasks"), " evaluated"),
    ]
    splits: Mapping[str, int | None] = row.get("splits", {})
    if row["kind"] == "foreign" and row["num_tasks"] is not None:
        yield f"{row['num_tasks']:,}"
    for split, num, what in chosen:
        if split is not None and num is not None:
            whole = splits.get(split)
            yield f"{split}: {num:,}{'' if whole is None else f' of {whole:,}'}{what}"
    others = {split: num for split, num in splits.items() if split not in (row.get("split"), row.get("eval_split"))}
    if others:
        yield "also " + ", ".join(f"{split} {num:,}" if num is not None else split for split, num in others.items())


def _tools(row: Mapping[str, Any]) -> Text:
    if not row.get("is_reached"):
        return Text("-")
    terminal = row["terminal_tool"]
    return Text(f"{len(row['tools'])}{f' + {terminal}' if terminal else ''}")


def _secrets(row: Mapping[str, Any]) -> Text:
    missing = row.get("missing_secrets", ())
    cell = Text(", ".join(name for name in row.get("required_secrets", ()) if name not in missing) or "-")
    if missing:
        cell = Text(f"missing: {', '.join(missing)}", STYLES[Severity.ERROR])
    return cell


def _room(row: Mapping[str, Any], document: Mapping[str, Any]) -> Text:
    whole, most = row.get("longest_rollout_tokens"), document["max_model_tokens"]
    if whole is None:
        return Text("-")
    if most is None:
        return Text(f"{whole:,}")
    longest = max(row["prompt_tokens"])
    severity = Severity.ERROR if longest >= most else Severity.WARNING if whole > most else None
    return Text(f"{whole:,} of {most:,}", "" if severity is None else STYLES[severity])


def _opening(row: Mapping[str, Any]) -> Text:
    took = _range(row.get("open_s", ()), ".2f")
    failed = row.get("sessions_asked", 0) - len(row.get("open_s", ()))
    return Text(f"{took}\n{failed} failed", STYLES[Severity.ERROR]) if failed else took


def _range(values: Sequence[Any], how: str) -> Text:
    if not values:
        return Text("-")
    low, high = format(min(values), how), format(max(values), how)
    return Text(low if low == high else f"{low}-{high}")
