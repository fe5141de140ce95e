"""Operators of topi and of plain TE by family: name -> function that makes [inputs..., outputs...].

Shapes are small and leave awkward remainders.
"""

from __future__ import annotations

from functools import partial

import tvm
from tvm import te, topi

tir = tvm.tir if hasattr(tvm, "tir") else tvm.tirx  # the Relax line renamed it


def x(*shape, dtype="float32", name="x"):
    return te.placeholder(shape, dtype, name=name)


def w(*shape, dtype="float32"):
    return x(*shape, dtype=dtype, name="w")


def of(function, *arguments, **named):
    """The tensors among the arguments of a function of topi, and what it makes of them."""
    result = function(*arguments, **named)
    several = isinstance(result, list | tuple) or type(result).__name__ == "Array"
    return [*(a for a in arguments if isinstance(a, te.Tensor)), *(result if several else [result])]


def unary(function, *shape, dtype="float32", **arguments):
    return of(function, x(*shape, dtype=dtype), **arguments)


nn, image = topi.nn, topi.image

CONVOLUTIONS = {
    "conv1d ncw": lambda: of(nn.conv1d_ncw, x(2, 5, 19), w(6, 5, 3), 2, 1, 1),
    "conv1d nwc dilated": lambda: of(nn.conv1d_nwc, x(1, 20, 6), w(3, 6, 10), 1, 2, 2),
    "conv1d grouped": lambda: of(nn.group_conv1d_ncw, x(1, 6, 17), w(8, 3, 3), 1, 1, 1, 2),
    "conv1d transposed": lambda: of(nn.conv1d_transpose_ncw, x(1, 5, 9), w(5, 6, 4), (2,), (1, 1), "float32", (0,)),
    "conv2d nchw": lambda: of(nn.conv2d_nchw, x(1, 7, 13, 11), w(10, 7, 3, 3), 1, 1, 1),
    "conv2d nchw strided": lambda: of(nn.conv2d_nchw, x(2, 4, 15, 15), w(6, 4, 5, 3), 2, (1, 2), 1),
    "conv2d nhwc": lambda: of(nn.conv2d_nhwc, x(1, 12, 9, 6), w(3, 3, 6, 17), 1, 1, 1),
    "conv2d hwcn": lambda: of(nn.conv2d_hwcn, x(9, 9, 6, 4), w(3, 3, 6, 8), 1, 1, 1),
    "conv2d 1x1": lambda: of(nn.conv2d_nchw, x(1, 12, 7, 7), w(20, 12, 1, 1), 1, 0, 1),
    "conv2d dilated": lambda: of(nn.conv2d_nchw, x(1, 4, 14, 14), w(8, 4, 3, 3), 1, 2, 2),
    "conv2d grouped": lambda: of(nn.group_conv2d_nchw, x(1, 12, 9, 9), w(18, 4, 3, 3), 1, 1, 1, 3),
    "conv2d grouped nhwc": lambda: of(nn.group_conv2d_nhwc, x(1, 8, 8, 12), w(3, 3, 4, 18), 1, 1, 1, 3),
    "conv2d transposed": lambda: of(nn.conv2d_transpose_nchw, x(1, 6, 7, 7), w(6, 5, 4, 4), (2, 2), (1, 1, 1, 1),
                                    "float32", (0, 0)),
    "conv2d transposed with output padding": lambda: of(
        nn.conv2d_transpose_nchw, x(1, 4, 5, 6), w(4, 6, 3, 3), (2, 2), (1, 1, 1, 1), "float32", (1, 1)),
    "conv2d transposed grouped": lambda: of(
        nn.group_conv2d_transpose_nchw, x(1, 6, 5, 5), w(6, 4, 3, 3), (2, 2), (1, 1, 1, 1), "float32", (0, 0), 2),
    "conv2d depthwise": lambda: of(nn.depthwise_conv2d_nchw, x(1, 9, 11, 13), w(9, 1, 3, 3), (1, 1), (1, 1), 1),
    "conv2d depthwise strided, multiplied": lambda: of(
        nn.depthwise_conv2d_nchw, x(1, 6, 11, 11), w(6, 2, 3, 3), (2, 2), (1, 1), 1),
    "conv2d depthwise nhwc dilated": lambda: of(
        nn.depthwise_conv2d_nhwc, x(1, 10, 10, 20), w(3, 3, 20, 1), (1, 1), (2, 2), (2, 2)),
    "conv2d deformable": lambda: of(
        nn.deformable_conv2d_nchw, x(1, 4, 7, 7), x(1, 18, 7, 7, name="offset"), w(6, 4, 3, 3), 1, 1, 1, 1, 1,
        "float32"),
    "conv2d deformable nhwc": lambda: of(
        nn.deformable_conv2d_nhwc, x(1, 6, 6, 4), x(1, 6, 6, 18, name="offset"), w(3, 3, 4, 6), 1, 1, 1, 1, 1,
        "float32"),
    "conv2d winograd": lambda: of(
        nn.conv2d_winograd_nhwc, x(1, 9, 9, 8), w(3, 3, 8, 12), (1, 1), (1, 1), (1, 1), "float32"),
    "conv3d ncdhw": lambda: of(nn.conv3d_ncdhw, x(1, 3, 7, 8, 9), w(4, 3, 3, 3, 3), 1, 1, 1, 1),
    "conv3d ndhwc strided": lambda: of(nn.conv3d_ndhwc, x(1, 6, 9, 9, 5), w(3, 3, 3, 5, 6), 2, 1, 1, 1),
    "conv3d transposed": lambda: of(nn.conv3d_transpose_ncdhw, x(1, 3, 4, 4, 4), w(3, 4, 3, 3, 3), (2, 2, 2),
                                    (1, 1, 1), "float32", (0, 0, 0)),
    "correlation": lambda: of(nn.correlation_nchw, x(1, 4, 8, 8), x(1, 4, 8, 8, name="y"), 1, 2, 1, 1, 2, True),
}  # fmt: skip


def conv_epilogue(dtype="float32"):
    a, k = x(1, 6, 9, 9, dtype=dtype), w(8, 6, 3, 3, dtype=dtype)
    bias, skip = x(8, 1, 1, dtype=dtype, name="bias"), x(1, 8, 9, 9, dtype=dtype, name="skip")
    return [a, k, bias, skip, topi.nn.relu(nn.conv2d_nchw(a, k, 1, 1, 1) + bias + skip)]


def attention():
    q, k, v = (x(3, 10, 8, name=n) for n in "qkv")
    scores = nn.softmax(nn.batch_matmul(q, k) * tir.const(0.35, "float32"))
    return [q, k, v, nn.batch_matmul(scores, v, transpose_b=False)]


def einsum(formula, *shapes):
    operands = [x(*s, name="xyz"[n]) for n, s in enumerate(shapes)]
    return [*operands, topi.einsum(formula, *operands)]


PRODUCTS = {
    "dense": lambda: of(nn.dense, x(5, 24), w(13, 24)),
    "dense bias": lambda: of(nn.dense, x(17, 30), w(24, 30), x(24, name="b")),
    "matmul": lambda: of(topi.matmul, x(12, 20), w(20, 14)),
    "matmul transposed": lambda: of(nn.matmul, x(20, 12), w(20, 14), None, "float32", True, False),
    "matrix and vector": lambda: of(topi.matmul, x(31, 40), w(40, 1)),
    "batch matmul": lambda: of(nn.batch_matmul, x(3, 7, 12), x(3, 10, 12, name="y")),
    "batch matmul broadcast": lambda: of(nn.batch_matmul, x(3, 7, 12), x(1, 10, 12, name="y")),
    "tensordot": lambda: of(topi.tensordot, x(4, 5, 6), w(6, 5, 7), [[1, 2], [1, 0]]),
    "einsum outer": lambda: einsum("i,j->ij", (9,), (11,)),
    "einsum attention": lambda: einsum("bqhd,bkhd->bhqk", (2, 5, 3, 8), (2, 7, 3, 8)),
    "einsum three": lambda: einsum("ij,jk,kl->il", (4, 5), (5, 6), (6, 3)),
    "einsum trace": lambda: einsum("ii->", (9, 9)),
    "convolution with epilogue": conv_epilogue,
    "attention": attention,
}


def typed(function, one, other, dtypes, *arguments, **named):
    return of(function, x(*one, dtype=dtypes[0]), w(*other, dtype=dtypes[1]), *arguments, **named)


int8, mixed, half = ("int8", "int8"), ("uint8", "int8"), ("float16", "float16")
TYPES = {
    "dense int8": lambda: typed(nn.dense, (6, 32), (16, 32), int8, out_dtype="int32"),
    "dense uint8 int8": lambda: typed(nn.dense, (6, 32), (16, 32), mixed, out_dtype="int32"),
    "dense float16": lambda: typed(nn.dense, (6, 24), (18, 24), half),
    "dense float16 to float32": lambda: typed(nn.dense, (6, 24), (18, 24), half, out_dtype="float32"),
    "conv2d int8": lambda: typed(nn.conv2d_nchw, (1, 8, 9, 9), (12, 8, 3, 3), int8, 1, 1, 1, "int32"),
    "conv2d nhwc int8": lambda: typed(nn.conv2d_nhwc, (1, 8, 8, 8), (3, 3, 8, 16), int8, 1, 1, 1, "int32"),
    "conv2d float16": partial(conv_epilogue, "float16"),
    "conv2d float16 to float32": lambda: typed(
        nn.conv2d_nhwc, (1, 8, 8, 8), (3, 3, 8, 16), half, 1, 1, 1, "float32"),
    "depthwise int8": lambda: typed(
        nn.depthwise_conv2d_nchw, (1, 8, 9, 9), (8, 1, 3, 3), int8, (1, 1), (1, 1), 1, out_dtype="int32"),
    "batch matmul int8": lambda: typed(nn.batch_matmul, (3, 8, 16), (3, 12, 16), int8, out_dtype="int32"),
    "batch matmul float16 to float32": lambda: typed(
        nn.batch_matmul, (2, 9, 16), (2, 12, 16), half, out_dtype="float32"),
    "requantize": lambda: unary(lambda a: topi.cast(topi.clip(topi.right_shift(
        topi.add(topi.cast(a, "int32") * 13, 64), 7), -128, 127), "int8"), 3, 50, dtype="int8"),
    "sum float16": lambda: unary(topi.sum, 9, 40, dtype="float16", axis=1),
    "max int8": lambda: unary(topi.max, 9, 40, dtype="int8", axis=1),
    "sum int64": lambda: unary(topi.sum, 9, 40, dtype="int64", axis=0),
    "softmax float16": lambda: unary(nn.softmax, 7, 30, dtype="float16"),
    "float64": lambda: unary(topi.exp, 7, 30, dtype="float64"),
    "logical": lambda: unary(lambda a: topi.logical_not(topi.greater(a, 0.0)), 5, 19),
    "mixed inputs": lambda: [*(i := [x(5, 9), x(5, 9, dtype="int32", name="y"), x(9, dtype="float16", name="z")]),
                             topi.cast(i[1], "float32") * i[0] + topi.cast(i[2], "float32")],
}  # fmt: skip


def pool(kind, shape=(2, 5, 13, 13), window=3, stride=2, pad=1, counted=True, layout="NCHW", ceil=False, dilation=1):
    rank = len(shape) - 2
    function = {1: nn.pool1d, 2: nn.pool2d, 3: nn.pool3d}[rank]
    every = [[value] * rank for value in (window, stride, dilation)]
    return of(function, x(*shape), *every, [pad] * 2 * rank, kind, ceil, layout, counted)


POOLING = {
    **{f"{kind} pool {rank}d": partial(pool, kind, (1, 3, 11, 9, 10)[: rank + 2], layout=layout)
       for kind in ("max", "avg") for rank, layout in ((1, "NCW"), (2, "NCHW"), (3, "NCDHW"))},
    "avg pool without padding": partial(pool, "avg", counted=False),
    "avg pool without padding 3d": partial(pool, "avg", (1, 3, 6, 7, 8), counted=False, layout="NCDHW"),
    "avg pool stride 1": partial(pool, "avg", stride=1),
    "avg pool nhwc": partial(pool, "avg", (1, 9, 9, 12), layout="NHWC", counted=False),
    "max pool nhwc": partial(pool, "max", (1, 9, 9, 12), layout="NHWC"),
    "max pool ceil": partial(pool, "max", (1, 4, 12, 12), 2, 2, 0, ceil=True),
    "avg pool ceil": partial(pool, "avg", (1, 4, 12, 13), 3, 2, 1, False, ceil=True),
    "max pool dilated": partial(pool, "max", dilation=2),
    "global avg pool": lambda: unary(nn.global_pool, 2, 6, 7, 7, pool_type="avg"),
    "global max pool nhwc": lambda: unary(nn.global_pool, 2, 7, 7, 6, pool_type="max", layout="NHWC"),
    "adaptive avg pool": lambda: unary(nn.adaptive_pool, 1, 6, 12, 12, output_size=(3, 4), pool_type="avg"),
    "pool gradient": lambda: of(nn.pool_grad, x(1, 3, 4, 4), x(1, 3, 8, 8, name="y"), [2, 2], [2, 2], [0] * 4, "max"),
}  # fmt: skip

UNEVEN = {
    "adaptive avg pool uneven": lambda: unary(nn.adaptive_pool, 1, 6, 7, 10, output_size=(3, 4), pool_type="avg"),
    "adaptive max pool uneven": lambda: unary(nn.adaptive_pool, 1, 6, 10, 10, output_size=(3, 3), pool_type="max"),
    "adaptive avg pool 3d uneven": lambda: unary(
        nn.adaptive_pool3d, 1, 2, 5, 6, 7, output_size=(2, 3, 3), pool_type="avg"),
}  # fmt: skip


def tuple_reduction(both=True):
    """Largest value and its place, by a reducer of our own; all results of the reduction are outputs."""
    a = x(7, 30)
    k = te.reduce_axis((0, 30), "k")

    def combine(left, right):
        take = left[1] >= right[1]
        return tir.Select(take, left[0], right[0]), tir.Select(take, left[1], right[1])

    best = te.comm_reducer(combine, lambda i, v: (tir.const(-1, i), te.min_value(v)), name="best")
    place, value = te.compute((7,), lambda i: best((k.var, a[i, k]), axis=k), name="best")
    if both:
        return [a, place, value]
    return [a, te.compute((7,), lambda i: value[i] + place[i].astype("float32"), name="out")]


def running_sum():
    a, k = x(5, 17), te.reduce_axis((0, 17), "k")
    zero = tir.const(0, "float32")
    return [a, te.compute((5, 17), lambda i, j: te.sum(tir.if_then_else(k <= j, a[i, k], zero), axis=k), name="runs")]


REDUCTIONS = {
    "sum last": lambda: unary(topi.sum, 13, 50, axis=1),
    "sum first": lambda: unary(topi.sum, 37, 20, axis=0),
    "sum middle keepdims": lambda: unary(topi.sum, 3, 17, 10, axis=1, keepdims=True),
    "sum outer and inner": lambda: unary(topi.sum, 5, 6, 7, 9, axis=(0, 2)),
    "sum all": lambda: unary(topi.sum, 11, 13),
    "max of negatives": lambda: unary(lambda a: topi.max(topi.negative(topi.abs(a)), axis=-1), 9, 21),
    "min": lambda: unary(topi.min, 4, 9, 16, axis=(1, 2)),
    "prod": lambda: unary(topi.prod, 6, 9, axis=1),
    "all": lambda: unary(topi.all, 6, 19, dtype="bool", axis=1),
    "any": lambda: unary(topi.any, 6, 19, dtype="bool", axis=0),
    "argmax last": lambda: unary(topi.argmax, 9, 33, axis=1),
    "argmax first": lambda: unary(topi.argmax, 33, 10, axis=0),
    "argmax all": lambda: unary(topi.argmax, 9, 13),
    "argmin middle": lambda: unary(topi.argmin, 4, 15, 6, axis=1),
    "argmin last index": lambda: unary(topi.argmin, 6, 40, axis=1, select_last_index=True),
    "tuple reduction": tuple_reduction,
    "tuple reduction used": partial(tuple_reduction, False),
    "variance": lambda: unary(lambda a: topi.sum(topi.power(a - topi.sum(a, 1, True) / 30.0, 2.0), axis=1), 8, 30),
    "logsumexp": lambda: unary(lambda a: topi.log(topi.sum(topi.exp(a - topi.max(a, 1, True)), 1, True)) + 1.0, 8, 30),
    "running sum": running_sum,
    "long": lambda: unary(topi.sum, 2, 5000, axis=1),
}


def layer_norm(dtype="float32"):
    a = x(3, 7, 24, dtype=dtype)
    scale, shift = x(24, dtype=dtype, name="scale"), x(24, dtype=dtype, name="shift")
    return of(nn.layer_norm, a, scale, shift, axis=[2])


def layer_norm_from_parts():
    """As exporters write it."""
    a, scale = x(5, 40), x(40, name="scale")
    mean = topi.sum(a, -1, True) / 40.0
    centred = a - mean
    variance = topi.sum(centred * centred, -1, True) / 40.0
    return [a, scale, centred / topi.sqrt(variance + 1e-5) * scale]


def batch_norm(training):
    channels = (x(5, name=n) for n in ("scale", "shift", "mean", "var"))
    return of(nn.batch_norm, x(2, 5, 6, 6), *channels, axis=1, training=training)


NORMS = {
    "softmax": lambda: unary(nn.softmax, 9, 37),
    "softmax axis 1": lambda: unary(nn.softmax, 2, 11, 6, axis=1),
    "softmax 4d": lambda: unary(nn.softmax, 2, 3, 5, 16),
    "fast softmax": lambda: unary(nn.fast_softmax, 6, 20),
    "log softmax": lambda: unary(nn.log_softmax, 9, 37),
    "layer norm": layer_norm,
    "layer norm float16": partial(layer_norm, "float16"),
    "layer norm from parts": layer_norm_from_parts,
    "group norm": lambda: of(nn.group_norm, x(2, 6, 5, 5), x(6, name="scale"), x(6, name="shift"), 3, 1, [2, 3]),
    "instance norm": lambda: of(nn.instance_norm, x(2, 5, 7, 6), x(7, 6, name="scale"), x(7, 6, name="shift"), [2, 3]),
    "rms norm": lambda: of(nn.rms_norm, x(5, 24), x(24, name="scale"), [1]),
    "batch norm inference": partial(batch_norm, False),
    "batch norm training": partial(batch_norm, True),
    "lrn": lambda: unary(nn.lrn, 1, 9, 5, 5, size=5),
    "l2 normalize": lambda: unary(lambda a: a / topi.sqrt(topi.sum(a * a, 1, True) + 1e-6), 3, 14, 5),
}  # fmt: skip


def ids(*shape):
    return x(*shape, dtype="int32", name="ids")


def tall(function, *shape):
    """A border of two elements."""
    pads = [0] * (len(shape) - 2) + [2, 2]
    return unary(function, *shape, pad_before=pads, pad_after=pads)


def edge_pad():
    a = x(1, 3, 6, 7)

    def value(n, c, i, j):
        return a[n, c, te.max(te.min(i - 2, 5), 0), te.max(te.min(j - 1, 6), 0)]

    return [a, te.compute((1, 3, 10, 9), value, name="edge")]


MOVEMENT = {
    "transpose": lambda: unary(topi.transpose, 5, 6, 7, axes=(2, 0, 1)),
    "transpose 2d": lambda: unary(topi.transpose, 17, 33),
    "reshape": lambda: unary(topi.reshape, 6, 14, newshape=(4, 21)),
    "flatten": lambda: unary(nn.flatten, 3, 4, 5),
    "expand and squeeze": lambda: unary(lambda a: topi.squeeze(topi.expand_dims(a, 1), [1]), 4, 9),
    "layout transform": lambda: unary(topi.layout_transform, 1, 16, 5, 5, src_layout="NCHW", dst_layout="NCHW8c"),
    "concatenate": lambda: of(
        lambda *t: topi.concatenate(t, 1), x(2, 3, 9), x(2, 5, 9, name="y"), x(2, 1, 9, name="z")),
    "concatenate last": lambda: of(lambda *t: topi.concatenate(t, -1), x(4, 7), x(4, 10, name="y")),
    "concatenate and relu": lambda: of(lambda *t: nn.relu(topi.concatenate(t, 0)), x(3, 10), x(4, 10, name="y")),
    "stack": lambda: of(lambda *t: topi.stack(t, 0), x(3, 5), x(3, 5, name="y")),
    "split": lambda: unary(topi.split, 4, 12, indices_or_sections=3, axis=1),
    "split uneven": lambda: unary(topi.split, 4, 12, indices_or_sections=(3, 5), axis=1),
    "strided slice": lambda: unary(topi.strided_slice, 9, 14, begin=[1, 2], end=[8, 13], strides=[2, 3]),
    "strided slice backwards": lambda: unary(topi.strided_slice, 9, 14, begin=[8, 13], end=[0, 2], strides=[-1, -2]),
    "flip": lambda: unary(topi.flip, 5, 11, axis=1),
    "reverse sequence": lambda: of(topi.reverse_sequence, x(6, 4), ids(4), seq_axis=0, batch_axis=1),
    "take": lambda: of(topi.take, x(9, 6), ids(5), axis=0),
    "take wrap": lambda: of(topi.take, x(9, 6), ids(5), axis=1, mode="wrap"),
    "take fast": lambda: of(topi.take, x(9, 16), ids(2, 5), axis=0, mode="fast"),
    "gather": lambda: of(topi.gather, x(6, 9), 1, ids(6, 4)),
    "gather nd": lambda: of(topi.gather_nd, x(5, 6, 7), ids(2, 9)),
    "embedding": lambda: of(lambda t, i: topi.take(t, i, axis=0) + 1.0, x(50, 20), ids(3, 7)),
    "where": lambda: [*(i := [x(4, 9, dtype="bool", name="c"), x(4, 9), x(4, 9, name="y")]), topi.where(*i)],
    "one hot": lambda: of(
        topi.one_hot, ids(7), tir.const(1.0, "float32"), tir.const(0.0, "float32"), 11, -1, "float32"),
    "sequence mask": lambda: of(topi.sequence_mask, x(6, 4, 5), ids(4), axis=0),
    "pad constant": partial(tall, nn.pad, 1, 3, 7, 9),
    "pad edge": edge_pad,
    "pad mirror": partial(tall, nn.mirror_pad, 1, 3, 7, 9),
    "pad symmetric": lambda: unary(nn.mirror_pad, 1, 7, 9, pad_before=[0, 1, 2], pad_after=[0, 2, 1], mode="SYMMETRIC"),
    "dilate": lambda: unary(nn.dilate, 2, 5, 6, strides=(1, 2, 3)),
    "space to depth": lambda: unary(nn.space_to_depth, 1, 3, 8, 8, block_size=2),
    "depth to space": lambda: unary(nn.depth_to_space, 1, 12, 5, 5, block_size=2),
    "batch to space": lambda: unary(
        nn.batch_to_space_nd, 4, 5, 6, 3, block_shape=[2, 2], crop_begin_list=[0, 1], crop_end_list=[1, 0]),
    "space to batch": lambda: unary(
        nn.space_to_batch_nd, 1, 6, 8, 3, block_shape=[2, 2], pad_before=[0, 0], pad_after=[0, 0]),
    "tile": lambda: unary(topi.tile, 3, 5, reps=(2, 3)),
    "repeat": lambda: unary(topi.repeat, 3, 7, repeats=3, axis=1),
    "broadcast": lambda: unary(topi.broadcast_to, 5, 1, shape=(3, 5, 11)),
    "arange": lambda: [x(1), te.compute((13,), lambda i: i * 2 + 3, name="arange")][1:],
    "full": lambda: [topi.full((4, 7), "float32", 2.5)],
    "triangle": lambda: unary(topi.trilu, 5, 7, 7, k=tir.const(0, "int32"), upper=True),
    "matrix diagonal": lambda: of(topi.matrix_set_diag, x(3, 5, 5), x(3, 5, name="d")),
    "sliding window": lambda: unary(topi.sliding_window, 2, 9, 11, axis=1, window_shape=[3, 4], strides=[2, 3]),
    "meshgrid": lambda: of(lambda *t: topi.meshgrid(t, "ij"), x(5), x(7, name="y")),
    "adv index": lambda: [*(i := [x(6, 9), ids(4)]), topi.adv_index(i[0], [i[1]])],
    "unravel": lambda: [i := ids(9), topi.unravel_index(i, topi.full((2,), "int32", 5))],
    "fifo buffer": lambda: of(nn.fifo_buffer, x(2, 3, 4), x(2, 5, 4, name="b"), 1),
}  # fmt: skip


def resize(method, size, mode="half_pixel", rounding="", rank=2, layout="NCHW"):
    shape = {1: (1, 3, 9), 2: (1, 3, 8, 7), 3: (1, 2, 4, 5, 6)}[rank]
    if layout == "NHWC":
        shape = (1, 8, 7, 3)
    function = {1: image.resize1d, 2: image.resize2d, 3: image.resize3d}[rank]
    layouts = {1: "NCW", 2: layout, 3: "NCDHW"}[rank]
    return of(function, x(*shape), [0.0] * 2 * rank, size, layouts, method, mode, rounding)


IMAGES = {
    "nearest": partial(resize, "nearest_neighbor", (16, 14), "asymmetric", "floor"),
    "nearest half pixel": partial(resize, "nearest_neighbor", (13, 10), rounding="round_prefer_floor"),
    "nearest shrinking": partial(resize, "nearest_neighbor", (4, 3), "asymmetric", "floor"),
    "nearest nhwc": partial(resize, "nearest_neighbor", (16, 14), "asymmetric", "floor", layout="NHWC"),
    "bilinear": partial(resize, "linear", (16, 14)),
    "bilinear aligned": partial(resize, "linear", (13, 20), "align_corners"),
    "bilinear nhwc": partial(resize, "linear", (11, 14), "asymmetric", layout="NHWC"),
    "cubic": partial(resize, "cubic", (10, 9)),
    "linear 1d": partial(resize, "linear", (14,), rank=1),
    "linear 3d": partial(resize, "linear", (6, 7, 8), rank=3),
    "nearest 3d": partial(resize, "nearest_neighbor", (8, 10, 12), "asymmetric", "floor", rank=3),
    "upsampling": lambda: unary(nn.upsampling, 1, 3, 5, 6, scale_h=2, scale_w=2),
    "crop and resize": lambda: [*(i := [x(2, 8, 8, 3), x(2, 4, name="boxes"), ids(2)]),
                                image.crop_and_resize(*i, (5, 5), layout="NHWC", extrapolation_value=0.0)],
    "grid sample": lambda: [*(i := [x(1, 3, 6, 7), x(1, 2, 5, 5, name="grid")]), image.grid_sample(*i)],
    "affine grid": lambda: unary(image.affine_grid, 2, 2, 3, target_shape=(5, 6)),
    "roi align": lambda: [*(i := [x(2, 3, 9, 9), x(2, 5, name="rois")]),
                          topi.vision.rcnn.roi_align_nchw(*i, (3, 3), 1.0, b"avg", 2)],
}  # fmt: skip

POINTWISE = {
    **{name: partial(unary, getattr(topi, name), 6, 23) for name in
       ("exp", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "log", "floor", "round", "sign", "abs", "sin", "atan")},
    "relu 3d": lambda: unary(nn.relu, 3, 5, 7),
    "prelu": lambda: of(nn.prelu, x(1, 5, 4, 4), x(5, name="slope")),
    "leaky relu": lambda: unary(nn.leaky_relu, 4, 19, alpha=0.1),
    "clip": lambda: unary(topi.clip, 4, 19, a_min=-0.5, a_max=0.5),
    "gelu": lambda: unary(lambda a: a * (topi.erf(a * 0.70710677) + 1.0) * 0.5, 5, 40),
    "hard swish": lambda: unary(lambda a: a * topi.clip(a + 3.0, 0.0, 6.0) / 6.0, 5, 40),
    "scale shift": lambda: of(nn.scale_shift_nchw, x(1, 5, 6, 6), x(5, name="s"), x(5, name="b")),
    "broadcast add": lambda: of(topi.add, x(3, 1, 7), x(5, 1, name="y")),
    "power": lambda: of(topi.power, x(4, 9), x(9, name="y")),
    "scalar": lambda: of(topi.add, x(), x(name="y")),
    "one element": lambda: unary(topi.exp, 1),
    "prime": lambda: unary(nn.relu, 1009),
}  # fmt: skip


def two_of_a_product():
    a, b = x(9, 16), w(16, 12)
    product = topi.matmul(a, b)
    return [a, b, product, nn.relu(product)]


def two_of_a_convolution():
    a, k = x(1, 6, 8, 8), w(8, 6, 3, 3)
    y = nn.relu(nn.conv2d_nchw(a, k, 1, 1, 1))
    return [a, k, y, topi.exp(y), topi.sum(y, axis=[2, 3])]


def side_by_side():
    a = x(6, 20)
    return [a, topi.exp(a), topi.tanh(a), topi.sum(a, axis=1)]


def stacked_products():
    a, b, c = x(6, 10), w(10, 8), x(8, 12, name="v")
    return [a, b, c, topi.matmul(nn.relu(topi.matmul(a, b)), c)]


def two_results():
    a = x(5, 14)
    both = te.compute((5, 14), lambda i, j: (a[i, j] + 1.0, a[i, j] * 2.0), name="both")
    return [a, *both]


def two_results_used():
    a = x(5, 14)
    both = te.compute((5, 14), lambda i, j: (a[i, j] + 1.0, a[i, j] * 2.0), name="both")
    return [a, te.compute((5, 14), lambda i, j: both[0][i, j] - both[1][i, j], name="out")]


SEVERAL = {
    "product and its relu": two_of_a_product,
    "convolution, exp and mean": two_of_a_convolution,
    "side by side": side_by_side,
    "stacked products": stacked_products,
    "two results": two_results,
    "two results used": two_results_used,
    "mean and variance": lambda: unary(
        lambda a: [m := topi.sum(a, axis=1) / 30.0, topi.sum(a * a, axis=1) / 30.0 - m * m], 7, 30),
}

#: Compare axes, which TVM 0.17 gets wrong once they are split: the Relay line leaves them to it.
COMPARED = ("running sum", "triangle", "matrix diagonal")
FAMILIES = {
    "convolutions": CONVOLUTIONS, "products": PRODUCTS, "types": TYPES, "pooling": POOLING,
    "uneven": UNEVEN, "reductions": REDUCTIONS,
    "norms": NORMS, "movement": MOVEMENT, "images": IMAGES, "pointwise": POINTWISE, "several": SEVERAL,
}  # fmt: skip
#: Operators whose inputs must be positive to mean something (a number of an image among them).
POSITIVE = {"roi align", "crop and resize", "mean and variance"}
#: What no kernel of a GPU can be made of, with the reason.
NOT_ON_A_GPU = dict.fromkeys(("scalar", "einsum trace", "argmax all"), "an output axis to give to threads")
