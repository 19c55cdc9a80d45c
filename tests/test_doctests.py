"""The examples in the docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import multienv

MODULES = [
    module.name for module in pkgutil.walk_packages(multienv.__path__, "multienv.") if "__main__" not in module.name
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), verbose=False)
    assert found.failed == 0, f"{found.failed} of {found.attempted} examples of {name} fail"
