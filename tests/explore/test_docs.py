"""The examples in docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import roller_tvm.explore as package

MODULES = sorted(p.stem for p in Path(package.__file__).parent.glob("[!_]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"{package.__name__}.{name}")
    scope = {**vars(package), **vars(module)}
    assert not doctest.testmod(module, globs=scope).failed
