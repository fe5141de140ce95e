"""Vectors of neighbours over several axes, in which TVM 0.27 computes the place of each lane."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax
pytest.importorskip("tvm.relax")

from tvm import te  # noqa: E402

from roller_tvm.codegen.flat import kind_of, loads_of, statements  # noqa: E402
from roller_tvm.relax import rewrites  # noqa: E402


def built(shape, lanes, place):
    """A kernel that adds two tensors, one of them read at another place; the kinds of indices that are left; inputs."""
    x, y = (te.placeholder(shape, "float32", name=name) for name in "xy")
    out = te.compute(shape, lambda *i: x[i] + y[place(*i)], name="out")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y, out]))
    loops = sch.get_loops(sch.get_sblock("out"))
    _, inner = sch.split(sch.fuse(*loops), [None, lanes])
    sch.vectorize(inner)
    found, before = [], rewrites.rewritten

    def kept(func, names):
        func = before(func, names)
        for node in statements(func.body):
            found.extend(kind_of(load.indices[0]) for load in loads_of(node))
            found.extend([kind_of(node.indices[0])] if kind_of(node) == "BufferStore" else [])
        return func

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrites, "rewritten", kept)
        kernel = tvm.compile(rewrites.EdgeVectors()(sch.mod), target="llvm")
    inputs = [np.random.default_rng(n).random(shape, "float32") for n in range(2)]
    return kernel, found, inputs


def ran(kernel, inputs):
    tensors = [tvm.runtime.tensor(value) for value in (*inputs, np.zeros_like(inputs[0]))]
    kernel(*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("shape, lanes", [((8, 8, 13, 16), 64), ((3, 7, 7, 16), 48), ((5, 6, 10), 4)])
def test_rows_that_a_vector_crosses(shape, lanes):
    kernel, found, (x, y) = built(shape, lanes, lambda *i: i)
    assert set(found) == {"Ramp"}
    np.testing.assert_array_equal(ran(kernel, [x, y]), x + y)


def test_lanes_that_are_no_neighbours_stay():
    kernel, found, (x, y) = built((4, 6, 13, 16), 64, lambda a, b, c, d: (a, b, 12 - c, d))
    assert set(found) - {"Ramp"}
    np.testing.assert_array_equal(ran(kernel, [x, y]), x + y[:, :, ::-1])


def test_places_of_no_variable():
    """One vector is all of the kernel: its places are numbers, here of a minimum."""
    kernel, _, (x, y) = built((4, 12), 48, lambda a, b: (a, tvm.tirx.min(b + 1, 11)))
    np.testing.assert_array_equal(ran(kernel, [x, y]), x + y[:, np.minimum(np.arange(12) + 1, 11)])
