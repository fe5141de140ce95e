"""Functions that compute something else than the one beside them, as `--prove` asks: none of them is proven."""

from functools import partial

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax

from tvm import te, tirx  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

from roller_tvm.relax.proving import prove  # noqa: E402


def number(value, dtype="float32"):
    return tirx.const(value, dtype)


def made(value, shape=(8,), inputs=3, dtype="float32", out=None):
    """A function of inputs of one shape whose elements are those of a value."""
    given = [te.placeholder(shape, dtype, name=f"x{n}") for n in range(inputs)]
    result = te.compute(shape, lambda *at: value(*(x(*at) for x in given)), name="out")
    return te.create_prim_func([*given, result])


def dense(after, dtype="float32"):
    a, b, c = te.placeholder((4, 6), name="a"), te.placeholder((6, 5), name="b"), te.placeholder((5,), name="c")
    k = te.reduce_axis((0, 6), name="k")
    product = te.compute((4, 5), lambda i, j: te.sum((a[i, k] * b[k, j]).astype(dtype), axis=k), name="product")
    out = te.compute((4, 5), lambda i, j: after(product[i, j].astype("float32"), c[j]), name="out")
    return te.create_prim_func([a, b, c, out])


def norm(scaled):
    x, gamma = te.placeholder((4, 8), name="x"), te.placeholder((8,), name="g")
    k = te.reduce_axis((0, 8), name="k")
    squares = te.compute((4,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
    return te.create_prim_func([x, gamma, te.compute((4, 8), lambda i, j: scaled(x[i, j], squares[i], gamma[j]))])


#: Right and wrong values of elements of three inputs.
VALUES = {
    "a factor twice": (lambda x, y, z: x * y + te.exp(z), lambda x, y, z: x * y * y + te.exp(z)),
    "a term twice": (lambda x, y, z: x * y + te.exp(z), lambda x, y, z: x * y + te.exp(z) + te.exp(z)),
    "a cube": (lambda x, y, z: x * x - y, lambda x, y, z: x * x * x - y),
    "a part in a lesser type": (lambda x, y, z: x + y, lambda x, y, z: x.astype("float16").astype("float32") + y),
    "a whole number of it": (lambda x, y, z: x * y, lambda x, y, z: x.astype("int32").astype("float32") * y),
    "another limit": (
        lambda x, y, z: tirx.Select(x < number(3.0), y, z), lambda x, y, z: tirx.Select(x < number(0.5), y, z)
    ),
    "a maximum from a number": (lambda x, y, z: x + te.exp(y), lambda x, y, z: te.max(x + te.exp(y), number(1.0))),
}  # fmt: skip
#: Right and wrong functions.
PAIRS = {
    **{name: tuple(partial(made, value) for value in values) for name, values in VALUES.items()},
    "a bias twice": (lambda: dense(lambda p, c: p + c), lambda: dense(lambda p, c: p + c + c)),
    "a sum twice": (lambda: dense(lambda p, c: p + c), lambda: dense(lambda p, c: p + p + c)),
    "a sum of whole numbers": (lambda: dense(lambda p, c: p + c), lambda: dense(lambda p, c: p + c, "int32")),
    "whole numbers of eight bits": (
        lambda: dense(lambda p, c: p + c, "int32"), lambda: dense(lambda p, c: p + c, "int8")
    ),
    "a weight twice": (
        lambda: norm(lambda x, s, g: x / te.sqrt(s) * g), lambda: norm(lambda x, s, g: x / te.sqrt(s) * g * g)
    ),
    "other whole numbers of data": (
        lambda: made(lambda x, y: tirx.Select(x < number(3, "int32"), x, y), inputs=2, dtype="int32"),
        lambda: made(lambda x, y: tirx.Select(x < number(5, "int32"), x, y), inputs=2, dtype="int32"),
    ),
}  # fmt: skip


def scripted():
    """Pairs that no tensor expression gives."""
    # isort: off
    @T.prim_func(s_tir=True)
    def two(x: T.Buffer((8,), "float32"), a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("a"):
                vi = T.axis.spatial(8, i)
                a[vi] = x[vi] * T.float32(2)
        for i in range(8):
            with T.sblock("b"):
                vi = T.axis.spatial(8, i)
                b[vi] = x[vi] * T.float32(3)

    @T.prim_func(s_tir=True)
    def one(x: T.Buffer((8,), "float32"), a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("a"):
                vi = T.axis.spatial(8, i)
                a[vi] = x[vi] * T.float32(2)

    @T.prim_func(s_tir=True)
    def last(x: T.Buffer((8, 4), "float32"), a: T.Buffer((8,), "float32")):
        for i, k in T.grid(8, 4):
            with T.sblock("a"):
                vi, vk = T.axis.remap("SR", [i, k])
                a[vi] = x[vi, vk]

    @T.prim_func(s_tir=True)
    def first(x: T.Buffer((8, 4), "float32"), a: T.Buffer((8,), "float32")):
        for i, k in T.grid(8, 4):
            with T.sblock("a"):
                vi = T.axis.spatial(8, i)
                vk = T.axis.reduce(4, 3 - k)
                a[vi] = x[vi, vk]

    @T.prim_func(s_tir=True)
    def stepped(x: T.Buffer((8, 16), "float32"), a: T.Buffer((8,), "float32")):
        for i in range(8):
            for k in T.serial(0, 16, step=2):
                with T.sblock("a"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        a[vi] = T.float32(0)
                    a[vi] = a[vi] + x[vi, vk]

    @T.prim_func(s_tir=True)
    def whole(x: T.Buffer((8, 16), "float32"), a: T.Buffer((8,), "float32")):
        for i, k in T.grid(8, 16):
            with T.sblock("a"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    a[vi] = T.float32(0)
                a[vi] = a[vi] + x[vi, vk]

    def halves(one, two):
        @T.prim_func(s_tir=True)
        def func(x: T.Buffer((8,), "float32"), a: T.Buffer((8,), "float32")):
            for i in range(4):
                with T.sblock("a"):
                    vi = T.axis.spatial(4, i)
                    a[vi] = x[vi] * T.float32(one)
            for i in range(4):
                with T.sblock("b"):
                    vi = T.axis.spatial(4, i)
                    a[vi + 4] = x[vi + 4] * T.float32(two)

        return func

    def divided(quotient):
        @T.prim_func(s_tir=True)
        def func(x: T.Buffer((8,), "float32"), a: T.Buffer((8,), "float32")):
            for i in range(8):
                with T.sblock("a"):
                    vi = T.axis.spatial(8, i)
                    a[vi] = x[quotient(vi - 5, 2) + 3] * T.float32(2)

        return func

    @T.prim_func(s_tir=True)
    def held(x: T.Buffer((8,), "float32"), a: T.Buffer((8,), "float32")):
        c = T.alloc_buffer((1,), "float32")
        with T.sblock("c"):
            c[0] = T.float32(2)
        for i in range(8):
            with T.sblock("a"):
                vi = T.axis.spatial(8, i)
                a[vi] = x[vi] * c[0]

    @T.prim_func(s_tir=True)
    def by_a_view(x: T.Buffer((8,), "float32"), a: T.Buffer((8,), "float32")):
        c = T.alloc_buffer((1,), "float32")
        with T.sblock("c"):
            c[0] = T.float32(2)
        d = T.decl_buffer((1,), "float32", data=c.data)
        with T.sblock("d"):
            d[0] = T.float32(3)
        for i in range(8):
            with T.sblock("a"):
                vi = T.axis.spatial(8, i)
                a[vi] = x[vi] * c[0]

    return {
        "an output that is not written": (two, one), "the last value counts": (last, first),
        "each other term": (stepped, whole), "constants of halves exchanged": (halves(2, 3), halves(3, 2)),
        "a quotient of numbers below 0": (divided(T.floordiv), divided(T.truncdiv)),
        "a constant written through a view": (held, by_a_view),
    }  # fmt: skip


def results(func):
    """Return what a function writes, of random inputs."""
    rng = np.random.default_rng(0)
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")
    arrays = [
        tvm.runtime.tensor((9 * rng.standard_normal([int(e) for e in buffer.shape])).astype(str(buffer.dtype)))
        for buffer in func.params
    ]
    built["main"](*arrays)
    return [array.numpy() for array in arrays]


@pytest.mark.parametrize("name", PAIRS)
def test_wrong_values_are_not_proven(name):
    _not_proven(*(function() for function in PAIRS[name]))


def test_wrong_statements_are_not_proven():
    for pair in scripted().values():
        _not_proven(*pair)


def _not_proven(right, wrong):
    target = tvm.target.Target("llvm")
    apart = [not np.allclose(a, b, equal_nan=True) for a, b in zip(results(right), results(wrong), strict=True)]
    assert any(apart), "they compute the same"
    assert prove(wrong, right, target).answer != "proven"


@pytest.mark.parametrize("one, other", [
    (lambda x, y, z: te.max(te.min(x, z), z), lambda x, y, z: z + number(0.0)),
    (lambda x, y, z: x / z * z, lambda x, y, z: x + number(0.0)),
    (lambda x, y, z: tirx.Select(x < x + number(1.0), x, z), lambda x, y, z: x + number(0.0)),
    (lambda x, y, z: x - z + z, lambda x, y, z: x + number(0.0)),
], ids=["a maximum of a minimum", "a quotient's product", "always one choice", "a difference's sum"])  # fmt: skip
def test_values_that_cancel_are_not_refuted(one, other):
    for scheduled, original in ((one, other), (other, one)):
        assert prove(made(scheduled), made(original), tvm.target.Target("llvm")).answer != "refuted"
