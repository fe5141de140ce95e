"""Loops that TVM wrote by hand write nothing into tensors without elements."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.empty import LoopsOfSome, ScansOfNothing  # noqa: E402


def running_sum(shape):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.cumsum(x, 0, exclusive=True))
        builder.emit_func_output(y)
    return builder.get()


def test_a_running_sum_along_an_open_extent_writes_nothing_if_it_is_zero():
    n = tvm.tirx.Var("n", "int64")
    with tvm.target.Target("llvm"):
        mod = LoopsOfSome()(relax.backend.DispatchSortScan()(running_sum((n, 5))))
        built = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    guarded = np.full(10, 7, "float32")
    shape, func = np.empty((0, 5), "float32"), mod["cumsum"]
    kernel = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    memory = tvm.runtime.tensor(guarded)
    kernel(tvm.runtime.tensor(shape), memory._create_view((0, 5)))
    np.testing.assert_array_equal(memory.numpy(), guarded)
    x = np.arange(15, dtype="float32").reshape(3, 5)
    wanted = np.concatenate([np.zeros((1, 5), "float32"), np.cumsum(x, 0)[:-1]])
    np.testing.assert_allclose(built["main"](tvm.runtime.tensor(x)).numpy(), wanted)


@pytest.mark.parametrize("shape", [(0, 5), (4, 0)])
def test_a_running_sum_of_nothing_is_no_loop(shape):
    mod = ScansOfNothing()(running_sum(shape))
    assert "cumsum" not in mod.script() and [int(e) for e in mod["main"].ret_ty.shape] == list(shape)
    assert "cumsum" in ScansOfNothing()(running_sum((4, 5))).script()
