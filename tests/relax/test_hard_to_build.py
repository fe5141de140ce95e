"""Models that TVM builds with its own loops, and refused with ours: they build, with TVM's answers."""

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax import build, prepare  # noqa: E402
from roller_tvm.relax.pipeline import schedule  # noqa: E402

from . import modules as M  # noqa: E402


def model(shape, made):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(made(builder, x)))
        builder.emit_func_output(out)
    return builder.get()


def zero_by_zero(builder, x):
    nothing = builder.emit(relax.op.subtract(x, x))
    return relax.op.divide(nothing, nothing)


def between_vectors(_builder, x):
    """Loops over lanes whose elements are vectors themselves, once TVM has made vectors of 13 of the rows."""
    weight = np.random.default_rng(1).standard_normal((5, 96, 4, 1)).astype("float32")
    return relax.op.nn.conv2d_transpose(x, relax.const(weight), dilation=(3, 3), padding=(0, 0, 1, 0))


def doubled(builder, x):
    """Each of 20 stages reads the one before it twice: in place of each other they are a million."""
    last = x
    for _ in range(20):
        square = builder.emit(relax.op.multiply(last, last))
        square = builder.emit(relax.op.multiply(square, relax.const(0.25, "float32")))
        last = builder.emit(relax.op.add(square, x))
    return last


CASES = {
    "doubled": ((24, 40), doubled),
    "sinh": ((8, 32), lambda _, x: relax.op.sinh(x)),
    "cosh": ((8, 32), lambda _, x: relax.op.cosh(x)),
    "atan": ((8, 32), lambda _, x: relax.op.atan(x)),
    "zero by zero": ((4, 8), zero_by_zero),
    "between vectors": ((1, 5, 1, 13), between_vectors),
}


@pytest.mark.parametrize("case", CASES)
def test_it_builds_with_the_answers_of_tvm(case):
    shape, made = CASES[case]
    mod = model(shape, made)
    x = np.random.default_rng(5).uniform(-1, 1, shape).astype("float32")
    got = relax.VirtualMachine(build(mod, M.TARGET), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, M.answer(mod, x), rtol=2e-5, atol=2e-6)


def test_stages_in_place_of_each_other_are_bound():
    """TVM's own code has 1,100 lines; without a bound ten stages are 1,000 times one, twenty a million times."""
    _, made = CASES["doubled"]
    scheduled, report = schedule(prepare(model((24, 40), made), M.TARGET), M.TARGET)
    assert [plan.how for plan in report.kernels()] == ["planned"]
    lines = code_of(scheduled).count("\n")
    assert 100 < lines < 3000


def code_of(scheduled):
    """LLVM's text of the functions of a scheduled module."""
    funcs = [f for _, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    named = {f"f{n}": f.with_attr("global_symbol", f"f{n}") for n, f in enumerate(funcs)}
    return tvm.compile(tvm.IRModule(named), M.TARGET).mod.inspect_source("ll")
