"""Named operators: their values against numpy, their flops, and what they refuse."""

import itertools

import numpy as np
import pytest

from roller_tvm.errors import BadInput, UsageError
from roller_tvm.ir.operators import normalize, operator, operator_names, parse_operator
from roller_tvm.ir.parameters import Window


def evaluate(expression, arrays):
    """The anchor point by point through its resolved accesses: products or copies, summed or maximised."""
    anchor = expression.anchor
    reads = expression.resolve(anchor, [s.name for s in expression.prologues if not s.reduce])
    out = np.full(anchor.shape, -np.inf if anchor.combiner == "max" else 0.0)
    write = anchor.write()
    for values in itertools.product(*(range(a.extent) for a in anchor.axes)):
        point = dict(zip((a.name for a in anchor.axes), values, strict=True))
        term = 1.0
        for access in reads:
            array = arrays[access.tensor]
            where = tuple(i.value(point) for i in access.indices)
            inside = all(0 <= x < e for x, e in zip(where, array.shape, strict=True))
            assert inside or access.guarded
            term *= array[where] if inside else (-np.inf if anchor.combiner == "max" else 0.0)
        target = tuple(i.value(point) for i in write.indices)
        out[target] = max(out[target], term) if anchor.combiner == "max" else out[target] + term
    return out


def random_inputs(expression):
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape) for t in expression.inputs}


def same(size, kernel, stride, dilation):
    """TensorFlow's SAME, as its documentation has it."""
    reach = (kernel - 1) * dilation + 1
    total = max(reach - (stride if size % stride == 0 else size % stride), 0)
    return total // 2, total - total // 2


def convolve(data, weight, stride, dilation, pads, groups=1):
    """NCHW convolution by numpy's sliding windows."""
    data = np.pad(data, ((0, 0), (0, 0), *pads))
    kh, kw = weight.shape[2:]
    reach = ((kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1)
    windows = np.lib.stride_tricks.sliding_window_view(data, reach, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    parts = zip(np.split(windows, groups, 1), np.split(weight, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwyx,fcyx->nfhw", w, k) for w, k in parts], 1)


@pytest.mark.parametrize(
    ("stride", "dilation", "kernel", "groups"),
    [((1, 1), (1, 1), (3, 3), 1), ((2, 1), (1, 1), (2, 5), 1), ((2, 2), (1, 2), (3, 2), 1),
     ((1, 1), (1, 1), (3, 3), 2), ((2, 2), (1, 1), (3, 3), 4)],
)  # fmt: skip
def test_conv2d_same_against_numpy(stride, dilation, kernel, groups):
    params = dict(n=1, c=4, h=7, w=6, f=8, kh=kernel[0], kw=kernel[1], stride=stride, dilation=dilation)
    pads = [same(size, k, s, d) for size, k, s, d in zip((7, 6), kernel, stride, dilation, strict=True)]
    nchw = operator("conv2d_nchw", padding="SAME", groups=groups, **params)
    arrays = random_inputs(nchw)
    expected = convolve(arrays["data"], arrays["weight"], stride, dilation, pads, groups)
    np.testing.assert_allclose(evaluate(nchw, arrays), expected)
    nhwc = operator("conv2d_nhwc", padding="SAME", groups=groups, **params)
    arrays = {"data": arrays["data"].transpose(0, 2, 3, 1), "weight": arrays["weight"].transpose(2, 3, 1, 0)}
    np.testing.assert_allclose(evaluate(nhwc, arrays), expected.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_is_a_convolution_in_as_many_groups(multiplier):
    params = dict(n=2, c=3, h=7, w=5, kh=3, kw=2, stride=2, padding="1x0x2x1", multiplier=multiplier)
    nchw = operator("depthwise_conv2d_nchw", **params)
    arrays = random_inputs(nchw)
    weight = arrays["weight"].reshape(3 * multiplier, 1, 3, 2)
    expected = convolve(arrays["data"], weight, (2, 2), (1, 1), [(1, 2), (0, 1)], groups=3)
    np.testing.assert_allclose(evaluate(nchw, arrays), expected)
    nhwc = operator("depthwise_conv2d_nhwc", **params)
    arrays = {"data": arrays["data"].transpose(0, 2, 3, 1), "weight": arrays["weight"].transpose(2, 3, 0, 1)}
    np.testing.assert_allclose(evaluate(nhwc, arrays), expected.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_products_against_numpy(layout):
    for name, batch in (("matmul", {}), ("batch_matmul", {"b": 2})):
        expression = operator(name, m=3, n=4, k=5, layout=layout, **batch)
        arrays = random_inputs(expression)
        left = arrays["A"] if layout[0] == "N" else arrays["A"].swapaxes(-1, -2)
        right = arrays["B"] if layout[1] == "N" else arrays["B"].swapaxes(-1, -2)
        np.testing.assert_allclose(evaluate(expression, arrays), left @ right)


def test_pools_and_reductions_against_numpy():
    pool = operator("max_pool2d_nchw", n=1, c=2, h=6, w=6, k=3, stride=2, padding=1)
    data = random_inputs(pool)["data"]
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    np.testing.assert_allclose(evaluate(pool, {"data": data}), windows.max((4, 5)))
    for name, function in (("reduce_sum", np.sum), ("reduce_max", np.max)):
        expression = operator(name, shape="2x2x6x6", axis="1,-1")
        np.testing.assert_allclose(evaluate(expression, {"data": data.reshape(1, 2, 6, 6).repeat(2, 0)}),
                                   function(data.repeat(2, 0), (1, 3)))  # fmt: skip
    whole = operator("global_avg_pool2d_nchw", n=1, c=2, h=6, w=6)
    np.testing.assert_allclose(evaluate(whole, {"data": data}), data.sum((2, 3), keepdims=True))


def test_same_padding_puts_the_larger_half_after():
    assert [(w.before, w.after, w.out) for w in (
        Window.fit("t", "h", 5, 2, 1, 1, "SAME", 0),
        Window.fit("t", "h", 224, 7, 2, 1, "SAME", 0),
        Window.fit("t", "h", 42, 1, 2, 1, "SAME", 0),
    )] == [(0, 1, 5), (2, 3, 112), (0, 0, 21)]  # fmt: skip


def test_flops():
    assert operator("conv2d_nchw", n=2, c=3, h=8, w=8, f=5, k=3).flops == 2 * 2 * 5 * 6 * 6 * 3 * 3 * 3
    assert operator("matmul", m=4, n=5, k=6, bias=1, relu=1).flops == 2 * 4 * 5 * 6 + 2 * 4 * 5
    assert operator("softmax", shape="3x4").flops == 12 * (1 + 2 + 1 + 1)


def test_text_and_numbers_are_the_same():
    words = "conv2d_nchw n=1 c=4 h=8 w=8 f=4 kh=3 kw=3 stride=2 padding=same bias=1"
    values = dict(n=1, c=4, h=8, w=8, f=4, k=3, stride=(2, 2), padding="SAME", bias=True)
    assert parse_operator(words.split(" ")) == operator("conv2d_nchw", **values)
    assert normalize("relu", {"shape": [2, 3]})["shape"] == (2, 3)


@pytest.mark.parametrize(
    ("words", "error", "names"),
    [
        ("", UsageError, ["no operator", "conv2d_nchw"]),
        ("sofmax shape=3", UsageError, ["sofmax", "did you mean softmax", "conv2d_nchw", "matmul"]),
        ("matmul m=1 n=2", UsageError, ["'k'", "missing"]),
        ("matmul m=1 n=2 k=3 q=4", UsageError, ["'q'", "layout"]),
        ("matmul m=1 n=2 k", UsageError, ["'k'", "name=value"]),
        ("matmul m=1 m=2 n=3 k=4", UsageError, ["'m'", "twice"]),
        ("matmul m=0 n=2 k=3", BadInput, ["'m'", ">= 1", "got 0"]),
        ("matmul m=1.5 n=2 k=3", BadInput, ["'m'", "got 1.5"]),
        ("matmul m=1 n=2 k=3 dtype=float31", BadInput, ["'dtype'", "float16"]),
        ("matmul m=1 n=2 k=3 layout=AB", BadInput, ["'layout'", "NT"]),
        ("matmul m=1 n=2 k=3 bias=maybe", BadInput, ["'bias'", "0 or 1"]),
        ("matmul m=65536 n=65536 k=2", BadInput, ["matmul", "2147483647", "split"]),
        ("conv2d_nchw n=1 c=4 h=2 w=9 f=4 k=3", BadInput, ["'kh'=3", "'h' has 2", "'kh' <= 2"]),
        ("conv2d_nchw n=1 c=4 h=9 w=9 f=6 k=3 groups=4", BadInput, ["'groups'=4", "'f'=6"]),
        ("conv2d_nchw n=1 c=4 h=9 w=9 f=6 k=3 padding=-1", BadInput, ["'padding'", "SAME"]),
        ("conv2d_nchw n=1 c=4 h=9 w=9 f=6 k=3 padding=1x1x1", BadInput, ["'padding'", "SAME"]),
        ("conv2d_nchw n=1 c=4 h=9 w=9 f=6 k=3 stride=0", BadInput, ["'stride'"]),
        ("max_pool2d n=1 c=4 h=9 w=9 k=3 kind=avg", BadInput, ["'kind'", "avg_pool2d_nchw"]),
        ("reduce_sum shape=3x4 axis=2", BadInput, ["'axis' 2", "between -2 and 1"]),
        ("softmax shape=3x4 axis=0,1", BadInput, ["'axis'", "one axis"]),
        ("transpose shape=3x4 perm=0,0", BadInput, ["'perm'", "permutation"]),
        ("add shape=3x4 other=3", BadInput, ["'other'", "broadcast"]),
        ("relu shape=", UsageError, ["name=value"]),
        ("relu shape=3xq", BadInput, ["'shape'", "128x256"]),
    ],
)
def test_mistakes_are_named(words, error, names):
    with pytest.raises(error) as caught:
        parse_operator(words.split())
    assert caught.value.remedy
    for name in names:
        assert name in str(caught.value)


def test_names_are_sorted_and_documented():
    assert operator_names() == sorted(operator_names())
