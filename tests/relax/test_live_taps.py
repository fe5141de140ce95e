"""Taps that meet nothing but padding are dropped, and no others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
tvm_ffi = pytest.importorskip("tvm_ffi")

from tvm import relax  # noqa: E402

from roller_tvm.relax.live_taps import LiveTaps, live  # noqa: E402
from roller_tvm.relax.pipeline import build  # noqa: E402

from .networks import LLVM, default, module, run, values  # noqa: E402


def of(shape, weights, **options):
    def body(builder, x):
        return builder.emit(relax.op.nn.conv2d(x, relax.const(weights), **options))

    return module(body, shape)


def window(mod):
    """Return the shape of the constant of a module's only convolution."""
    bound = (b.value for block in mod["main"].body.blocks for b in block.bindings)
    (found,) = (v.args[1] for v in bound if getattr(getattr(v, "op", None), "name", "") == "relax.nn.conv2d")
    return tuple(int(e) for e in found.ty.shape.values)


@pytest.mark.parametrize("shape, kernel, options, kept", [
    ((1, 8, 7, 9), (16, 8, 3, 3), {"padding": 8, "dilation": 8}, (16, 8, 1, 3)),
    ((1, 8, 7, 9), (16, 8, 3, 3), {"padding": 9, "dilation": 9}, (16, 8, 1, 1)),
    ((1, 8, 7, 7), (8, 1, 5, 3), {"padding": (8, 4), "dilation": (4, 4), "groups": 8}, (8, 1, 3, 3)),
    ((1, 7, 7, 8), (5, 1, 8, 16), {"padding": (16, 0), "dilation": (8, 1), "data_layout": "NHWC",
                                   "kernel_layout": "HWIO"}, (1, 1, 8, 16)),
    ((1, 8, 9, 9), (16, 8, 3, 3), {"padding": 12, "dilation": 12, "strides": 2}, (16, 8, 1, 1)),
])  # fmt: skip
def test_dead_taps_are_dropped(shape, kernel, options, kept):
    weights, x = values(*kernel) - np.float32(0.5), values(*shape)
    mod = of(shape, weights, **options)
    assert window(LiveTaps()(mod)) == kept
    np.testing.assert_allclose(run(build(mod, LLVM), x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)


def test_of_an_open_batch():
    batch = tvm.tirx.Var("n", "int64")
    mod = of((batch, 8, 7, 7), values(16, 8, 3, 3), padding=8, dilation=8)
    assert window(LiveTaps()(mod)) == (16, 8, 1, 1)


@pytest.mark.parametrize("shape, kernel, options", [
    ((1, 8, 7, 9), (16, 8, 3, 3), {"padding": 6, "dilation": 6}),  # each tap meets some element
    ((1, 8, 5, 5), (16, 8, 2, 2), {"padding": (9, 9, 0, 0), "dilation": 10}),  # no negative padding
    ((1, 8, 7, 7), (16, 8, 3, 3), {"padding": 1}),
])  # fmt: skip
def test_others_stay(shape, kernel, options):
    mod = of(shape, values(*kernel), **options)
    assert tvm_ffi.structural_equal(LiveTaps()(mod), mod)


def test_infinite_weights_stay():
    weights = np.full((1, 1, 3, 3), np.inf, "float32")
    mod = of((1, 1, 4, 4), weights, padding=8, dilation=8)
    assert tvm_ffi.structural_equal(LiveTaps()(mod), mod)


@given(*(st.integers(1, most) for most in (12, 5, 3, 8)), st.integers(0, 12), st.integers(0, 12))
def test_what_is_dropped_meets_no_element(extent, taps, stride, dilation, before, after):
    results = (extent + before + after - (taps - 1) * dilation - 1) // stride + 1
    if results < 1:
        return
    kept = live(extent, results, taps, stride, dilation, (before, after))
    met = {t for t in range(taps) for o in range(results) if 0 <= o * stride + t * dilation - before < extent}
    assert met <= set(range(taps)[kept])
