"""Decides what is said about the policy's chat template: whether it prints tools as published, or in words of its own.

Flow: `run` → here, with who reads from `Presentation` and the tools as the trainer will give them to the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from multienv.checks.findings import Code, Finding, Severity, joined, quoted, sentence
from multienv.checks.hidden import hidden_parts
from multienv.checks.looks import Look, Mixture
from multienv.types import JSONObject

_TEXT: Final = "x"
_MOST_CHARACTERS: Final = 20_000_000
_MOST_STARTS: Final = 5_000
_FIX_TEMPLATE: Final = "Give the trainer a tokenizer whose template shows tools, such as that of an instruct model."


class Rendering:
    """Renders tools with one chat template, within a budget.

    Args:
        mixture: Who reads; `chat_template_kwargs` of its `args` are passed on.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._processing_class = mixture.presentation.processing_class
        self._chat_template = mixture.presentation.chat_template
        self._options: Mapping[str, Any] = getattr(mixture.args, "chat_template_kwargs", None) or {}
        # TRL gives content blocks to processors, whose templates may read nothing else.
        self._content: Any = [{"type": "text", "text": _TEXT}] if mixture.presentation.has_images else _TEXT
        self._left = _MOST_CHARACTERS

    @property
    def is_spent(self) -> bool:
        """True once so much was rendered that the rest is left out."""
        return self._left <= 0

    def __call__(self, functions: Sequence[JSONObject] | None) -> str:
        """Return the text of a prompt with these tools."""
        if self.is_spent:
            raise RuntimeError("the tools are too large to be rendered again and again")
        text = str(
            self._processing_class.apply_chat_template(
                [{"role": "user", "content": self._content}],
                tools=functions,
                tokenize=False,
                add_generation_prompt=True,
                chat_template=self._chat_template,
                **self._options,
            )
        )
        self._left -= len(text)
        return text


def check_template(look: Look, mixture: Mixture) -> Iterator[Finding]:
    """Say how the policy's chat template shows the environment's tools."""
    if mixture.presentation.processing_class is None or not look.tools:
        return
    functions = mixture.presentation.toolbox(look.tools).functions
    render = Rendering(mixture)
    try:
        text = render(functions)
        without = render(None)
    except Exception as error:  # noqa: BLE001 - a template fails in more ways than can be listed
        yield look.finding(
            Severity.ERROR,
            Code.TEMPLATE_FAILS,
            f"the chat template cannot render its tools: {type(error).__name__}: {sentence(error)}",
            _FIX_TEMPLATE,
        )
        return
    if text == without:
        yield look.finding(
            Severity.ERROR,
            Code.TEMPLATE_WITHOUT_TOOLS,
            "the chat template does not mention tools, so the policy is never told of any.",
            _FIX_TEMPLATE,
        )
    elif prints_json(text, functions):
        yield look.finding(
            Severity.NOTE, Code.TEMPLATE_EXACT, "the chat template prints each tool's JSON as published."
        )
    else:
        yield _rerendered(look, functions, render, without)


def prints_json(text: str, functions: Sequence[JSONObject]) -> bool:
    """Tell whether every tool stands in a text as JSON, keys in the published order.

    Args:
        text: A rendered prompt.
        functions: The tools as chat templates take them; each is looked for with and without what is around it.
    """
    wanted = [{_canonical(function), _canonical(function["function"])} for function in functions]
    missing = [forms for forms in wanted if not any(form in text for form in forms)]
    if not missing:
        return True
    found = {_canonical(value) for value in _objects_in(text)}
    return all(forms & found for forms in missing)


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _objects_in(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects of a text, however they are indented."""
    decoder, start = json.JSONDecoder(), 0
    for _ in range(_MOST_STARTS):
        if (start := text.find("{", start)) < 0:
            return
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
        else:
            yield value


def _rerendered(look: Look, functions: Sequence[JSONObject], render: Rendering, without: str) -> Finding:
    lines = [line for function in functions if (line := _hidden(function, render, without))]
    message = "the chat template writes tools in words of its own"
    if not lines:
        return look.finding(Severity.NOTE, Code.TEMPLATE_RERENDERS, f"{message}, and shows all of each schema.")
    return look.finding(
        Severity.WARNING,
        Code.TEMPLATE_RERENDERS,
        f"{message}, and leaves out: {joined(lines)}.",
        "Say it in the tools' descriptions, or train a policy whose template prints JSON, such as Qwen3.",
    )


def _hidden(function: JSONObject, render: Rendering, without: str) -> str:
    """Return what the template leaves out of one tool, in words; empty for nothing."""
    inner = function["function"]

    def show(changes: Mapping[str, Any]) -> str:
        return render([{**function, "function": {**inner, **changes}}])

    name = f"tool {quoted(inner['name'])}"
    try:
        shown = show({})
        if shown == without:
            return f"{name} altogether"
        hidden = hidden_parts(inner["parameters"], lambda schema: show({"parameters": schema}))
        if inner["description"] and show({"description": ""}) == shown:
            hidden.insert(0, "its description")
    except Exception as error:  # noqa: BLE001 - see `check_template`
        return f"{name}, which alone cannot be rendered ({type(error).__name__}: {str(error)[:100]})"
    if render.is_spent:
        hidden.append("(it is too large for all of it to be looked at)")
    return f"{name} ({', '.join(hidden)})" if hidden else ""
