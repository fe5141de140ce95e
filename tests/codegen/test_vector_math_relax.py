"""exp, erf, tanh and sigmoid as arithmetic: over all of float32, its edges, and through the pipeline."""

import math

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.relax, pytest.mark.optimised]

from tvm import relax, te, tirx  # noqa: E402

from roller_tvm.relax import build, prepare  # noqa: E402
from roller_tvm.relax.pipeline import schedule  # noqa: E402
from roller_tvm.relax.rewrites import VectorMath  # noqa: E402

from ..relax import modules as M  # noqa: E402
from ..relax.test_hard_to_build import code_of  # noqa: E402


def flattened(func):
    """A function as TVM hands it to LLVM, marked or not."""
    seen = []

    @tvm.instrument.pass_instrument
    class Seen:
        def run_before_pass(self, mod, info):
            if info.name == "tirx.LowerIntrin":
                seen.append(mod)

    with tvm.transform.PassContext(instruments=[Seen()]):
        built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), M.TARGET)
    return built, seen[0].script()


def with_vector_math(func):
    return VectorMath()(tvm.IRModule({"main": func}))["main"]


def test_other_types_and_functions_stay():
    x = te.placeholder((4, 4), "float64", name="x")
    y = te.compute((4, 4), lambda i, j: tirx.exp(x[i, j]), name="y")
    z = te.compute((4, 4), lambda i, j: tirx.log(y[i, j].astype("float32")), name="z")
    _, text = flattened(with_vector_math(te.create_prim_func([x, z])))
    assert "T.exp(" in text and "T.log(" in text and "T.Let" not in text


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
    for func in (f for f in prepare(mod, M.TARGET).functions.values() if type(f).__name__ == "PrimFunc"):
        flops = tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": func}))  # MetaSchedule asks before it tunes
        assert flops >= 0
    scheduled, _ = schedule(prepare(mod, M.TARGET), M.TARGET)
    text = code_of(scheduled)
    assert "fmul" in text
    assert not any(call in text for call in ("@expf", "@erff", "@tanhf", "@llvm.exp"))
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


@pytest.mark.parametrize("names", [("tanh", "sigmoid"), ("tanh", "sigmoid", "exp", "tanh", *["erf"] * 6)])
def test_code_of_functions_of_each_other_grows_with_their_number(names):
    """Each uses its argument some twenty times: as expressions of TVM, ten of each other took it hours."""
    x = te.placeholder((4, 8), name="x")
    alone = sum(flattened_size([name]) for name in names)
    together = te.compute((4, 8), lambda i, j: apply(names, x[i, j]))
    _, text = flattened(with_vector_math(te.create_prim_func([x, together])))
    assert len(text) <= alone


def apply(names, value):
    for name in names:
        value = getattr(tirx, name)(value)
    return value


def flattened_size(names):
    return len(flattened(with_vector_math(chain(*names)))[1])


def test_erf_of_vectors_is_right_without_it_too():
    """TVM is told that erf of a vector is one operation, and has no code for that of its own."""
    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((64,), lambda i: tirx.erf(x[i]), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.vectorize(schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, 16])[1])
    built, _ = flattened(schedule.mod["main"])
    given = np.linspace(-3, 3, 64, dtype="float32")
    got = tvm.runtime.empty((64,))
    built["main"](tvm.runtime.tensor(given), got)
    np.testing.assert_allclose(got.numpy(), np.vectorize(math.erf)(given), rtol=1e-6)
