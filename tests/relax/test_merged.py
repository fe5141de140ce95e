"""Convolutions of one pixel whose rows and columns become one axis, in a built model."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax import merged  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.merged import MergeAxes  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

OP, CPU = relax.op, device("avx512")


def network():
    """Two convolutions that no blocks of channels hold, 7 pixels a row, and a sum of both inputs of the second."""
    first, second, bias = values(44, 44, 1, 1), values(44, 44, 1, 1), values(1, 44, 1, 1)

    def body(b, x):
        y = b.emit(OP.nn.relu(b.emit(OP.add(b.emit(OP.nn.conv2d(x, relax.const(first))), relax.const(bias)))))
        z = b.emit(OP.add(b.emit(OP.nn.conv2d(y, relax.const(second))), x))
        return b.emit(OP.nn.max_pool2d(z, (3, 3), strides=(3, 3)))

    def wanted(x):
        y = np.maximum(np.einsum("nchw,oc->nohw", x.astype("float64"), first[:, :, 0, 0]) + bias, 0)
        z = np.einsum("nchw,oc->nohw", y, second[:, :, 0, 0]) + x
        windows = z[:, :, :6, :6].reshape(1, 44, 2, 3, 2, 3)
        return windows.max(axis=(3, 5))

    return module(body, (1, 44, 7, 7)), values(1, 44, 7, 7), wanted


def test_pixels_are_one_axis(monkeypatch):
    mod, x, wanted = network()
    plain = PlanLayout(LLVM, CPU, only="NCHW")(mod)
    prepared = prepare(plain, LLVM, device=CPU)
    text = MergeAxes(LLVM, CPU)(prepared).script()
    assert text.count("R.Tensor((44, 49)") >= 2
    monkeypatch.setattr(merged, "GAIN", 0.0)
    (found,) = run(build(mod, LLVM), x)
    np.testing.assert_allclose(found, wanted(x), rtol=1e-4, atol=1e-4)


def test_without_a_gain_nothing_changes(monkeypatch):
    monkeypatch.setattr(merged, "GAIN", 1e9)
    mod = prepare(network()[0], LLVM, device=CPU)
    assert MergeAxes(LLVM, CPU)(mod) is mod


def test_what_is_concatenated_stays_in_place(monkeypatch):
    monkeypatch.setattr(merged, "GAIN", 0.0)
    weights = [values(12, 20, 1, 1) for _ in range(2)]

    def body(b, x):
        return b.emit(OP.concat([b.emit(OP.nn.conv2d(x, relax.const(w))) for w in weights], axis=1))

    mod = prepare(PlanLayout(LLVM, CPU, only="NCHW")(module(body, (1, 20, 7, 7))), LLVM, device=CPU)
    assert "R.reshape" not in MergeAxes(LLVM, CPU)(mod).script()
