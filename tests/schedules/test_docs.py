"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import roller_tvm.schedules

MODULES = [m.name for m in pkgutil.walk_packages(roller_tvm.schedules.__path__, "roller_tvm.schedules.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
