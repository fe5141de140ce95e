"""TE programs and step lists that the tests of the Relay edge share."""

from roller_tvm.roller.steps import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Reorder,
    RFactor,
    Split,
    StorageAlign,
    Unroll,
    Vectorize,
)


def matmul_relu(m=64, n=64, k=32):
    """C = relu(A B + bias + bias2): two stages of TE's that are both called T_add."""
    from tvm import te, topi

    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    bias = te.placeholder((n,), name="bias")
    r = te.reduce_axis((0, k), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    d = topi.add(topi.add(c, bias), bias)
    return [a, b, bias, te.compute((m, n), lambda ax0, ax1: te.max(d[ax0, ax1], 0.0), name="T_relu")]


def matmul(m=64, n=64, k=64):
    from tvm import te

    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), "k")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")]


def conv(c=8, h=16, f=16):
    from tvm import te, topi

    x = te.placeholder((1, c, h, h), name="X")
    w = te.placeholder((f, c, 3, 3), name="W")
    return [x, w, topi.nn.conv2d_nchw(x, w, 1, 1, 1, out_dtype="float32")]


# 32 x 32 block tile, 2 virtual threads and 8 threads each way, 8 of k staged at a time.
CUDA_MATMUL = [
    CacheWrite("C", "local", "C.local"),
    CacheRead("A", "shared", ("C.local",), "A.shared"), CacheRead("B", "shared", ("C.local",), "B.shared"),
    Split("C", "i", (2, 8, 2), ("bi", "vi", "ti", "ii")),
    Split("C", "j", (2, 8, 2), ("bj", "vj", "tj", "jj")),
    Reorder("C", ("bi", "bj", "vi", "vj", "ti", "tj", "ii", "jj")),
    Fuse("C", ("bi", "bj"), "block"), Fuse("C", ("vi", "vj"), "v"), Fuse("C", ("ti", "tj"), "thread"),
    Bind("C", "block", "blockIdx.x"), Bind("C", "v", "vthread"), Bind("C", "thread", "threadIdx.x"),
    Vectorize("C", "jj"), Unroll("C", "ii"),
    ComputeAt("C.local", "C", "thread"),
    Split("C.local", "k", (8,), ("ko", "ki")), Reorder("C.local", ("ko", "ki", "i", "j")),
    Unroll("C.local", "ki"), Unroll("C.local", "i"), Unroll("C.local", "j"),
    ComputeAt("A.shared", "C.local", "ko"), StorageAlign("A.shared", "d0", 8, 4),
    Fuse("A.shared", ("d0", "d1"), "f"), Split("A.shared", "f", (64, 4), ("s", "t", "v")),
    Bind("A.shared", "t", "threadIdx.x"), Vectorize("A.shared", "v"),
    ComputeAt("B.shared", "C.local", "ko"),
    Fuse("B.shared", ("d0", "d1"), "f"), Split("B.shared", "f", (64, 4), ("s", "t", "v")),
    Bind("B.shared", "t", "threadIdx.x"), Vectorize("B.shared", "v"),
]  # fmt: skip

CUDA_CONV = [
    Inline("pad_temp"),
    CacheWrite("conv2d_nchw", "local", "acc"),
    CacheRead("pad_temp", "shared", ("acc",), "pad_temp.shared"),
    CacheRead("W", "shared", ("acc",), "W.shared"),
    Split("conv2d_nchw", "ff", (4, 2), ("bf", "tf", "fi")),
    Split("conv2d_nchw", "xx", (8, 1), ("bx", "tx", "xi")),
    Reorder("conv2d_nchw", ("nn", "bf", "yy", "bx", "tf", "tx", "fi", "xi")),
    Fuse("conv2d_nchw", ("nn", "bf", "yy", "bx"), "block"), Fuse("conv2d_nchw", ("tf", "tx"), "thread"),
    Bind("conv2d_nchw", "block", "blockIdx.x"), Bind("conv2d_nchw", "thread", "threadIdx.x"),
    ComputeAt("acc", "conv2d_nchw", "thread"),
    Split("acc", "rc", (4,), ("rco", "rci")),
    Reorder("acc", ("rco", "ry", "rx", "rci", "nn", "ff", "yy", "xx")),
    *(step for copy in ("pad_temp.shared", "W.shared") for step in (
        ComputeAt(copy, "acc", "rx"), Fuse(copy, ("d0", "d1", "d2", "d3"), "f"),
        Split(copy, "f", (32,), ("s", "t")), Bind(copy, "t", "threadIdx.x"))),
]  # fmt: skip

# The reduction in 8 parts, each a block's; a second kernel adds the parts.
CUDA_SPLIT_K = [
    Split("C", "k", (8,), ("k.p", "k.i")), RFactor("C", "k.p", 0, "C.rf"),
    Split("C.rf", "i", (8,), ("bi", "ti")), Split("C.rf", "j", (8,), ("bj", "tj")),
    Reorder("C.rf", ("k.p", "bi", "bj", "ti", "tj", "k.i")),
    Fuse("C.rf", ("k.p", "bi", "bj"), "block"), Fuse("C.rf", ("ti", "tj"), "thread"),
    Bind("C.rf", "block", "blockIdx.x"), Bind("C.rf", "thread", "threadIdx.x"),
    Fuse("C", ("i", "j"), "ij"), Split("C", "ij", (64,), ("b", "t")),
    Bind("C", "b", "blockIdx.x"), Bind("C", "t", "threadIdx.x"),
]  # fmt: skip
