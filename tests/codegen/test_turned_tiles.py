"""Transposes in registers, on either TVM line."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.codegen import rewrites  # noqa: E402
from roller_tvm.codegen.flat import kind_of, loads_of  # noqa: E402
from roller_tvm.codegen.rewrites.turned_tiles import with_turned_tiles  # noqa: E402
from roller_tvm.roller.steps import Parallel, Reorder, Split, Vectorize  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from .kernels import built  # noqa: E402

if line() == "relay":
    from tvm import tir
else:
    from tvm import tirx as tir


def transpose(rows, columns, lanes, dtype="float32", beside=False):
    """The transpose of a matrix, in vectors along its rows, whose loop goes on along its columns; plus another."""
    x, y = te.placeholder((rows, columns), dtype, "x"), te.placeholder((columns, rows), dtype, "y")
    out = te.compute((columns, rows), lambda i, j: x[j, i] + y[i, j] if beside else x[j, i], "out")
    steps = [
        Split("out", "j", (lanes,), ("jo", "jv")), Reorder("out", ("jo", "i", "jv")),
        Parallel("out", "jo"), Vectorize("out", "jv"),
    ]  # fmt: skip
    return [x, *([y] if beside else []), out], steps


@pytest.fixture
def strides(monkeypatch):
    """Elements from lane to lane of every load of vectors after the rewrite, and whether it made anything."""
    seen = {"strides": set(), "made": False}

    def looked(func, dialect):
        made = with_turned_tiles(func, dialect)
        seen["made"] |= made is not func
        for load in loads_of(made.body):
            for index in load.indices:
                if kind_of(index) == "Ramp":
                    seen["strides"].add(int(index.stride))
        return made

    monkeypatch.setitem(rewrites.REWRITES, "turned_tiles", looked)
    return seen


@pytest.mark.parametrize(
    "rows, columns, lanes, dtype, turned",
    [(16, 12, 8, "float32", True), (16, 13, 8, "float32", True), (32, 7, 16, "int32", True), (8, 5, 4, "float32", True),
     (32, 12, 32, "float32", False), (16, 12, 8, "float64", False)],
)  # fmt: skip
@pytest.mark.parametrize("beside", [False, True])
def test_four_neighbours_of_the_rows_at_a_time(rows, columns, lanes, dtype, turned, beside, strides):
    """Trips that four do not divide are left to a loop of their own, which reads lane by lane."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-99, 99, shape).astype(dtype) for shape in ((rows, columns), (columns, rows)))
    kernel = built(*transpose(rows, columns, lanes, dtype, beside), ("edge_vectors",))
    given = (x, y) if beside else (x,)
    np.testing.assert_array_equal(kernel((columns, rows), *given), x.T + y if beside else x.T)
    assert strides["made"] == turned
    assert (columns in strides["strides"]) == (not turned or columns % 4 > 0)


def test_rows_over_an_edge(strides):
    """20 rows in vectors of 8: the last one has 4 lanes, which are turned, too."""
    x = np.random.default_rng(0).random((20, 8), "float32")
    kernel = built(*transpose(20, 8, 8), ("edge_vectors",))
    np.testing.assert_array_equal(kernel((8, 20), x), x.T)
    assert strides["made"] and strides["strides"] <= {1}


@pytest.mark.one_line
def test_what_is_behind_a_check_stays_there(strides):
    """What a check keeps from being loaded may lie outside of its tensor, as three of four neighbours may."""
    x, kept = te.placeholder((8, 8), "float32", "x"), te.placeholder((8,), "float32", "kept")
    out = te.compute((8, 8), lambda i, j: tir.if_then_else(kept[i] > 0, x[j, i], tir.const(0, "float32")), "out")
    rng = np.random.default_rng(0)
    given, rows = rng.random((8, 8), "float32"), rng.standard_normal(8).astype("float32")
    made = built([x, kept, out], [Vectorize("out", "j")], ("edge_vectors",))((8, 8), given, rows)
    np.testing.assert_array_equal(made, given.T * (rows > 0)[:, None])
    assert not strides["made"]


def test_of_one_matrix_nothing_is_read_before_it_is_written():
    """out[i, j] = out[j, i] in place would read what an earlier trip has written: such loops stay."""
    from roller_tvm.codegen.flat import Memory, statements

    seen = []

    def looked(func, dialect):
        memory = Memory.of_body(func.body)
        seen.extend(s for s in statements(func.body) if kind_of(s) == "BufferStore" and
                    memory.of(s.buffer) in memory.read_in(s))  # fmt: skip
        return with_turned_tiles(func, dialect)

    n = 8
    x = te.placeholder((n, n), "float32", "x")
    k = te.reduce_axis((0, 4), "k")
    out = te.compute((n, n), lambda i, j: te.sum(x[j, i] * (k + 1).astype("float32"), k), "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rewrites.REWRITES, "turned_tiles", looked)
        kernel = built([x, out], [Reorder("out", ("i", "k", "j")), Vectorize("out", "j")], ("edge_vectors",))
    given = np.random.default_rng(0).random((n, n), "float32")
    np.testing.assert_allclose(kernel((n, n), given), 10 * given.T, rtol=1e-6)
    assert seen
