"""Vectors over the edge of an axis: the same numbers, no lane checked by itself, only within the context."""

import re

import numpy as np
import pytest

pytestmark = [pytest.mark.tvm, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import te, tir  # noqa: E402

from roller_tvm.codegen.rewrites import rewritten  # noqa: E402
from roller_tvm.relay import EdgeVectors  # noqa: E402

WIDE = "llvm -mcpu=core-avx2"


def with_edge_vectors(func):
    return rewritten(func, {"edge_vectors"})


def product(columns, tile, vector, rows=6, depth=5, dtype="float32", after=None, outermost="j"):
    """A product in register tiles of 3 rows and `tile` columns, the last of which may stand over the edge."""
    a, b = te.placeholder((rows, depth), dtype, "a"), te.placeholder((depth, columns), dtype, "b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    out = te.compute((rows, columns), lambda i, j: after(c[i, j], i, j), "out") if after else c
    schedule = te.create_schedule(out.op)
    kept = schedule.cache_write(c, "local") if out is c else c
    i, j = schedule[out].op.axis
    im, ii = schedule[out].split(i, 3)
    jm, jr = schedule[out].split(j, tile)
    jn, ji = schedule[out].split(jr, vector)
    outer, inner = (jm, im) if outermost == "j" else (im, jm)
    schedule[out].reorder(outer, inner, ii, jn, ji)
    schedule[out].parallel(outer)
    schedule[out].unroll(jn)
    schedule[out].vectorize(ji)
    schedule[kept].compute_at(schedule[out], inner)
    i, j = schedule[kept].op.axis
    n, v = schedule[kept].split(j, vector)
    schedule[kept].reorder(schedule[kept].op.reduce_axis[0], i, n, v)
    schedule[kept].unroll(i)
    schedule[kept].unroll(n)
    schedule[kept].vectorize(v)
    return schedule, [a, b, out]


def lowered(schedule, tensors):
    return tvm.lower(schedule, tensors)["main"]


def text(library):
    return re.sub("0x[0-9a-f]+", "", library.get_source("ll"))  # addresses of this process


def checked(func):
    """How many loops there are in which each iteration is checked."""
    found = []

    def look(node):
        if isinstance(node, tir.For) and isinstance(node.body, tir.IfThenElse) and node.body.else_case is None:
            found.append(node)

    tir.stmt_functor.post_order_visit(func.body, look)
    return len(found)


def test_no_lane_is_checked_by_itself():
    func = lowered(*product(37, 16, 8))
    made = with_edge_vectors(func)
    assert checked(func) == 8 and not checked(made)
    assert with_edge_vectors(made).same_as(made), "nothing is left to do"


def test_loops_that_are_no_lanes_stay():
    """Where one iteration reads what another has written, checked or not."""
    a = tir.decl_buffer((64,), "float32", "a")
    t, n = tir.Var("t", "int32"), tir.Var("n", "int32")
    at = t * 8 + n
    before = tir.BufferLoad(a, [at])
    step = tir.BufferStore(a, before + tir.const(1, "float32"), [at + 1])
    lanes = tir.For(n, 0, 8, 0, tir.IfThenElse(tir.likely(at < 61), step, None))
    func = tir.PrimFunc([a.data], tir.For(t, 0, 8, 0, lanes))
    assert with_edge_vectors(func).same_as(func)
    alone = tir.BufferStore(a, before + tir.const(1, "float32"), [at])
    lanes = tir.For(n, 0, 8, 0, tir.IfThenElse(tir.likely(at < 61), alone, None))
    func = tir.PrimFunc([a.data], tir.For(t, 0, 8, 0, lanes))
    assert not with_edge_vectors(func).same_as(func)


def test_whole_numbers_that_are_divided_stay_within_their_lanes():
    """In a lane that stands over the edge, what they are divided by may be 0."""
    divisor = te.placeholder((6, 37), "int32", "d")
    k = te.reduce_axis((0, 5), "k")
    a = te.placeholder((6, 5), "int32", "a")
    c = te.compute((6, 37), lambda i, j: te.sum(te.truncdiv(a[i, k], divisor[i, j]), k), "c")
    schedule = te.create_schedule(c.op)
    kept = schedule.cache_write(c, "local")
    i, j = schedule[c].op.axis
    outer, inner = schedule[c].split(j, 8)
    schedule[c].reorder(outer, i, inner)
    schedule[c].vectorize(inner)
    schedule[kept].compute_at(schedule[c], i)
    schedule[kept].reorder(schedule[kept].op.reduce_axis[0], *schedule[kept].op.axis)
    schedule[kept].vectorize(schedule[kept].op.axis[1])
    rng, out = np.random.default_rng(3), tvm.nd.array(np.full((6, 37), 77, "int32"))
    given = rng.integers(-99, 99, (6, 5)).astype("int32"), rng.integers(1, 9, (6, 37)).astype("int32")
    with EdgeVectors():
        tvm.build(schedule, [a, divisor, c], WIDE)(*(tvm.nd.array(g) for g in given), out)
    expected = np.trunc(given[0][:, :, None] / given[1][:, None, :]).sum(1)
    assert (out.numpy() == expected).all()


def test_only_within_its_context():
    schedule, tensors = product(37, 16, 8)
    plain = text(tvm.build(schedule, tensors, WIDE))
    with EdgeVectors():
        inside = text(tvm.build(schedule, tensors, WIDE))
        with EdgeVectors(False):
            assert text(tvm.build(schedule, tensors, WIDE)) == plain
    assert text(tvm.build(schedule, tensors, WIDE)) == plain != inside
