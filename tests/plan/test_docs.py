"""The examples in the docstrings of the core run."""

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = tuple(f"roller_tvm.{name}" for name in ("ir", "roller", "micro_perf", "recipes", "planner"))
MODULES = [
    module.name
    for package in map(importlib.import_module, PACKAGES)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
]


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
