"""Vectors into padding, and of every second element: the same numbers, whole vectors, no choice where none is left."""

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")

from tvm import te, tir  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.rewrites import rewritten  # noqa: E402
from roller_tvm.codegen.rewrites.peeled_loops import with_peeled_loops  # noqa: E402
from roller_tvm.relay import EdgeVectors  # noqa: E402

from ..sampling import covering  # noqa: E402

WIDE = "llvm -mcpu=core-avx2"


def with_edge_vectors(func):
    return rewritten(func, {"edge_vectors"})


def pooling(height, width, kernel, stride, padding, rows, lanes, channels=3, dtype="float32", value=None, parallel="c"):
    """A sum over windows of a padded image in register tiles of `rows` by `lanes`, windows unrolled."""
    image = te.placeholder((channels, height, width), dtype, "image")
    fill = tir.const(0, dtype)
    padded = te.compute(
        (channels, height + 2 * padding, width + 2 * padding),
        lambda c, i, j: tir.if_then_else(
            tir.all(i >= padding, i < height + padding, j >= padding, j < width + padding),
            (value or (lambda x, c, i, j: x[c, i, j]))(image, c, i - padding, j - padding),
            fill,
        ),
        "padded",
    )
    out = [(size + 2 * padding - kernel) // stride + 1 for size in (height, width)]
    a, b = te.reduce_axis((0, kernel), "a"), te.reduce_axis((0, kernel), "b")
    pool = te.compute(
        (channels, *out), lambda c, i, j: te.sum(padded[c, i * stride + a, j * stride + b], (a, b)), "pool"
    )
    schedule = te.create_schedule(pool.op)
    schedule[padded].compute_inline()
    kept = schedule.cache_write(pool, "local")
    c, i, j = schedule[pool].op.axis
    im, ii = schedule[pool].split(i, rows)
    jm, ji = schedule[pool].split(j, lanes)
    schedule[pool].reorder(c, im, jm, ii, ji)
    schedule[pool].parallel(c if parallel == "c" else schedule[pool].fuse(c, im, jm))
    schedule[pool].unroll(ii)
    schedule[pool].vectorize(ji)
    schedule[kept].compute_at(schedule[pool], jm if parallel == "c" else schedule[pool].leaf_iter_vars[0])
    c, i, j = schedule[kept].op.axis
    a, b = schedule[kept].op.reduce_axis
    schedule[kept].reorder(c, a, b, i, j)
    for loop in (a, b, i):
        schedule[kept].unroll(loop)
    schedule[kept].vectorize(j)
    return schedule, [image, pool]


def answer(schedule, tensors, given):
    """Return the output of the kernel with whole vectors."""
    out = tvm.nd.array(np.full([int(e) for e in tensors[-1].shape], 77, tensors[-1].dtype))
    with EdgeVectors(True):
        tvm.build(schedule, tensors, WIDE)(tvm.nd.array(given), out)
    return out.numpy()


def windows(image, kernel, stride, padding):
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    found = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
    return found[:, ::stride, ::stride].sum((-1, -2))


def nodes(func, kind):
    found = []
    tir.stmt_functor.post_order_visit(func.body, lambda node: found.append(node) if isinstance(node, kind) else None)
    return found


def choices(func, wide):
    calls = [node for node in nodes(func, tir.Call) if getattr(node.op, "name", "") == "tir.if_then_else"]
    return [node for node in calls if ("x" in node.dtype) == wide]


def strided(func):
    return [node for node in nodes(func, tir.Ramp) if int(node.stride) != 1]


@pytest.mark.parametrize(
    "height, width, kernel, stride, padding, rows, lanes, dtype",
    covering([(12, 16, 3, 1, 1, 2, 8), (12, 28, 3, 1, 1, 3, 14), (13, 32, 3, 2, 1, 7, 8), (15, 57, 3, 2, 1, 2, 29),
              (8, 12, 5, 1, 2, 2, 4), (14, 40, 7, 2, 3, 1, 5), (11, 31, 3, 3, 1, 4, 11), (20, 61, 3, 4, 1, 5, 4),
              (30, 43, 3, 6, 2, 2, 8), (5, 8, 3, 1, 1, 5, 8), (9, 10, 4, 1, 2, 3, 2), (16, 64, 2, 2, 0, 4, 16)],
             ["float32", "int32"]),
)  # fmt: skip
def test_the_numbers_are_the_same(height, width, kernel, stride, padding, rows, lanes, dtype):
    schedule, tensors = pooling(height, width, kernel, stride, padding, rows, lanes, dtype=dtype)
    image = np.random.default_rng(1).integers(-9, 9, (3, height, width)).astype(dtype)
    assert (answer(schedule, tensors, image) == windows(image, kernel, stride, padding)).all()


def test_no_lane_is_chosen_by_itself():
    func = tvm.lower(*pooling(12, 32, 3, 1, 1, 3, 8))["main"]
    made = with_edge_vectors(func)
    assert choices(func, wide=False) and not choices(made, wide=False)
    assert not choices(made, wide=True), "rows of padding are known of each trip too"
    loops = sorted(int(loop.extent) for loop in nodes(made, tir.For))
    assert loops == [2, 2, 2, 2, 3], "of four rows of tiles, and of four tiles in each, the two in the middle are alike"
    assert with_edge_vectors(made).same_as(made), "nothing is left to do"


def test_elements_near_each_other_are_picked_out_of_vectors():
    func = tvm.lower(*pooling(16, 65, 3, 2, 0, 7, 8))["main"]
    assert strided(func) and not strided(with_edge_vectors(func))
    func = tvm.lower(*pooling(30, 59, 3, 8, 0, 2, 8))["main"]
    assert strided(with_edge_vectors(func)), "eight elements apart, each is loaded by itself"


def test_what_is_computed_of_an_element_before_it_is_chosen():
    def value(image, c, i, j):
        return te.max(image[c, i, j] * tir.const(3, "float32"), tir.const(-1, "float32")) + j.astype("float32")

    schedule, tensors = pooling(12, 24, 3, 1, 1, 2, 8, value=value)
    image = np.random.default_rng(2).integers(-9, 9, (3, 12, 24)).astype("float32")
    expected = windows(np.maximum(image * 3, -1) + np.arange(24, dtype="float32"), 3, 1, 1)
    assert (answer(schedule, tensors, image) == expected).all()
    assert not choices(with_edge_vectors(tvm.lower(schedule, tensors)["main"]), wide=False)


def test_where_lanes_of_padding_would_be_divided_by_nothing():
    """What padding is chosen for is computed of no lane that is padding."""

    def value(image, c, i, j):
        return te.truncdiv(tir.const(100, "int32"), image[c, i, j])

    schedule, tensors = pooling(8, 16, 3, 1, 1, 2, 8, dtype="int32", value=value)
    image = np.random.default_rng(3).integers(1, 9, (3, 8, 16)).astype("int32")
    assert (answer(schedule, tensors, image) == windows(100 // image, 3, 1, 1)).all()


def test_tiles_that_no_loop_of_their_own_tells_stay():
    """One loop over channels, rows and columns: which lanes are padding is not known of its trips."""
    schedule, tensors = pooling(12, 32, 3, 1, 1, 3, 8, parallel="all")
    func = tvm.lower(schedule, tensors)["main"]
    assert choices(with_edge_vectors(func), wide=False)
    image = np.random.default_rng(4).integers(-9, 9, (3, 12, 32)).astype("float32")
    assert (answer(schedule, tensors, image) == windows(image, 3, 1, 1)).all()


def test_choices_of_vectors_that_a_loop_does_not_decide_stay():
    a, b = tir.decl_buffer((64,), "float32", "a"), tir.decl_buffer((64,), "float32", "b")
    n, t = tir.Var("n", "int32"), tir.Var("t", "int32")

    def func(condition):
        lanes = tir.Ramp(t * 8, 1, 8)
        value = tir.if_then_else(condition, tir.BufferLoad(a, [lanes]), tir.Broadcast(tir.const(0, "float32"), 8))
        body = tir.For(t, 0, 8, 0, tir.BufferStore(b, value, [lanes]))
        return tir.PrimFunc([a.data, b.data, n], body)

    assert with_peeled_loops(func(n < 5).body, dialect_here()) is None
    assert with_peeled_loops(func(t < n).body, dialect_here()) is None
    assert with_peeled_loops(func(tir.all(t % 2 < 1)).body, dialect_here()) is None
    made = func(tir.all(t < 5, n < 3))
    made = made.with_body(with_peeled_loops(made.body, dialect_here()))
    assert [int(loop.extent) for loop in nodes(made, tir.For)] == [5, 3]
    assert len(choices(made, wide=True)) == 1, "that of n, in the first five trips"
