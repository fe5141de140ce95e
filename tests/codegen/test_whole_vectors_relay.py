"""What has to stay as TVM computes it, or be computed so that nothing else comes of it: conditions, names, choices."""

import time

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


def vectors(shape, value, *inputs, lanes=8):
    """An element-wise operator whose last axis is vectorised."""
    out = te.compute(shape, value, "out")
    schedule = te.create_schedule(out.op)
    schedule[out].vectorize(schedule[out].split(out.op.axis[-1], lanes)[1])
    return schedule, [*inputs, out]


def both(schedule, tensors, *given):
    """Answers without, and with whole vectors."""
    answers = []
    for on in (False, True):
        with EdgeVectors(on):
            built = tvm.build(schedule, tensors, WIDE)
        out = tvm.nd.array(np.full([int(e) for e in tensors[-1].shape], 77, tensors[-1].dtype))
        built(*(tvm.nd.array(g) for g in given), out)
        answers.append(out.numpy())
    return answers


def loads_of(func, name):
    found = []

    def look(node):
        if isinstance(node, tir.BufferLoad) and node.buffer.name == name:
            found.append(node)

    tir.stmt_functor.post_order_visit(func.body, look)
    return found


@pytest.mark.parametrize(
    "condition",
    [
        lambda i: i.astype("int8") < tir.const(0, "int8"),
        lambda i: i.astype("int8") * tir.const(2, "int8") < tir.const(1, "int8"),
        lambda i: (i.astype("uint32") - tir.const(4, "uint32")) < tir.const(1, "uint32"),
        lambda i: (i - 4).astype("uint32") < tir.const(1, "uint32"),
        lambda i: te.floordiv(i, 4) * 2 - i < 1,
        lambda i: te.floordiv(i, 4) < 3,
        lambda i: te.truncdiv(i, -4) < -2,
        lambda i: i.astype("int64") * tir.const(3, "int64") < tir.const(100, "int64"),
    ],
    ids=["int8", "int8 product", "uint32", "uint32 cast", "quotient and lane", "quotient", "negative", "int64"],
)
def test_conditions_of_numbers_that_wrap_or_are_divided(condition):
    a = te.placeholder((320,), "int32", "a")
    schedule, tensors = vectors((320,), lambda i: tir.if_then_else(condition(i), a[i] * 2, 0), a)
    plain, whole = both(schedule, tensors, np.arange(320, dtype="int32") + 1)
    assert (plain == whole).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32", "bool"])
def test_rows_that_are_told_by_numbers_of_another_type(dtype):
    a, rows = te.placeholder((300, 32), "int32", "a"), te.placeholder((8,), dtype, "rows")

    def value(i, j):
        return tir.if_then_else(j >= 1, a[rows[i].astype("int32"), j - 1], 0)

    schedule, tensors = vectors((8, 32), value, a, rows)
    image, told = np.arange(9600, dtype="int32").reshape(300, 32), np.array([0, 1, 2, 3, 4, 100, 7, 5]).astype(dtype)
    plain, whole = both(schedule, tensors, image, told)
    assert (plain == whole).all() and (whole[:, 1:] == image[told.astype(int), :-1]).all()


def test_a_choice_of_two_reads_each_where_it_is_chosen():
    """Two parts of a row, one after the other: vectors over their border read neither beyond its end."""
    a, b = te.placeholder((4, 5), "int32", "a"), te.placeholder((4, 27), "int32", "b")
    schedule, tensors = vectors((4, 32), lambda i, j: tir.if_then_else(j < 5, a[i, j], b[i, j - 5]), a, b)
    x, y = np.arange(20, dtype="int32").reshape(4, 5), np.arange(108, dtype="int32").reshape(4, 27) + 1000
    plain, whole = both(schedule, tensors, x, y)
    assert (whole == np.concatenate([x, y], 1)).all() and (plain == whole).all()
    made = with_edge_vectors(tvm.lower(schedule, tensors)["main"])
    ramps = [load.indices[0] for load in loads_of(made, "b") if isinstance(load.indices[0], tir.Ramp)]
    assert {int(ramp.lanes) for ramp in ramps} == {2, 8}, "of the first vector three, in twos"


def test_what_is_divided_in_one_choice_alone():
    a = te.placeholder((4, 5), "int32", "a")

    def value(i, j):
        return tir.if_then_else(j < 5, a[i, j], te.truncdiv(tir.const(100, "int32"), j - 4))

    schedule, tensors = vectors((4, 32), value, a)
    plain, whole = both(schedule, tensors, np.arange(20, dtype="int32").reshape(4, 5))
    assert (plain == whole).all()


def test_loops_within_each_other_each_with_lanes_of_its_own():
    """Rows of tiles in rows of tiles: one of them is taken apart."""
    a, b, c, d = (tir.decl_buffer((256,), "float32", name) for name in "abcd")
    t, u, p, q = (tir.Var(name, "int32") for name in "tupq")
    zero = tir.const(0, "float32")
    one = tir.if_then_else(t * 8 + p >= 1, tir.BufferLoad(a, [u * 32 + t * 8 + p - 1]), zero)
    two = tir.if_then_else(u * 8 + q < 21, tir.BufferLoad(b, [t * 32 + u * 8 + q]), zero)
    inner = tir.SeqStmt([
        tir.For(p, 0, 8, 2, tir.BufferStore(c, one, [u * 32 + t * 8 + p])),
        tir.For(q, 0, 8, 2, tir.BufferStore(d, two, [t * 32 + u * 8 + q])),
    ])  # fmt: skip
    params = {tir.Var(f"{buffer.name}_", "handle"): buffer for buffer in (a, b, c, d)}
    func = tir.PrimFunc(list(params), tir.For(t, 0, 4, 0, tir.For(u, 0, 4, 0, inner)), buffer_map=params)
    func = func.with_attr({"global_symbol": "main", "tir.noalias": True})
    given, answers = [np.arange(256, dtype="float32") + n for n in (1, 300)], []
    for on in (False, True):
        with EdgeVectors(on):
            built = tvm.build(tvm.IRModule({"main": func}), target=WIDE)
        out = [tvm.nd.array(np.full(256, -1, "float32")) for _ in "cd"]
        built["main"](*(tvm.nd.array(g) for g in given), *out)
        answers.append(np.stack([o.numpy() for o in out]))
    assert (answers[0] == answers[1]).all()


def test_a_tile_over_the_edge_none_of_whose_chosen_lanes_is_computed():
    b, k = te.placeholder((3, 19), "int32", "b"), te.reduce_axis((0, 3), "k")
    c = te.compute(
        (19,), lambda i: te.sum(tir.if_then_else(tir.floormod(i, 8) >= 5, b[k, i], tir.const(1, "int32")), k), "c"
    )
    schedule = te.create_schedule(c.op)
    kept = schedule.cache_write(c, "local")
    outer, inner = schedule[c].split(c.op.axis[0], 8)
    schedule[c].vectorize(inner)
    schedule[kept].compute_at(schedule[c], outer)
    schedule[kept].reorder(schedule[kept].op.reduce_axis[0], schedule[kept].op.axis[0])
    schedule[kept].vectorize(schedule[kept].op.axis[0])
    given = np.arange(57, dtype="int32").reshape(3, 19)
    plain, whole = both(schedule, [b, c], given)
    assert (plain == whole).all() and (whole == np.where(np.arange(19) % 8 >= 5, given.sum(0), 3)).all()


def test_loops_that_nobody_has_vectorised_stay():
    """An image padded by a plain loop over each row: no vector has so many lanes."""
    a = te.placeholder((4000,), "float32", "a")
    out = te.compute((4002,), lambda i: tir.if_then_else(tir.all(i >= 1, i < 4001), a[i - 1], 0.0), "out")
    func = tvm.lower(te.create_schedule(out.op), [a, out])["main"]
    assert with_edge_vectors(func).same_as(func)


def test_a_long_row_of_tiles_is_judged_in_no_time():
    a, k = te.placeholder((16 * 4096,), "float32", "a"), te.reduce_axis((0, 7), "k")
    padded = te.compute(
        (16 * 4096 + 6,), lambda i: tir.if_then_else(tir.all(i >= 3, i < 16 * 4096 + 3), a[i - 3], 0.0), "padded"
    )
    out = te.compute((16 * 4096,), lambda i: te.sum(padded[i + k], k), "out")
    schedule = te.create_schedule(out.op)
    schedule[padded].compute_inline()
    outer, inner = schedule[out].split(out.op.axis[0], 16)
    schedule[out].reorder(outer, schedule[out].op.reduce_axis[0], inner)
    schedule[out].unroll(schedule[out].op.reduce_axis[0])
    schedule[out].vectorize(inner)
    func = tvm.lower(schedule, [a, out])["main"]
    begin = time.process_time()
    assert not with_edge_vectors(func).same_as(func)
    assert time.process_time() - begin < 10, "a look at each tile in turn took 18 s"


def test_elements_that_change_while_their_name_stands():
    a, b = tir.decl_buffer((65,), "int32", "a"), tir.decl_buffer((64 + 8 * 9,), "int32", "b")
    t, p, x, y = (tir.Var(name, "int32") for name in "tpxy")
    at, zero = t * 8 + p, tir.const(0, "int32")
    # Each lane is made of the one before it, by a name.
    store = tir.BufferStore(a, tir.if_then_else(tir.LT(0, at), x, zero), [at + 1])
    named = tir.LetStmt(x, tir.BufferLoad(a, [at]) + 1, store)
    func = tir.PrimFunc([a.data], tir.For(t, 0, 8, 0, tir.For(p, 0, 8, 0, named)))
    assert with_edge_vectors(func).same_as(func)
    # Where lanes are stored is told by an element that is written in between.
    chosen = tir.if_then_else(tir.LT(0, at), tir.const(7, "int32") + p, zero)
    lanes = tir.For(p, 0, 8, 0, tir.BufferStore(b, chosen, [at + y * 8]))
    inside = tir.SeqStmt([tir.BufferStore(a, tir.const(3, "int32"), [t]), lanes])
    func = tir.PrimFunc([a.data, b.data], tir.For(t, 0, 8, 0, tir.LetStmt(y, tir.BufferLoad(a, [t]), inside)))
    assert len(loads_of(with_edge_vectors(func), "a")) <= 3, "one for each kind of tiles, none where b is stored"
