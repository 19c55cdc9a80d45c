"""Decides how a wrong declaration is answered: by sentences of our own, whatever pydantic calls it.

Flow: every option group a user declares is a `Declaration`; `sentence` turns pydantic's findings into words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

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
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        """Look at the keys of a mapping that stands for a declaration, before pydantic takes them for options."""
        return no_info_before_validator_function(cls._with_options_by_name, handler(source))

    @classmethod
    def _with_options_by_name(cls, value: Any) -> Any:
        keys = value if isinstance(value, Mapping) else ()
        for key in keys:
            if not isinstance(key, str):
                raise ValueError(  # noqa: TRY004 - pydantic collects it
                    f"{cls.__name__} is given as a mapping with the key {key!r}; accepted: its options by name "
                    f"({', '.join(sorted(cls.model_fields))})"
                )
        return value

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
