"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import roller_tvm.ir

MODULES = [m.name for m in pkgutil.iter_modules(roller_tvm.ir.__path__, "roller_tvm.ir.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
