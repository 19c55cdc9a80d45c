"""Decides how the reference shows a type: without the validators behind it.

Flow: `mkdocs.yml` → griffe, which reads the package → here.
"""  # noqa: INP001 - loaded by path

from __future__ import annotations

from typing import Any

from griffe import Attribute, Expr, ExprBinOp, ExprName, ExprSubscript, ExprTuple, Extension


class PlainTypes(Extension):
    """Shows `Annotated[int, Field(ge=1)]` as `int`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Take the annotation of an attribute, and leave its type."""
        if attr.annotation is not None:
            attr.annotation = plain(attr.annotation)


def plain(annotation: str | Expr) -> str | Expr:
    """Return a type without what only validates it."""
    if isinstance(annotation, ExprBinOp):
        return ExprBinOp(plain(annotation.left), annotation.operator, plain(annotation.right))
    if isinstance(annotation, ExprSubscript) and isinstance(annotation.left, ExprName):
        slices = annotation.slice
        if annotation.left.name == "Annotated" and isinstance(slices, ExprTuple):
            return plain(slices.elements[0])
    return annotation
