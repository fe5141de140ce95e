"""What streams through a kernel and is asked for ahead, on the TVM line at hand: what one of its loops alone reads."""

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.roller.steps import ComputeAt, Reorder, Vectorize  # noqa: E402

from .kernels import ASKED, ASKING, built, planned  # noqa: E402

ROWS, TERMS, PANELS, WIDTH = 2000, 512, 256, 16  # 4 and 8 MB, more than a core's caches keep
ANY = r"call void @llvm\.prefetch"


def test_what_one_loop_reads_is_asked_for_once():
    x, w = te.placeholder((TERMS,), name="x"), te.placeholder((PANELS, TERMS, WIDTH), name="w")
    k = te.reduce_axis((0, TERMS), name="k")
    y = te.compute((PANELS, WIDTH), lambda p, j: te.sum(x[k] * w[p, k, j], axis=k), name="y")
    z = te.compute((PANELS, WIDTH), lambda p, j: y[p, j] + 1.0, name="z")
    steps = [Vectorize("z", "j"), ComputeAt("y", "z", "p"), Reorder("y", ("p", "k", "j")), Vectorize("y", "j")]
    made = built([x, w, z], steps, ("prefetch",))
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype("float32") for shape in ((TERMS,), (PANELS, TERMS, WIDTH)))
    np.testing.assert_allclose(made((PANELS, WIDTH), a, b), np.einsum("k,pkj->pj", a, b) + 1, rtol=1e-4, atol=1e-3)
    assert not made.count(ANY), "these cores follow a stream alone"
    asking = built([x, w, z], steps, ("prefetch",), ASKING)
    assert asking.count(ANY) and not asking.count(ASKED), "the address of a prefetch is no read"


def test_rows_that_several_loops_read_in_turn_are_not():
    x, i = te.placeholder((ROWS, TERMS), name="x"), te.reduce_axis((0, TERMS), name="i")
    total = te.compute((ROWS,), lambda r: te.sum(x[r, i], axis=i), name="total")
    k = te.reduce_axis((0, TERMS), name="j")
    apart = te.compute((ROWS,), lambda r: te.sum((x[r, k] - total[r]) * (x[r, k] - total[r]), axis=k), name="apart")
    y = te.compute((ROWS, TERMS), lambda r, j: (x[r, j] - total[r]) * apart[r], name="y")
    made, plan = planned([x, y], ("prefetch",))
    given = np.random.default_rng(8).standard_normal((ROWS, TERMS)) / TERMS
    off = given - given.sum(1, keepdims=True)
    expected = off * (off * off).sum(1, keepdims=True)
    np.testing.assert_allclose(made((ROWS, TERMS), given.astype("float32")), expected, rtol=1e-3, atol=1e-5)
    assert [p.recipe for p in plan.programs] == ["cpu.rows"], plan
    assert not planned([x, y], ("prefetch",), ASKING)[0].count(ANY)
