"""Tensor intrinsics registered one by one, and all of them where TVM's own module is imported afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.relax

AFTERWARDS = """
import tvm
from tvm.s_tir import TensorIntrin
from roller_tvm.codegen.intrinsics import register

register("mma_fill_16x16_f32")
assert TensorIntrin.get("mma_fill_16x16_f16", allow_missing=True) is None
import tvm.s_tir.tensor_intrin
from tvm.s_tir.tensor_intrin.cuda import get_mma_fill_intrin
for dtype, name in (("float32", "mma_fill_16x16_f32"), ("float16", "mma_fill_16x16_f16")):
    found, (desc, impl) = TensorIntrin.get(name), get_mma_fill_intrin(dtype, 8)
    tvm.ir.assert_structural_equal(found.desc, desc)
    tvm.ir.assert_structural_equal(found.impl, impl)
register("mma_fill_16x16_f32")
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_tvm_s_own_module_can_be_imported_afterwards():
    """As MetaSchedule does for every task, whatever was planned before."""
    done = subprocess.run(
        [sys.executable, "-c", AFTERWARDS], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300
    )
    assert not done.returncode, done.stderr[-2000:]
