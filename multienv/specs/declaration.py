"""Decides how a wrong declaration is answered: by sentences of our own, whatever pydantic calls it.

Flow: every option group a user declares is a `Declaration`; `sentence` turns pydantic's findings into words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from multienv.errors import SpecError, nearest


class Declaration(BaseModel):
    """A frozen group of options that knows no others.

    Raises:
        SpecError: An option is unknown or cannot be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            known = sorted(type(self).model_fields)
            sentences = dict.fromkeys(self._sentence(problem, known) for problem in error.errors())
            raise SpecError(f"{type(self).__name__}: {'; '.join(sentences)}") from None

    @classmethod
    def _sentence(cls, problem: Any, known: list[str]) -> str:
        """Turn one of pydantic's findings into a sentence; see `sentence`."""
        return sentence(problem, known)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show only what differs from the defaults."""
        for name, value in super().__repr_args__():
            if name is None or value != type(self).model_fields[name].get_default(call_default_factory=True):
                yield name, value


def sentence(problem: Any, known: list[str]) -> str:
    """Turn one of pydantic's findings into a sentence that says what was wrong and what is accepted.

    Args:
        problem: One of `ValidationError.errors()`.
        known: The accepted options.
    """
    option = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        unknown = str(problem["loc"][-1])
        return f"unknown option {unknown!r}{nearest(unknown, known)}; accepted: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{option} is missing; it has no default"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    return f"{option}={problem['input']!r}: {message[0].lower()}{message[1:]}"
