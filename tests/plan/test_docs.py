"""The examples in the docstrings of planning, modelling and lowering run."""

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("roller_tvm.planner", "roller_tvm.micro_perf", "roller_tvm.planner.lower")
MODULES = [
    module.name
    for package in map(importlib.import_module, PACKAGES)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
]


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
