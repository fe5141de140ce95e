"""Register tiles on the stack: the same numbers, no workspace where a function is marked, and in all that builds."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402

from roller_tvm.device.cpu_data import register_file_bytes  # noqa: E402
from roller_tvm.relax import StackTiles, build  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.stack_tiles import MARK  # noqa: E402

from .networks import LLVM, module  # noqa: E402

WIDE = {"kind": "llvm", "mcpu": "core-avx2"}


def tiled(rows, columns, dtype="float32"):
    """A product whose sums of so many rows and columns are kept in a buffer of their own."""
    a, b = te.placeholder((rows * 3, 40), dtype, "a"), te.placeholder((40, columns), dtype, "b")
    k = te.reduce_axis((0, 40), "k")
    c = te.compute((rows * 3, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    sch = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("c")
    kept = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    outer, inner = sch.split(i, [3, rows])
    sch.reorder(outer, k, inner, j)
    sch.reverse_compute_at(kept, outer)
    sch.vectorize(j)
    sch.parallel(outer)
    sch.decompose_reduction(block, k)
    return tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})


def marked(mod):
    return tvm.transform.Sequential([StackTiles()])(mod)


def workspaces(mod):
    return tvm.compile(mod, WIDE).mod.inspect_source("ll").count("@__TVMBackendAllocWorkspace,")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("rows, columns", [(16, 16), (20, 24)])
def test_the_numbers_are_the_same(rows, columns, dtype):
    mod, rng = tiled(rows, columns, dtype), np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, s).astype(dtype) for s in ((rows * 3, 40), (40, columns)))
    for one in (mod, marked(mod)):
        out = tvm.runtime.tensor(np.full((rows * 3, columns), 77, dtype))
        tvm.compile(one, WIDE)["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
        assert (out.numpy() == a @ b).all()


def test_what_fits_into_the_registers_and_no_more():
    fits, larger = tiled(16, register_file_bytes() // 64), tiled(16, register_file_bytes() // 32)
    assert workspaces(fits) == workspaces(larger) == workspaces(marked(larger)) == 1
    assert workspaces(marked(fits)) == 0


def test_the_pipeline_marks_what_it_schedules():
    mod = module(lambda b, x: b.emit(relax.op.nn.softmax(x)), (64, 128))
    scheduled, _ = schedule(prepare(mod, LLVM), LLVM)
    funcs = [f for _, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    assert funcs and all(MARK in f.attrs for f in funcs)


def test_a_model_built_and_its_answers():
    def body(builder, x, w):
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w))))

    mod = module(body, (48, 64), (64, 96))
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((48, 64), (64, 96)))
    found = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())["main"](x, w).numpy()
    np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_tensors_without_elements():
    mod = module(lambda b, x: b.emit(relax.op.nn.softmax(x)), (0, 32))
    empty = tvm.runtime.tensor(np.zeros((0, 32), "float32"))
    found = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())["main"](empty)
    assert found.numpy().shape == (0, 32)
