"""CPU recipes on llvm: every plan computes what TVM's default schedule does."""

from math import prod

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import te, topi  # noqa: E402

from roller_tvm.te import te_operator  # noqa: E402

from ..expr.examples import EXAMPLES  # noqa: E402
from ..plan.examples import over_edges  # noqa: E402
from ..sampling import sampled  # noqa: E402
from .kernels import check, plans_of  # noqa: E402


def tensor(*shape, name="x", dtype="float32"):
    return te.placeholder(shape, name=name, dtype=dtype)


def conv_nchw(c=16, f=24, h=9, k=3, stride=1, pad=1, groups=1, dilation=1):
    x, w = tensor(2, c, h, h), tensor(f, c // groups, k, k, name="w")
    if groups > 1:
        return [x, w, topi.nn.group_conv2d_nchw(x, w, stride, pad, dilation, groups)]
    return [x, w, topi.nn.conv2d_nchw(x, w, stride, pad, dilation)]


def conv_nhwc(c=16, f=24, h=8, k=3, stride=1, pad=1):
    x, w = tensor(1, h, h, c), tensor(k, k, c, f, name="w")
    return [x, w, topi.nn.conv2d_nhwc(x, w, stride, pad, 1)]


def conv_nchwc(c=16, f=32, h=8, k=3, pad=1, inner=8):
    x, w = tensor(1, c // inner, h, h, inner), tensor(f // inner, c // inner, k, k, inner, inner, name="w")
    layout = f"NCHW{inner}c"
    with tvm.target.Target("llvm"):  # it picks the type of the sums by the target
        return [x, w, topi.nn.conv2d_NCHWc(x, w, 1, pad, 1, layout, layout)]


def depthwise(c=16, h=9, k=3, stride=2):
    x, w = tensor(1, c, h, h), tensor(c, 1, k, k, name="w")
    return [x, w, topi.nn.depthwise_conv2d_nchw(x, w, stride, 1, 1)]


def depthwise_nhwc(c=24, h=9, k=3):
    x, w = tensor(1, h, h, c), tensor(k, k, c, 1, name="w")
    return [x, w, topi.nn.depthwise_conv2d_nhwc(x, w, 1, 1, 1)]


def transposed(c=12, f=12, h=6, k=2, stride=2, pad=0, packed=True):
    x, w = tensor(1, c, h, h), tensor(c, f, k, k, name="w")
    function = topi.x86.conv2d_transpose_nchw if packed else topi.nn.conv2d_transpose_nchw
    with tvm.target.Target("llvm"):
        return [x, w, function(x, w, (stride, stride), (pad,) * 4, "float32", (0, 0))]


def dense(m=6, n=40, k=32, dtype="float32"):
    x, w = tensor(m, k, dtype=dtype), tensor(n, k, name="w", dtype=dtype)
    return [x, w, topi.nn.dense(x, w)]


def batch_matmul(b=3, m=12, n=20, k=16, dtype="float32"):
    x, y = tensor(b, m, k, dtype=dtype), tensor(b, n, k, name="y", dtype=dtype)
    return [x, y, topi.nn.batch_matmul(x, y)]


def dense_int8(m=64, n=256, k=256):
    x, w = tensor(m, k, dtype="int8"), tensor(n, k, name="w", dtype="int8")
    return [x, w, topi.nn.dense(x, w, out_dtype="int32")]


def transposed_column(c=8, f=12, h=9):
    x, w = tensor(1, c, h, 1), tensor(c, f, 2, 1, name="w")
    return [x, w, topi.nn.conv2d_transpose_nchw(x, w, (2, 1), (0, 0, 0, 0), "float32", (0, 0))]


def larger(*shape):
    x, y = tensor(*shape), tensor(*shape, name="y")
    return [x, y, topi.greater(topi.multiply(x, y), y)]


def matmul_of_long_rows(m=12, n=1024, k=16):
    x, y = tensor(m, k), tensor(k, n, name="y")
    return [x, y, topi.matmul(x, y)]


def with_epilogue(tensors):
    *inputs, out = tensors
    bias = tensor(*[e if d == 1 else 1 for d, e in enumerate(out.shape)], name="bias", dtype=out.dtype)
    skip = tensor(*out.shape, name="skip", dtype=out.dtype)
    return [*inputs, bias, skip, topi.nn.relu(topi.add(topi.add(out, bias), skip))]


def pool(kind, h=9, c=6):
    x = tensor(2, c, h, h)
    return [x, topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), kind)]


def unary(function, *shape, dtype="float32"):
    x = tensor(*shape, dtype=dtype)
    return [x, function(x)]


def layer_norm(rows=6, width=40):
    x, gamma, beta = tensor(2, rows, width), tensor(width, name="gamma"), tensor(width, name="beta")
    return [x, gamma, beta, topi.nn.layer_norm(x, gamma, beta, (2,))]


def variance(x):
    distance = topi.subtract(x, topi.divide(topi.sum(x, -1, True), 48.0))
    return topi.divide(topi.sum(topi.multiply(distance, distance), -1, True), 48.0)


def concat(axis):
    x, y = tensor(2, 6, 5, 8), tensor(2, 6, 5, 8, name="y")
    return [x, y, topi.nn.relu(topi.concatenate([x, y], axis))]


PROGRAMS = {
    "conv nchw": conv_nchw,
    "conv nchw strided": lambda: conv_nchw(c=4, f=6, stride=2),
    "conv nchw 1x1": lambda: conv_nchw(k=1, pad=0, h=7),
    "conv nchw dilated": lambda: conv_nchw(dilation=2, pad=2),
    "conv nchw grouped": lambda: conv_nchw(f=8, groups=4),
    "conv nchw grouped epilogue": lambda: with_epilogue(conv_nchw(f=8, groups=2)),
    "conv nchw epilogue": lambda: with_epilogue(conv_nchw()),
    "conv nhwc": conv_nhwc,
    "conv nhwc epilogue": lambda: with_epilogue(conv_nhwc(stride=2)),
    "conv nchwc": conv_nchwc,
    "depthwise nchw": lambda: depthwise(c=3),
    "depthwise nhwc": depthwise_nhwc,
    "transposed": transposed,
    "transposed of one channel": lambda: with_epilogue(transposed(f=1)),
    "transposed with overlap": lambda: with_epilogue(transposed(k=4, pad=1, h=7)),
    "transposed in threes": lambda: transposed(k=3, stride=3, packed=False),
    "transposed of an odd size": lambda: transposed(k=3, pad=1),
    "transposed of one column": transposed_column,
    "dense": dense,
    "dense of one row": lambda: dense(m=1, k=64),
    "dense of primes": lambda: dense(m=7, n=13, k=11),
    "dense epilogue": lambda: with_epilogue(dense()),
    "dense float16": lambda: dense(dtype="float16"),
    "dense int8": lambda: dense_int8(m=5, n=24, k=16),
    "batch_matmul": batch_matmul,
    "batch_matmul float16": lambda: batch_matmul(dtype="float16"),
    "matmul of long rows": matmul_of_long_rows,
    "matmul of primes": lambda: matmul_of_long_rows(m=13, n=67, k=11),
    "matmul of primes, epilogue": lambda: with_epilogue(matmul_of_long_rows(m=3, n=101, k=7)),
    "conv nhwc of primes": lambda: conv_nhwc(c=3, f=37, h=5, k=2, pad=0),
    "conv nhwc of primes, epilogue": lambda: with_epilogue(conv_nhwc(c=2, f=41, h=6, k=2, stride=2, pad=0)),
    "matmul over an edge": lambda: with_epilogue(matmul_of_long_rows(m=17, n=64, k=24)),
    "conv nhwc over an edge": lambda: with_epilogue(conv_nhwc(c=6, f=32, h=17)),
    "conv nchwc over an edge": lambda: conv_nchwc(h=17),
    "max pool": lambda: pool("max"),
    "avg pool": lambda: pool("avg"),
    "pool wide": lambda: pool("max", h=33, c=8),
    "global pool": lambda: unary(lambda x: topi.nn.relu(topi.nn.global_pool(x, "avg")), 2, 16, 8, 8),
    "softmax": lambda: unary(topi.nn.softmax, 4, 6, 40),
    "softmax of one row": lambda: unary(topi.nn.softmax, 1, 44),
    "softmax of odd rows": lambda: unary(topi.nn.softmax, 4, 6, 43),
    "layer norm of odd rows": lambda: layer_norm(5, 53),
    "sum of a prime": lambda: unary(lambda x: topi.sum(x, 1), 6, 101),
    "log softmax": lambda: unary(topi.nn.log_softmax, 6, 40),
    "layer norm": layer_norm,
    "variance": lambda: unary(variance, 3, 12, 48),
    "softmax inner axis": lambda: unary(lambda x: topi.nn.softmax(x, 1), 4, 16, 40),
    "sum of rows": lambda: unary(lambda x: topi.sum(x, 1), 24, 64),
    "sum of odd rows": lambda: unary(lambda x: topi.nn.relu(topi.sum(x, 1)), 67, 24),
    "sum of columns": lambda: unary(lambda x: topi.nn.relu(topi.sum(x, 0)), 24, 64),
    "sum of leading and trailing": lambda: unary(lambda x: topi.sum(x, (0, 2)), 6, 32, 32),
    "sum of images": lambda: unary(lambda x: topi.sum(x, 1), 2, 8, 32, 40),
    "sum of all": lambda: unary(topi.sum, 8, 6, 16),
    "mean of an image": lambda: unary(lambda x: topi.divide(topi.sum(x, (2, 3), True), 49.0), 2, 24, 7, 7),
    "relu": lambda: unary(topi.nn.relu, 2, 12, 9, 9),
    "relu float16": lambda: unary(topi.nn.relu, 2, 12, 9, 9, dtype="float16"),
    "relu of an odd size": lambda: unary(topi.nn.relu, 1, 37, 41),
    "larger of two": lambda: larger(6, 40),
    "sigmoid of a prime": lambda: unary(topi.sigmoid, 1009),
    "transpose": lambda: unary(lambda x: topi.transpose(x, (0, 2, 3, 1)), 2, 12, 9, 9),
    "transpose blocks": lambda: unary(lambda x: topi.transpose(x, (2, 3, 0, 1)), 4, 6, 8, 9),
    "concat channels": lambda: concat(1),
    "concat rows": lambda: concat(3),
    "scalar": lambda: unary(topi.nn.relu),
}  # fmt: skip


PRIMES = [name for name in PROGRAMS if "of primes" in name and "dense" not in name]
OVER_EDGES = [name for name in PROGRAMS if "over an edge" in name]


# Each 16th at every change, all in make nightly; some have tests of their own.
@pytest.mark.parametrize("name", sampled([name for name in PROGRAMS if name not in (*PRIMES, *OVER_EDGES)], 16))
def test_every_plan_computes_the_same(name):
    assert check(PROGRAMS[name]())


@pytest.mark.parametrize("name", sampled(PRIMES, 2))
def test_rows_that_no_vector_divides(name):
    plans = check(PROGRAMS[name](), most=8)
    found = {(plan.programs[-1].recipe, bool(over_edges(plan))) for plan in plans}
    assert ("cpu.tiled", True) in found and (("cpu.axpy", False) in found or "conv" in name)


@pytest.mark.parametrize("name, width", [("softmax of odd rows", 43), ("sum of a prime", 101)])
def test_lanes_that_do_not_divide_a_reduction(name, width):
    plans = check(PROGRAMS[name](), most=8)
    assert any(split.lanes and width % split.parts for plan in plans for split in plan.split_reductions)


@pytest.mark.parametrize("name", sampled(OVER_EDGES, 2))
def test_register_tiles_over_the_edge(name):
    assert any(over_edges(plan) for plan in check(PROGRAMS[name]()))


@pytest.mark.parametrize("name", ["relu of an odd size", "sum of odd rows", "sigmoid of a prime"])
def test_a_loop_that_no_vector_divides_runs_in_parallel(name):
    programs = [plan.programs[-1] for plan in check(PROGRAMS[name](), most=8) if len(plan.programs) == 1]
    assert any(p.recipe == "cpu.direct" and p.choice("parallel") and not p.choice("vector") for p in programs)


def test_vectors_are_as_long_as_the_widest_type_allows():
    """Sums of 32 bits of operands of 8: a register of AVX2 holds 8 of them."""
    for plan in plans_of(dense_int8()):
        program = plan.programs[-1]
        if program.recipe == "cpu.tiled":
            tile = program.tile("register")
            assert prod(tile[a.name] for a in plan.expression.anchor.spatial) <= 16 * 8
    for plan in plans_of(larger(64, 256)):
        assert plan.programs[-1].choice("vector") <= 4 * 8  # of floats, not of what they are compared to


# Vectors of half a row, lanes of half precision, splits in sixteen lanes.
@pytest.mark.parametrize("name", sampled(["dense float16", "conv nchw", "softmax", "mean of an image"], 2))
def test_with_wider_vectors(name):
    assert check(PROGRAMS[name](), "avx512")


def test_each_kind_of_plan_is_among_those():
    kinds = set()
    names = (
        "conv nchw", "sum of rows", "relu", "max pool", "softmax", "transposed", "matmul of long rows",
        "batch_matmul", "matmul of primes", "conv nhwc of primes, epilogue",
    )  # fmt: skip
    for name in names:
        for plan in plans_of(PROGRAMS[name]()):
            kinds |= {p.recipe for p in plan.programs}
            kinds |= {"lanes" for s in plan.split_reductions if s.lanes}
            kinds |= {"packed" for p in plan.programs if p.staged and p.recipe == "cpu.tiled"}
            kinds |= {"stored prologue" for p in plan.programs if p.anchor == "pad_temp"}
            kinds |= {"prologue in place" for p in plan.programs if "pad_temp" in p.inlined}
            kinds |= {"fused" for s in plan.expression.stages for a in s.axes if a.fused_of}
    assert kinds == {
        "cpu.tiled", "cpu.direct", "cpu.rows", "cpu.window", "lanes", "packed", "stored prologue", "prologue in place",
        "fused", "cpu.dilated", "cpu.lanes", "cpu.axpy",
    }  # fmt: skip


IDS = [f"{name} {' '.join(f'{k}={v}' for k, v in params.items())}" for name, params in EXAMPLES]


@pytest.mark.parametrize(("name", "params"), sampled(EXAMPLES, 16), ids=IDS)
def test_named_operators_of_awkward_sizes(name, params):
    assert check(te_operator(name, **params), most=2)


def test_weights_are_read_from_front_to_back():
    from roller_tvm.planner.lower import lower
    from roller_tvm.roller.steps import Reorder

    names = ("ic", "kh", "kw")
    for plan in plans_of(conv_nchwc(c=32), most=2):
        if plan.programs[-1].recipe != "cpu.tiled":
            continue
        orders = [step.axes for step in lower(plan) if isinstance(step, Reorder)]
        loops = next(axes for axes in orders if any(axis.startswith(names) for axis in axes))
        outer = [axis.removesuffix(".0") for axis in loops if axis.startswith(names) and axis.endswith(".0")]
        # The weights are [oc.o][ic.o][kh][kw][ic.i][oc.i]; TVM declares ic, kh, kw.
        assert outer == ["ic.o", "kh", "kw", "ic.i"]
