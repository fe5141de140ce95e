"""The examples in docstrings of the modules that need no TVM."""

import doctest
import importlib
from pathlib import Path

import pytest

import roller_tvm.ir.operators  # noqa: F401  (an example names one)
import roller_tvm.tuning as package

MODULES = sorted(p.stem for p in Path(package.__file__).parent.glob("[!_]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"{package.__name__}.{name}")
    assert not doctest.testmod(module).failed
