"""Register tiles over the edge of rows that cores share, on either TVM line: values, and the checks that stay."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import CHOICE, called, is_vector, kind_of, parts_of, statements, values_of  # noqa: E402
from roller_tvm.codegen.rewrites.edge_vectors import with_whole_vectors  # noqa: E402
from roller_tvm.codegen.rewrites.peeled_loops import with_peeled_loops  # noqa: E402
from roller_tvm.roller.steps import ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Unroll, Vectorize  # noqa: E402
from roller_tvm.te.numbering import SERIAL  # noqa: E402

from .kernels import built, recording  # noqa: E402

RNG = np.random.default_rng(7)
LANES = 8


@pytest.fixture
def peeled(monkeypatch):
    return recording(with_peeled_loops, monkeypatch)


def checks_in_loops(body):
    """Checks of rows, and choices, inside innermost loops of several trips."""
    loops = [n for n in statements(body) if kind_of(n) == "For" and int(n.extent) > LANES]
    inner = [n for n in loops if not any(kind_of(m) == "For" for m in statements(n.body))]
    rows = [n for loop in inner for n in statements(loop.body) if kind_of(n) == "IfThenElse"]
    values = [v for loop in inner for n in statements(loop.body) for v in values_of(n)]
    return len(rows) + sum(called(part) == CHOICE for value in values for part in parts_of(value))


def shared_rows(out, tile, chunk, inner=()):
    """Steps of an output: chunks of rows in parallel, tiles of rows and vectors in each, other loops inside."""
    i, j = (axis.var.name for axis in out.op.axis)
    return [
        Split(out.op.name, i, (chunk // tile, tile), ("p", "m", "r")), Split(out.op.name, j, (LANES,), ("c", "v")),
        Reorder(out.op.name, ("p", "c", "m", *inner, "r", "v")), Parallel(out.op.name, "p"),
        Unroll(out.op.name, "r"), Vectorize(out.op.name, "v"),
    ]  # fmt: skip


@pytest.mark.parametrize("rows, tile, chunk", [(197, 9, 99), (10, 3, 6), (7, 4, 4), (11, 3, 6)])
def test_rows_that_cores_share(rows, tile, chunk, peeled):
    """A tile's place decides whether it stands over the edge; within it, no trip checks rows."""
    a, b = te.placeholder((rows, 24), name="a"), te.placeholder((24, 16), name="b")
    k = te.reduce_axis((0, 24), "k")
    c = te.compute((rows, 16), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    y = te.compute((rows, 16), lambda i, j: c[i, j] + 1.0, "y")
    row, column = (axis.var.name for axis in c.op.axis)
    inside = [
        ComputeAt("c", "y", "m"), Reorder("c", ("k", row, column)), Unroll("c", row), Vectorize("c", column),
    ]  # fmt: skip
    kernel = built([a, b, y], [*shared_rows(y, tile, chunk), *inside], ("edge_vectors", "stack_tiles"))
    given = [RNG.standard_normal(s).astype("float32") for s in ((rows, 24), (24, 16))]
    np.testing.assert_allclose(kernel((rows, 16), *given), given[0] @ given[1] + 1, rtol=1e-5, atol=1e-5)
    before, after = peeled[-1]
    assert checks_in_loops(before) and after is not None and not checks_in_loops(after)


def window_kernel(rows, tile, chunk, window):
    """Sums of a window's rows, padded in place, computed and as numpy has them."""
    image, pad = te.placeholder((rows, 4 * LANES), name="image"), window // 2
    tir = dialect_here().tir

    def value(i, j):
        return tir.if_then_else(tir.all(i >= pad, i < rows + pad), image[i - pad, j], tir.const(0, "float32"))

    padded = te.compute((rows + 2 * pad, 4 * LANES), value, "padded")
    a = te.reduce_axis((0, window), "a")
    y = te.compute((rows, 4 * LANES), lambda i, j: te.sum(padded[i + a, j], a), "y")
    steps = [Inline("padded"), *shared_rows(y, tile, chunk, ("a",)), Unroll("y", "a")]
    kernel = built([image, y], steps, ("edge_vectors", "stack_tiles"))
    given = RNG.standard_normal((rows, 4 * LANES)).astype("float32")
    around = np.pad(given, ((pad, pad), (0, 0)))
    return kernel(given.shape, given), sum(around[n : n + rows] for n in range(window))


def asked(body):
    """How many choices between vectors a statement has."""
    values = [value for node in statements(body) for value in values_of(node)]
    return sum(called(part) == CHOICE and is_vector(part) for value in values for part in parts_of(value))


@pytest.mark.parametrize("rows, tile, chunk", [(12, 3, 6), (11, 3, 6), (23, 2, 12)])
def test_padding_that_cores_share(rows, tile, chunk, peeled):
    """Tiles of the first and of the last rows choose padding, the others nothing, whichever core computes them."""
    computed, expected = window_kernel(rows, tile, chunk, 3)
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-5)
    before, after = peeled[-1]
    assert asked(before) and not asked(after)


@pytest.mark.parametrize("chunk", [12, 24])
def test_edges_of_several_tiles(chunk, peeled):
    """Padding of three rows ends in the second tile of two: more kinds than copies. Tiles within choose nothing."""
    computed, expected = window_kernel(24, 2, chunk, 7)
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-5)
    before, after = peeled[-1]
    places = [n for n in statements(after) if kind_of(n) == "IfThenElse" and n.else_case is not None]
    assert not all(asked(body) for node in places for body in (node.then_case, node.else_case))


def test_one_loop_shares_rows_and_columns(monkeypatch):
    """The place of a vector is a remainder of the loop, which TVM 0.17 writes anew in each statement."""
    seen = recording(with_whole_vectors, monkeypatch)
    x = te.placeholder((31, 2 * LANES - 1), name="x")
    y = te.compute((31, 2 * LANES - 1), lambda i, j: x[i, j] * 2.0 + 1.0, "y")
    i, j = (axis.var.name for axis in y.op.axis)
    steps = [
        Split("y", i, (4, 2), ("p", "m", "r")), Split("y", j, (1, LANES), ("c", "d", "v")),
        Reorder("y", ("p", "c", "m", "d", "r", "v")), Fuse("y", ("p", "c"), "s"), Parallel("y", "s"),
        Unroll("y", "r"), Vectorize("y", "v"),
    ]  # fmt: skip
    kernel = built([x, y], steps, ("edge_vectors",))
    given = RNG.standard_normal((31, 2 * LANES - 1)).astype("float32")
    np.testing.assert_array_equal(kernel(given.shape, given), given * 2 + 1)
    ((_, after),) = seen
    loops = [node for node in statements(after) if kind_of(node) == "For" and int(node.kind) == SERIAL]
    assert [int(loop.extent) for loop in loops].count(LANES) == 0, "no vector is computed lane by lane"
