"""Examples in the docstrings of devices, of code, and of the tools that need no TVM."""

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("roller_tvm.device", "roller_tvm.codegen", "roller_check", "roller_bench.kit", "roller_bench.replay")
#: Modules that import a TVM.
NEED_TVM = {"__main__", "described", "intrinsics", "tensor_intrinsics", *(
            f"{line}{part}" for line in ("relay", "relax") for part in ("", "_fused", "_model", "_plans"))}  # fmt: skip
MODULES = [
    f"{name}.{module.name}" for name in PACKAGES
    for module in pkgutil.iter_modules(importlib.import_module(name).__path__) if module.name not in NEED_TVM
]  # fmt: skip


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
