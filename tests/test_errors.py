from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from multienv import errors

CLASSES = [
    member for _, member in inspect.getmembers(errors, inspect.isclass) if issubclass(member, errors.MultiEnvError)
]


def test_the_docstring_shows_the_whole_tree() -> None:
    tree = (errors.__doc__ or "").split("::")[1].split("A failed")[0]
    drawn = {name for name in re.findall(r"\b\w+Error\b", tree) if not hasattr(builtins, name)}
    assert drawn == {cls.__name__ for cls in CLASSES}
    for cls in CLASSES:
        standard = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception]
        for name in standard:
            assert f"{cls.__name__}({name})" in tree


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_pickling_with_its_environment(cls: type[errors.MultiEnvError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what was wrong", environment="seta")))
    assert type(error) is cls
    assert (str(error), error.environment) == ("what was wrong", "seta")


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not errors.MultiEnvError])
def test_every_error_is_also_a_standard_one(cls: type[errors.MultiEnvError]) -> None:
    assert issubclass(cls, ValueError | LookupError | RuntimeError | ConnectionError)
