"""The examples in the docstrings of rTask fusion run."""

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("roller_tvm.rammer",)
MODULES = [
    module.name
    for package in map(importlib.import_module, PACKAGES)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
]


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
