"""exp, erf and tanh as arithmetic on the Relay line: over all of float32, its edges, within its context alone."""

import math
import re
import threading

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.tvm, pytest.mark.optimised]

from tvm import relay, te, tir, topi  # noqa: E402

from roller_tvm import auto_scheduler  # noqa: E402
from roller_tvm.relay import VectorMath, build  # noqa: E402

LANES = 16
def kernel(name, shape, vector, dtype="float32", target="llvm"):
    x = te.placeholder(shape, dtype, name="x")
    y = te.compute(shape, lambda *i: getattr(tir, name)(x[i]), name="y")
    schedule = te.create_schedule(y.op)
    if vector:
        schedule[y].vectorize(schedule[y].split(y.op.axis[-1], LANES)[1])
    return tvm.build(schedule, [x, y], target)


def run(module, x):
    out = tvm.nd.array(np.full(x.shape, 7, x.dtype))
    module(tvm.nd.array(x), out)
    return out.numpy()


def text(module):
    """Its code, without the addresses that LLVM is given for names."""
    return re.sub(r"0x[0-9a-f]+", "", module.get_source("ll"))


def calls(module):
    return {name for name in ("expf", "erff", "tanhf", "llvm.exp") if name in text(module)}


def test_outside_of_it_in_another_thread_and_where_it_is_off_kernels_are_tvms():
    plain = kernel("exp", (LANES,), True)
    found = []
    with VectorMath() as context:
        with VectorMath(False):
            found.append(kernel("exp", (LANES,), True))
        with context:  # again
            pass
        assert not calls(kernel("exp", (LANES,), True))
        thread = threading.Thread(target=lambda: found.append(kernel("exp", (LANES,), True)))
        thread.start()
        thread.join()
    found.append(kernel("exp", (LANES,), True))
    assert calls(plain) and {text(m) for m in found} == {text(plain)}


def test_erf_of_vectors_is_tvms_outside_of_it():
    x = np.linspace(-4, 4, LANES, dtype="float32")
    with VectorMath():  # for which TVM is told that erf of a vector is one operation
        assert not calls(kernel("erf", (LANES,), True))
        with VectorMath(False):
            off = kernel("erf", (LANES,), True)
        assert not calls(kernel("erf", (LANES,), True))
    assert tvm.ir.Op.get("tir.erf").get_attr("TVectorizable") is None
    for module in (off, kernel("erf", (LANES,), True)):
        assert calls(module) == {"erff"}
        np.testing.assert_allclose(run(module, x), np.vectorize(math.erf)(x), rtol=1e-6)
    assert "erff" in kernel("erf", (LANES,), True, target="c").get_source()


def test_it_ends_with_an_error_inside():
    with pytest.raises(ZeroDivisionError), VectorMath():
        1 / 0  # noqa: B018
    assert calls(kernel("exp", (LANES,), True))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types_are_called_as_before(dtype):
    plain = kernel("exp", (LANES,), False, dtype)
    with VectorMath():
        assert text(kernel("exp", (LANES,), False, dtype)) == text(plain)


def gated():
    """softmax, GELU's erf, tanh and a sigmoid: every one of the functions in a model."""
    x = relay.var("x", shape=(4, 32, 48))
    y = relay.nn.softmax(x)
    y = y * (relay.erf(y) + relay.const(1.0)) * relay.tanh(y) * relay.sigmoid(y)
    return tvm.IRModule.from_expr(relay.Function([x], y))


def answer(lib, data):
    executor = tvm.contrib.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    executor.run(x=data)
    return executor.get_output(0).numpy()


@pytest.mark.parametrize("how", ["ApplyHistoryBest", "build"])
def test_models_with_records_are_built_with_it_unless_told_otherwise(how, tmp_path):
    log = tmp_path / "records.json"
    log.touch()

    def built(**options):
        if how == "build":
            return build(gated(), {}, "llvm", log, **options)
        config = {"relay.backend.use_auto_scheduler": True}
        with auto_scheduler.ApplyHistoryBest(str(log), **options), tvm.transform.PassContext(3, config=config):
            return relay.build(gated(), "llvm")

    ours, plain = built(), built(vector_math=False)
    assert calls(plain.get_lib()) and not calls(ours.get_lib())
    data = 3 * np.random.default_rng(5).standard_normal((4, 32, 48)).astype("float32")
    np.testing.assert_allclose(answer(ours, data), answer(plain, data), rtol=2e-5, atol=1e-7)


def test_untuned_models_stay_tvms():
    assert calls(build(gated(), {}, "llvm", schedules="tvm").get_lib())


def test_a_softmax_is_within_a_few_roundings():
    x = te.placeholder((6, 1000), name="x")
    y = topi.nn.softmax(x)
    with VectorMath():
        module = tvm.build(te.create_schedule(y.op), [x, y], "llvm")
    data = 5 * np.random.default_rng(1).standard_normal((6, 1000)).astype("float32")
    exact = np.exp(data.astype("float64") - data.max(1, keepdims=True))
    np.testing.assert_allclose(run(module, data), exact / exact.sum(1, keepdims=True), rtol=1e-5)
