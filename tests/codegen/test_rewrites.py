"""Rewrites of flattened functions on either TVM line: the same numbers, and what each is for."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.codegen import rewrites  # noqa: E402
from roller_tvm.codegen.flat import kind_of, number_of, statements  # noqa: E402
from roller_tvm.codegen.rewrites import whole_vectors  # noqa: E402
from roller_tvm.codegen.rewrites.prefetch_panels import SEVERAL  # noqa: E402
from roller_tvm.codegen.rewrites.unrolled_sums import with_unrolled_sums  # noqa: E402
from roller_tvm.device.known import register_file_bytes  # noqa: E402
from roller_tvm.roller.steps import (  # noqa: E402
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Parallel,
    Reorder,
    Split,
    Unroll,
    Vectorize,
)
from roller_tvm.tvm_env import line  # noqa: E402

from ..sampling import covering  # noqa: E402
from .kernels import THREADS, built  # noqa: E402

if line() == "relay":
    from tvm import tir
else:
    from tvm import tirx as tir


def product(columns, tile, vector, rows=6, depth=5, dtype="float32", after=None, outermost="j", tile_rows=3):
    """A product in register tiles of a few rows and `tile` columns, the last of which may stand over the edge."""
    a, b = te.placeholder((rows, depth), dtype, "a"), te.placeholder((depth, columns), dtype, "b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    out = te.compute((rows, columns), lambda i, j: after(c[i, j], i, j), "out") if after else c
    outer, inner = ("jm", "im") if outermost == "j" else ("im", "jm")
    return [a, b, out], [
        CacheWrite("c", "local", "sums"), *([Inline("c")] if after else []),
        Split(out.op.name, "i", (tile_rows,), ("im", "ii")),
        Split(out.op.name, "j", (tile // vector, vector), ("jm", "jn", "ji")),
        Reorder(out.op.name, (outer, inner, "ii", "jn", "ji")),
        Parallel(out.op.name, outer), Unroll(out.op.name, "jn"), Vectorize(out.op.name, "ji"),
        ComputeAt("sums", out.op.name, inner), Split("sums", "j", (vector,), ("n", "v")),
        Reorder("sums", ("k", "i", "n", "v")), Unroll("sums", "i"), Unroll("sums", "n"), Vectorize("sums", "v"),
    ]  # fmt: skip


@pytest.mark.one_line
@pytest.mark.parametrize(
    "columns, tile, vector, rows, outermost, dtype",
    covering([(37, 16, 8, 6), (37, 8, 8, 7), (41, 16, 8, 6), (33, 16, 16, 6), (31, 32, 8, 6), (45, 12, 4, 8),
              (36, 8, 8, 6), (100, 16, 16, 7)], "ij", ["float32", "float64", "int32"]),
)  # fmt: skip
def test_vectors_over_an_edge(columns, tile, vector, rows, outermost, dtype):
    tensors, steps = product(columns, tile, vector, rows, dtype=dtype, outermost=outermost)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, s).astype(dtype) for s in ((rows, 5), (5, columns)))
    assert (built(tensors, steps, ("edge_vectors",))((rows, columns), a, b) == a @ b).all()


@pytest.mark.one_line
@pytest.mark.parametrize("rows, columns", [(7, 32), (8, 32), (8, 37), (6, 32)])
def test_rows_over_an_edge_are_checked_outside_of_the_sum(rows, columns, monkeypatch):
    """Tiles of 3 rows: the last one has 1 or 2, which its own copy of the loops knows; (6, 32) has no edge."""
    seen = []

    def look(body, _dialect):
        seen.append(body)

    monkeypatch.setattr(whole_vectors, "REWRITINGS", (*whole_vectors.REWRITINGS, look))
    tensors, steps = product(columns, 16, 8, rows, depth=64)
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, s).astype("float32") for s in ((rows, 64), (64, columns)))
    assert (built(tensors, steps, ("edge_vectors",))((rows, columns), a, b) == a @ b).all()
    (body,) = seen
    sums = [loop for loop in statements(body) if kind_of(loop) == "For" and number_of(loop.extent) == 64]
    tiles = 1 + (rows % 3 > 0)
    assert len(sums) == tiles * (1 + (columns % 16 > 0))
    assert not [node for loop in sums for node in statements(loop) if kind_of(node) == "IfThenElse"]


@pytest.mark.one_line
@pytest.mark.parametrize(
    "after",
    [
        lambda c, i, j: tir.Max(c, tir.const(0, "float32")),
        lambda c, i, j: tir.Select(c > 0, c, tir.const(0.5, "float32") * c),
        lambda c, i, j: tir.if_then_else(j < 20, c, -c),
        lambda c, i, j: tir.if_then_else(c > 0, tir.floor(c), -c),
        lambda c, i, j: te.exp(c),
        lambda c, i, j: c + (i * 100 + j).astype("float32"),
    ],
    ids=["max", "select", "if", "if of what is read", "exp", "lanes"],
)
def test_what_follows_a_sum_over_an_edge(after):
    tensors, steps = product(37, 16, 8, after=after)
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype("float32") for s in ((6, 5), (5, 37)))
    plain, made = (built(tensors, steps, names)((6, 37), a, b) for names in ((), ("edge_vectors",)))
    np.testing.assert_allclose(made, plain, rtol=1e-6, atol=1e-6)


def tiled(rows, columns, dtype="float32"):
    """A product whose sums of so many rows and columns are kept in a buffer of their own."""
    a, b = te.placeholder((rows * 3, 40), dtype, "a"), te.placeholder((40, columns), dtype, "b")
    k = te.reduce_axis((0, 40), "k")
    c = te.compute((rows * 3, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    return [a, b, c], [
        CacheWrite("c", "local", "sums"), Split("c", "i", (rows,), ("outer", "inner")), Parallel("c", "outer"),
        ComputeAt("sums", "c", "outer"), Reorder("sums", ("k", "i", "j")), Unroll("sums", "i"), Vectorize("sums", "j"),
    ]  # fmt: skip


@pytest.mark.one_line
@pytest.mark.parametrize(
    "rows, columns, dtype", covering([(8, 8), (16, 16), (5, 24), (20, 24)], ["float32", "float64", "int32"])
)
def test_tiles_on_the_stack(rows, columns, dtype):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, s).astype(dtype) for s in ((rows * 3, 40), (40, columns)))
    assert (built(*tiled(rows, columns, dtype), ("stack_tiles",))((rows * 3, columns), a, b) == a @ b).all()


def test_what_fits_into_the_registers_is_on_the_stack_and_no_more():
    workspaces = r"@__TVMBackendAllocWorkspace,"
    fits, larger = tiled(16, register_file_bytes() // 64), tiled(16, register_file_bytes() // 32)
    assert built(*fits).count(workspaces) and not built(*fits, ("stack_tiles",)).count(workspaces)
    plain = built(*larger)
    assert plain.count(workspaces) and plain.text == built(*larger, ("stack_tiles",)).text, "nothing small in it"


@pytest.mark.parametrize(
    "rows, vectors, depth, steps",
    [(4, 2, 400, 4), (4, 2, 402, 2), (4, 2, 401, 1), (3, 2, 400, 1), (8, 1, 400, 1), (6, 2, 400, 4), (3, 3, 400, 4)],
)
def test_sums_go_on_several_steps_in_a_trip(rows, vectors, depth, steps, monkeypatch):
    """LLVM itself unrolls a body of 6 vectors; of rows of one vector it moves the sums from register to register."""
    seen = []

    def look(func, dialect):
        seen.append(with_unrolled_sums(func, dialect))
        return seen[-1]

    monkeypatch.setitem(rewrites.REWRITES, "unrolled_sums", look)
    tensors, schedule = product(vectors * 16, vectors * 8, 8, rows * 2, depth, tile_rows=rows)
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-9, 9, s).astype("float32") for s in ((rows * 2, depth), (depth, vectors * 16)))
    assert (built(tensors, schedule, ("stack_tiles",))((rows * 2, vectors * 16), a, b) == a @ b).all()
    trips = {number_of(loop.extent) for func in seen for loop in statements(func.body) if kind_of(loop) == "For"}
    assert {depth // steps, steps} - {1} <= trips
    assert (depth in trips) == (steps == 1)


ROWS, PANELS, DEPTH, WIDTH = 6, 5, 24, 16


@pytest.mark.parametrize("wide", [False, True] if line() == "relay" else [False])
@pytest.mark.parametrize("order, wanted", [("pik", True), ("ipk", False)])
def test_the_next_panel_is_asked_for(order, wanted, wide):
    """Rows times packed weights: panels of 16 columns."""
    a = te.placeholder((ROWS, DEPTH), "float32", "a")
    b = te.placeholder((PANELS, DEPTH, WIDTH), "float32", "b")
    k = te.reduce_axis((0, DEPTH), "k")
    c = te.compute((PANELS, ROWS, WIDTH), lambda p, i, j: te.sum(a[i, k] * b[p, k, j], k), "c")
    steps = [Reorder("c", (*order, "j")), Vectorize("c", "j")]
    rng = np.random.default_rng(1)
    x, y = rng.random((ROWS, DEPTH), "float32"), rng.random((PANELS, DEPTH, WIDTH), "float32")
    answers = []
    for names in ((), ("prefetch",)):
        kernel = built([a, b, c], steps, (*names, *["wide_indices"][:wide]))
        answers.append(kernel((PANELS, ROWS, WIDTH), x, y))
        assert bool(kernel.count(r"call void @llvm\.prefetch")) == (bool(names) and wanted)
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], np.einsum("ik,pkj->pij", x, y), rtol=1e-5)


@pytest.mark.parametrize("order, wanted", [("pi", True), ("ip", False)])
def test_the_next_panel_is_asked_for_by_chunks_that_threads_share(order, wanted):
    """Panels and rows are one loop: of its trips each row's asks for a part of the next panel."""
    many = SEVERAL * THREADS  # panels
    a, b = te.placeholder((ROWS, DEPTH), "float32", "a"), te.placeholder((many, DEPTH, WIDTH), "float32", "b")
    k = te.reduce_axis((0, DEPTH), "k")
    c = te.compute((many, ROWS, WIDTH), lambda p, i, j: te.sum(a[i, k] * b[p, k, j], k), "c")
    d = te.compute((many, ROWS, WIDTH), lambda p, i, j: c[p, i, j] + 1.0, "d")
    steps = [Reorder("d", (*order, "j")), Fuse("d", tuple(order), "chunk"), Parallel("d", "chunk"), Vectorize("d", "j"),
             ComputeAt("c", "d", "chunk"), Reorder("c", ("p", "i", "k", "j")), Vectorize("c", "j")]  # fmt: skip
    rng = np.random.default_rng(1)
    x, y = rng.random((ROWS, DEPTH), "float32"), rng.random((many, DEPTH, WIDTH), "float32")
    plain, asking = (built([a, b, d], steps, names) for names in ((), ("prefetch",)))
    assert not plain.count(r"call void @llvm\.prefetch")
    assert bool(asking.count(r"call void @llvm\.prefetch")) == wanted
    answers = [kernel((many, ROWS, WIDTH), x, y) for kernel in (plain, asking)]
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], np.einsum("ik,pkj->pij", x, y) + 1, rtol=1e-5)
