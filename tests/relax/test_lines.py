"""LinesAsPictures: one-dimensional convolutions as two-dimensional ones, and what follows them."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.lines import LinesAsPictures  # noqa: E402
from roller_tvm.relax.pipeline import build  # noqa: E402

from .networks import LLVM, default, module, operators, run, values  # noqa: E402

OP = relax.op


def const(*shape):
    return relax.const(values(*shape))


def encoder(builder, x, y):
    """Two convolutions with what treats all elements alike between them, then rows of channels."""
    emit = builder.emit
    a = emit(OP.nn.conv1d(x, const(16, 8, 3), padding=(2, 1)))
    a = emit(OP.nn.gelu(emit(OP.add(a, emit(OP.reshape(const(16), (1, 16, 1)))))))
    a = emit(OP.multiply(emit(OP.add(a, y)), relax.const(0.5)))
    b = emit(OP.nn.relu(emit(OP.nn.conv1d(a, const(16, 1, 5), strides=2, padding=2, dilation=2, groups=16))))
    b = emit(OP.add(b, const(16, 1)))
    return emit(OP.nn.softmax(emit(OP.permute_dims(b, [0, 2, 1]))))


def both_results(builder, x):
    """A convolution that is read as a line, too; the last one is the result."""
    a = builder.emit(OP.nn.conv1d(x, const(8, 8, 3), padding=1))
    mean = builder.emit(OP.mean(a, axis=[2], keepdims=True))
    return builder.emit(OP.nn.conv1d(builder.emit(OP.add(a, mean)), const(8, 8, 1)))


@pytest.mark.parametrize("body, shapes, lines", [
    (encoder, [(2, 8, 20), (1, 16, 21)], 5),  # both inputs, the sum's reshaped constant; the result
    (both_results, [(1, 8, 12)], 4),  # the input; for the mean; this; the result
])  # fmt: skip
def test_what_lies_between_two_convolutions_stays_a_picture(body, shapes, lines):
    mod, inputs = module(body, *shapes), [values(*shape) for shape in shapes]
    made = LinesAsPictures()(mod)
    relax.analysis.well_formed(made)  # raises
    found = operators(made)
    assert found.count("nn.conv2d") == 2 and "nn.conv1d" not in found
    assert found.count("reshape") == lines
    (wanted,) = default(mod, *inputs)
    for result in (default(made, *inputs), run(build(mod, LLVM), *inputs)):
        np.testing.assert_allclose(result[0], wanted, rtol=1e-4, atol=1e-5)


def test_what_is_open_or_in_another_layout_stays():
    def last(builder, x):
        return builder.emit(OP.nn.conv1d(x, const(8, 3, 8), data_layout="NWC", kernel_layout="OWI"))

    def by_input(builder, x, w):
        return builder.emit(OP.nn.conv1d(x, w))

    def plain(builder, x):
        return builder.emit(OP.nn.conv1d(x, const(8, 8, 3)))

    length = tvm.tirx.Var("n", "int64")
    for mod in (module(last, (1, 12, 8)), module(by_input, (1, 8, 12), (8, 8, 3)), module(plain, (1, 8, length))):
        assert operators(LinesAsPictures()(mod)).count("nn.conv1d") == 1
