"""exp, erf, tanh and sigmoid as arithmetic: over all of float32, its edges, and through the pipeline."""

import re

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax, te, tirx  # noqa: E402

from roller_tvm.relax import build, prepare  # noqa: E402
from roller_tvm.relax.vector_math import with_vector_math  # noqa: E402

from ..relax import modules as M  # noqa: E402


def test_other_types_and_functions_stay():
    x = te.placeholder((4, 4), "float16", name="x")
    y = te.compute((4, 4), lambda i, j: tirx.exp(x[i, j]), name="y")
    z = te.compute((4, 4), lambda i, j: tirx.log(y[i, j].astype("float32")), name="z")
    text = with_vector_math(te.create_prim_func([x, z])).script()
    assert "T.exp(" in text and "T.log(" in text and "T.isnan" not in text


def attention():
    """softmax(x) @ w, then GELU and a gate: every one of the functions, fused behind and before others."""
    builder, rng = relax.BlockBuilder(), np.random.default_rng(3)
    x = relax.Var("x", relax.TensorType((4, 32, 48), "float32"))
    w = relax.const(rng.standard_normal((48, 40)).astype("float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(builder.emit(relax.op.nn.softmax(x)), w))
            y = builder.emit(relax.op.multiply(y, relax.op.add(relax.op.erf(y), relax.const(1.0, "float32"))))
            y = builder.emit(relax.op.multiply(relax.op.tanh(y), relax.op.sigmoid(y)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def test_models_for_cpus_are_built_with_it_and_those_for_gpus_not():
    mod = attention()
    prepared = prepare(mod, M.TARGET).script()
    assert not re.search(r"T\.(exp|erf|tanh|sigmoid)\(", prepared) and "T.reinterpret" in prepared
    assert "T.isnan" not in prepared  # for which TVM takes a vector apart
    for func in (f for f in prepare(mod, M.TARGET).functions.values() if type(f).__name__ == "PrimFunc"):
        flops = tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": func}))  # MetaSchedule asks before it tunes
        assert flops >= 0
    assert "T.exp(" in prepare(mod, {"kind": "cuda", "arch": "sm_80"}).script()
    x = 3 * np.random.default_rng(5).standard_normal((4, 32, 48)).astype("float32")
    got = relax.VirtualMachine(build(mod, M.TARGET), tvm.cpu())["main"](x).numpy()
    np.testing.assert_allclose(got, M.answer(mod, x), rtol=2e-5, atol=2e-6)


def chain(*names):
    """Functions of each other, a block each, as fusing leaves them."""
    first = last = te.placeholder((4, 8), name="x")
    for name in names:
        last = elementwise(last, getattr(tirx, name))
    return te.create_prim_func([first, last])


def elementwise(tensor, function):
    return te.compute(tensor.shape, lambda i, j: function(tensor[i, j]))


def test_of_functions_of_each_other_the_first_are_written_out():
    """Each repeats its argument some twenty times: four of each other, and TVM took minutes."""
    text = with_vector_math(chain("tanh", "sigmoid", "exp", "tanh", "exp")).script()
    assert "T.sigmoid(" not in text and text.count("T.tanh(") == 1 and text.count("T.exp(") == 2
    x = te.placeholder((4, 8), name="x")
    one = te.compute((4, 8), lambda i, j: tirx.exp(tirx.tanh(tirx.exp(tirx.tanh(x[i, j])))))
    text = with_vector_math(te.create_prim_func([x, one])).script()
    assert text.count("T.tanh(") == 1 and text.count("T.exp(") == 1


def test_functions_beside_each_other_are_all_written_out():
    """An LSTM's cell: three of them side by side, then one of their sum."""
    gates = [te.placeholder((4, 8), name=f"g{n}") for n in range(4)]
    cell = te.compute((4, 8), lambda i, j: tirx.sigmoid(gates[0][i, j]) + tirx.sigmoid(gates[1][i, j])
                      * tirx.tanh(gates[2][i, j]))  # fmt: skip
    out = te.compute((4, 8), lambda i, j: tirx.sigmoid(gates[3][i, j]) * tirx.tanh(cell[i, j]))
    text = with_vector_math(te.create_prim_func([*gates, out])).script()
    assert "T.tanh(" not in text and "T.sigmoid(" not in text


def totals(tensor):
    """Of each row, wherever it was."""
    k = te.reduce_axis((0, 8))
    total = te.compute((4,), lambda i: te.sum(tensor[i, k], k))
    return te.compute((4, 8), lambda i, j: total[i] * 0.5)


def test_sums_are_kept_and_what_is_made_of_them_is_new():
    x = te.placeholder((4, 8), name="x")
    last = x
    for _ in range(4):
        last = totals(elementwise(last, tirx.exp))
    assert "T.exp(" not in with_vector_math(te.create_prim_func([x, last])).script()
