"""Sums that separate: Winograd's transforms an axis at a time, with the same answers."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

import tvm_ffi  # noqa: E402
from tvm import s_tir, te, tirx  # noqa: E402

from roller_tvm.codegen.tensorir_separable import with_separated_sums  # noqa: E402
from roller_tvm.te.winograd import constant, matrices  # noqa: E402

from ..sampling import covering  # noqa: E402

TILES, LANES = 3, 16
RNG = np.random.default_rng(33)


def there(tile, second="y"):
    """Images are transformed: loops of the results x, y, and of the sums p, q."""
    matrix = matrices(tile)[1].astype("float32")
    edge = len(matrix)
    known, data = constant(matrix, "there"), te.placeholder((edge, edge, TILES, LANES), name="data")
    p, q = (te.reduce_axis((0, edge), name=name) for name in "pq")

    def element(x, y, t, c):
        other = x if second == "x" else y
        return te.sum(data[p, q, t, c] * known[x, p] * known[other, q], axis=[p, q])

    made = te.compute((edge, edge, TILES, LANES), element, name="made")
    schedule = s_tir.Schedule(te.create_prim_func([data, made]))
    schedule.compute_inline(schedule.get_sblock("there"))
    x, y, t, c, p, q = schedule.get_loops(schedule.get_sblock("made"))
    wanted = "xp,pqtc,yq->xytc" if second == "y" else "xp,pqtc,xq->xtc"
    return schedule, (t, p, q, x, y, c), (matrix, wanted)


def back(tile):
    """Products become pixels: tiles of an image's rows and columns."""
    matrix = matrices(tile)[0].astype("float32").T
    edge = matrix.shape[1]
    known, data = constant(matrix.T, "back"), te.placeholder((edge, edge, TILES, TILES, LANES), name="data")
    r, s = (te.reduce_axis((0, edge), name=name) for name in "rs")

    def element(y, x, c):
        return te.sum(data[r, s, y // tile, x // tile, c] * known[r, y % tile] * known[s, x % tile], axis=[r, s])

    made = te.compute((TILES * tile, TILES * tile, LANES), element, name="made")
    schedule = s_tir.Schedule(te.create_prim_func([data, made]))
    schedule.compute_inline(schedule.get_sblock("back"))
    y, x, c, r, s = schedule.get_loops(schedule.get_sblock("made"))
    (y, u), (x, v) = (schedule.split(loop, [None, tile]) for loop in (y, x))
    return schedule, (y, x, r, s, u, v, c), (matrix, "ur,rsyxc,vs->yuxvc")


def scheduled(schedule, loops, unrolled=4, apart=True):
    """The order of loops, the last four before the vector unrolled (the last `unrolled` of them)."""
    schedule.reorder(*loops)
    for loop in loops[len(loops) - 1 - unrolled : -1]:
        schedule.unroll(loop)
    schedule.vectorize(loops[-1])
    if apart:
        schedule.decompose_reduction(schedule.get_sblock("made"), loops[-5])
    return schedule.mod["main"]


def computed(func, data):
    shape = [int(extent) for extent in func.params[1].ty.shape]
    result = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    tvm.tirx.build(func, target={"kind": "llvm"})["main"](tvm.runtime.tensor(data), result)
    return result.numpy()


@pytest.mark.parametrize(("nest", "tile"), covering([there, back], [2, 4]))
def test_transforms_are_taken_axis_by_axis(nest, tile):
    schedule, loops, (matrix, wanted) = nest(tile)
    func = scheduled(schedule, loops)
    made = with_separated_sums(func)
    assert "made_sums" in str(made) and "made_init" not in str(made) and "unroll" not in str(made)
    data = RNG.standard_normal([int(extent) for extent in func.params[0].ty.shape]).astype("float32")
    right = np.einsum(wanted, *(array.astype("float64") for array in (matrix, data, matrix)))
    for kernel in (func, made):
        found = computed(kernel, data)
        np.testing.assert_allclose(found, right.reshape(found.shape), atol=1e-5 * np.abs(right).max())


def test_sums_that_do_not_separate_stay_as_they_are():
    schedule, loops, _ = there(4, second="x")
    func = scheduled(schedule, loops)
    assert with_separated_sums(func).same_as(func)


@pytest.mark.parametrize("given", [{"unrolled": 3}, {"apart": False}])
def test_sums_in_loops_or_that_set_their_own_start_stay_as_they_are(given):
    func = scheduled(*there(4)[:2], **given)
    assert with_separated_sums(func).same_as(func)


def test_sums_that_start_from_another_number_stay_as_they_are():
    func = scheduled(*there(2)[:2])
    one = tirx.const(1.0, "float32")

    def store(node):
        return tirx.BufferStore(node.buffer, one, node.indices) if getattr(node.value, "value", None) == 0 else node

    func = tvm_ffi.structural_map(func, (tirx.BufferStore, store), order="post")
    assert with_separated_sums(func).same_as(func)
