"""Heads that share keys: multiplied as one by what is repeated, whatever stands between; copies of other kinds stay."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.relax, pytest.mark.optimised]

from tvm import relax, tirx  # noqa: E402

from roller_tvm.codegen.flat import number_of  # noqa: E402
from roller_tvm.relax import GroupedProducts  # noqa: E402

from . import modules as M  # noqa: E402

KV, TIMES, K = 3, 4, 8


def attention(rows, past, keys="interleaved", scale="number", shape=None):
    """q times the keys of its group, then that times the values: as exporters of Llama write it."""
    builder, heads = relax.BlockBuilder(), KV * TIMES
    q = relax.Var("q", relax.TensorType((1, heads, rows, K), "float32"))
    k, v = (relax.Var(name, relax.TensorType((1, KV, past, K), "float32")) for name in "kv")

    def repeated(x):
        axis = 2 if keys == "interleaved" else 1
        wide = [1, KV, TIMES, past, K] if keys == "interleaved" else [1, TIMES, KV, past, K]
        return builder.emit(relax.op.broadcast_to(builder.emit(relax.op.expand_dims(x, [axis])), wide))

    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(repeated(k), [heads, past, K]))
            turned = builder.emit(relax.op.permute_dims(flat, [0, 2, 1]))
            turned = builder.emit(relax.op.reshape(turned, [1, heads, K, past]))
            if scale == "number":
                turned = builder.emit(relax.op.multiply(turned, relax.const(0.25, "float32")))
            elif scale == "each head":
                each = np.arange(heads, dtype="float32").reshape(1, heads, 1, 1)
                turned = builder.emit(relax.op.multiply(turned, relax.const(each, "float32")))
            scores = builder.emit(relax.op.matmul(q, turned))
            values = builder.emit(relax.op.reshape(repeated(v), [1, heads, past, K]))
            out = builder.emit_output(builder.emit(relax.op.matmul(scores, values)))
        builder.emit_func_output(out)
    return builder.get()


def products(mod):
    """The shapes of the operands of its products, and whether anything is repeated."""
    found, copies = [], []

    @relax.expr_functor.visitor
    class Seen(relax.PyExprVisitor):
        def visit_call_(self, op):
            if op.op.name == "relax.matmul":
                found.append([[number_of(e) for e in a.ty.shape.values] for a in op.args])
            if op.op.name == "relax.broadcast_to":
                copies.append(op)

    Seen().visit_expr(mod["main"])
    return found, copies


def given(rows, past, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(1, KV * TIMES, rows, K), (1, KV, past, K), (1, KV, past, K)]
    return [rng.integers(-4, 5, shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("scale", ["number", "none"])
def test_a_step_multiplies_by_keys_and_values_as_they_are(scale):
    mod = attention(1, 13, scale=scale)
    made = GroupedProducts()(mod)
    shapes, copies = products(made)
    assert shapes == [[[1, 3, 4, 8], [1, 3, 8, 13]], [[1, 3, 4, 13], [1, 3, 13, 8]]]
    assert not copies
    inputs = given(1, 13)
    np.testing.assert_array_equal(M.answer(made, *inputs), M.answer(mod, *inputs))


@pytest.mark.nightly
def test_sizes_may_be_open():
    rows, past = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    mod = attention(rows, past)
    made = GroupedProducts()(mod)
    assert not products(made)[1]
    for n, m in ((1, 1), (1, 17), (5, 9), (7, 3)):
        inputs = given(n, m, n)
        np.testing.assert_array_equal(M.answer(made, *inputs), M.answer(mod, *inputs))


def test_many_rows_keep_their_copy():
    """What follows a product of many rows, a mask, is computed with it; reshaped it could not."""
    assert len(products(GroupedProducts()(attention(K, 13)))[1]) == 1  # the scores': 8 rows, sums of 8; not the values'
    assert len(products(GroupedProducts()(attention(16, 13)))[1]) == 2


@pytest.mark.parametrize("other", ["tiled", "each head"])
def test_copies_of_other_kinds_stay(other):
    """Head h reads keys h % 3, not h // 4; or each head scales its own."""
    mod = attention(1, 13, other if other == "tiled" else "interleaved", "none" if other == "tiled" else other)
    made = GroupedProducts()(mod)
    shapes, copies = products(made)
    assert len(copies) == (2 if other == "tiled" else 1) and shapes[0][0] == [1, 12, 1, 8]
    inputs = given(1, 13)
    np.testing.assert_array_equal(M.answer(made, *inputs), M.answer(mod, *inputs))


def repeat_of(value, shape, batch):
    """q times the keys of its group, of these keys: a constant, or more batches than q has."""
    builder, heads = relax.BlockBuilder(), KV * TIMES
    q = relax.Var("q", relax.TensorType((1, heads, 1, K), "float32"))
    params = [q] if value is not None else [q, relax.Var("k", relax.TensorType(shape, "float32"))]
    with builder.function("main", params):
        with builder.dataflow():
            keys = relax.const(value, "float32") if value is not None else params[1]
            wide = builder.emit(relax.op.expand_dims(keys, [2]))
            wide = builder.emit(relax.op.broadcast_to(wide, [batch, KV, TIMES, K, 13]))
            flat = builder.emit(relax.op.reshape(wide, [batch, heads, K, 13]))
            out = builder.emit_output(builder.emit(relax.op.matmul(q, flat)))
        builder.emit_func_output(out)
    return builder.get()


def test_keys_may_be_a_constant_and_batches_may_differ():
    rng = np.random.default_rng(3)
    q = rng.integers(-4, 5, (1, KV * TIMES, 1, K)).astype("float32")
    keys = rng.integers(-4, 5, (1, KV, K, 13)).astype("float32")
    mod = repeat_of(keys, keys.shape, 1)
    made = GroupedProducts()(mod)
    assert not products(made)[1]
    np.testing.assert_array_equal(M.answer(made, q), M.answer(mod, q))
    mod = repeat_of(None, (2, KV, K, 13), 2)
    more = rng.integers(-4, 5, (2, KV, K, 13)).astype("float32")
    np.testing.assert_array_equal(M.answer(GroupedProducts()(mod), q, more), M.answer(mod, q, more))
