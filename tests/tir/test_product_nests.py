"""Products that are read from functions, with what follows them."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import te, tirx, topi  # noqa: E402

from roller_tvm.relax.arrangement import Arrangement, Convolution  # noqa: E402
from roller_tvm.tir.nodes import access_of, buffer_of, key  # noqa: E402
from roller_tvm.tir.placed import evaluate  # noqa: E402
from roller_tvm.tir.product_nests import product_nest  # noqa: E402

A, B = ((2, 4, 64), (64, 32))


def read(body, left=A, right=B, dtype="float32", more=()):
    a, b = te.placeholder(left, dtype, name="a"), te.placeholder(right, dtype, name="b")
    others = [te.placeholder(shape, "float32", name=f"o{n}") for n, shape in enumerate(more)]
    k = te.reduce_axis((0, left[-1]), name="k")
    weights = (lambda at: b[k, at[-1]]) if len(right) == 2 else (lambda at: b[at[0], k, at[-1]])
    c = te.compute(
        (*left[:-1], right[-1]), lambda *at: te.sum(a[(*at[:-1], k)] * weights(at), axis=k), name="c"
    )
    return product_nest(te.create_prim_func([a, b, *others, body(c, *others)], "int64"))


def test_a_product_and_what_follows():
    found = read(lambda c, o, p: topi.nn.relu(topi.add(topi.add(c, o), p)), more=[(32,), (2, 4, 32)])
    assert (found.rows, found.terms, found.columns, len(found.followers)) == (8, 64, 32, 3)
    row, column = tirx.Var("row", "int64"), tirx.Var("column", "int64")
    store = found.stored(row, column, tirx.const(2.0, "float32"))
    assert str(store.buffer.name) == str(found.out.name)
    text = str(store).replace("T.int64(", "").replace(")", "")
    assert "row // 4" in text and "row % 4" in text and "o0[column" in text


def test_what_is_stored_is_what_the_function_computes():
    rng = np.random.default_rng(1)
    a, b, o = (rng.standard_normal(s).astype("float32") for s in (A, B, (32,)))
    found = read(lambda c, o: topi.multiply(topi.tanh(c), topi.add(c, o)), more=[(32,)])
    given = tirx.decl_buffer([8, 32], "float32", "given")
    loops = [tirx.Var(name, "int64") for name in ("row", "column")]
    body = found.stored(*loops, tirx.BufferLoad(given, loops))
    for var, extent in zip(reversed(loops), (32, 8), strict=True):
        body = tirx.For(var, tirx.const(0, "int64"), tirx.const(extent, "int64"), tirx.ForKind.SERIAL, body)
    others = [p for p in found.func.params if str(p.name).startswith("o")]
    func = tirx.PrimFunc([given, *others, found.out], body).with_attr("global_symbol", "main")
    out = tvm.runtime.tensor(np.zeros((2, 4, 32), "float32"))
    kernel = tvm.compile(tvm.IRModule({"main": func}), "llvm")["main"]
    kernel(*map(tvm.runtime.tensor, ((a @ b).reshape(8, 32), o)), out)
    np.testing.assert_allclose(out.numpy(), np.tanh(a @ b) * (a @ b + o), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        lambda c: topi.transpose(c, (1, 0, 2)),
        lambda c: topi.sum(c, axis=-1),
        lambda c: topi.nn.softmax(c),
        lambda c: topi.reshape(c, (8, 32)),
        lambda c: topi.strided_slice(c, [0, 0, 0], [2, 4, 16]),
    ],
)
def test_what_is_no_element_by_element_is_left(body):
    assert read(body) is None


def test_other_products_are_left():
    assert read(lambda c: c, dtype="float16") is None
    assert read(lambda c: c, left=(2, 4, 64), right=(2, 64, 32)) is None  # weights of their own for each
    a, b = te.placeholder((64, 8), name="a"), te.placeholder((64, 32), name="b")
    assert product_nest(te.create_prim_func([a, b, topi.matmul(a, b, transp_a=True)])) is None  # its terms lie apart
    assert product_nest(te.create_prim_func([a, topi.nn.relu(a)])) is None
    number = te.placeholder((), name="number")
    spread = te.compute((8, 64), lambda i, j: number(), name="spread")
    assert product_nest(te.create_prim_func([number, b, topi.matmul(spread, b)])) is None


@pytest.mark.parametrize(("strides", "window"), [((1, 1), 1), ((2, 2), 1), ((2, 1), 2)])
def test_convolutions_are_products_of_pixels_by_channels(strides, window):
    conv = Convolution((2, 32, 5, 7), (48, 32, window, window), strides, (0,) * 4, (1, 1), 1, "float32", "float32")
    inputs, result = conv.compute(Arrangement(16))
    found = product_nest(te.create_prim_func([*inputs, topi.nn.relu(result)], "int64"))
    high, wide = (-(-(extent - window + 1) // step) for extent, step in zip((5, 7), strides, strict=True))
    assert (found.rows, found.terms, found.columns) == (2 * high * wide, 32 * window**2, 48)
    assert found.fills(16) and not found.fills(32)
    rng = np.random.default_rng(2)
    shapes = [[int(e) for e in tensor.shape] for tensor in (found.left, found.right)]
    data, weights = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    row, other = tirx.Var("row", "int64"), tirx.Var("other", "int64")
    rows, terms = np.indices((found.rows, found.terms))
    known = {key(row): rows, key(other): terms}
    left = data[tuple(evaluate(index, known) for index in access_of(found.left_at(row, other))[1])]
    func = tvm.compile(tvm.IRModule({"main": found.func.with_attr("global_symbol", "main")}), "llvm")["main"]
    out = tvm.runtime.tensor(np.zeros([int(e) for e in found.out.shape], "float32"))
    func(tvm.runtime.tensor(data), tvm.runtime.tensor(weights), out)
    rows, columns = np.indices((found.rows, found.columns))
    known = {key(row): rows, key(other): columns}
    answer = out.numpy()[tuple(evaluate(tirx.convert(place), known) for place in found.places(row, other))]
    np.testing.assert_allclose(answer, np.maximum(left @ found.matrix(weights), 0), rtol=1e-5, atol=1e-4)


def test_windows_may_reach_over_the_edge():
    conv = Convolution((2, 32, 5, 7), (48, 32, 3, 3), (1, 2), (1, 0, 1, 2), (1, 1), 1, "float32", "float32")
    inputs, result = conv.compute(Arrangement(16))
    found = product_nest(te.create_prim_func([*inputs, result], "int64"))
    assert (found.rows, found.terms, found.columns) == (2 * 5 * 4, 32 * 9, 48)
    element = str(found.left_at(tirx.Var("row", "int64"), tirx.Var("other", "int64")))
    assert "if_then_else" in element and f"{buffer_of(found.padding.block.reads[0]).name}[" in element


def test_a_value_that_grows_is_left():
    def doubled(c):
        for _ in range(9):
            c = topi.multiply(topi.add(c, 1.0), c)
        return c

    assert read(doubled) is None
