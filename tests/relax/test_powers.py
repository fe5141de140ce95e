"""Powers by 2 and 3 become products; others, and those of integers, stay."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.pipeline import build  # noqa: E402
from roller_tvm.relax.powers import PowersAsProducts  # noqa: E402

from .networks import LLVM, module, run, values  # noqa: E402


def powers(mod):
    return str(PowersAsProducts()(mod)).count("R.power")


def of(exponent, dtype="float32"):
    def body(builder, x):
        x = builder.emit(relax.op.astype(x, dtype)) if dtype != "float32" else x
        power = builder.emit(relax.op.power(x, relax.const(exponent, dtype)))
        return builder.emit(relax.op.astype(power, "float32")) if dtype != "float32" else power

    return module(body, (3, 5))


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_products(exponent):
    mod, x = of(exponent), values(3, 5) - np.float32(0.5)
    assert powers(mod) == 0
    np.testing.assert_allclose(run(build(mod, LLVM), x)[0], x**exponent, rtol=1e-6)


def test_others_stay():
    assert powers(of(0.5)) == powers(of(2.5)) == powers(of(2, "int32")) == 1
    mod = module(lambda builder, x: builder.emit(relax.op.power(x, relax.const(np.full((3, 1), 2, "float32")))), (5,))
    assert powers(mod) == 1, "the exponent makes the result larger"
