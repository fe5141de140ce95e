"""The last vector of an axis that fills none: computed whole, from the tile before or with room after it."""

import re

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax, tirx  # noqa: E402

from roller_tvm.relax import EdgeVectors, build  # noqa: E402

from ..relax.networks import module, run  # noqa: E402
from ..sampling import covering  # noqa: E402

WIDE = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}
ELEMENTS, LANES, TILES = 37, 8, 5


def loop(variable, extent, body):
    return tirx.For(variable, 0, extent, tirx.ForKind.SERIAL, body)


def number(value):
    return tirx.const(value, "float32")


def kernel(*stores):
    """A kernel of (a, b, s), in which each function of (a, b, s, tile, lane, place) makes a store of each lane."""
    a, b = (tirx.decl_buffer((ELEMENTS,), "float32", name=name) for name in "ab")
    s = tirx.decl_buffer((LANES,), "float32", name="s")
    nests = []
    t = tirx.Var("t", "int32")
    for store in stores:
        n = tirx.Var("n", "int32")
        at = t * LANES + n
        nests.append(loop(n, LANES, tirx.IfThenElse(at < ELEMENTS, store(a, b, s, t, n, at), None)))
    body = loop(t, TILES, tirx.SeqStmt(nests) if len(nests) > 1 else nests[0])
    func = tirx.PrimFunc([a, b, s], body).with_attrs({"global_symbol": "main", "tirx.noalias": True})
    return tvm.IRModule({"main": func})


def both(mod):
    """The answers, and LLVM's text, without and with whole vectors."""
    rng = np.random.default_rng(5)
    given = [rng.standard_normal(count).astype("float32") for count in (ELEMENTS, ELEMENTS, LANES)]
    found = []
    for made in (mod, tvm.transform.Sequential([EdgeVectors()])(mod)):
        arrays = [tvm.runtime.tensor(array) for array in given]
        built = tvm.compile(made, WIDE)
        built["main"](*arrays)
        found.append(([array.numpy() for array in arrays], built.mod.inspect_source("ll")))
    return found


def scalar_additions(text):
    return len(re.findall(r"fadd (?:\w+ )*float ", text))


def to_b(value):
    return lambda a, b, s, t, n, at: tirx.BufferStore(b, value(a, b, s, t, n, at), [at])


PLAIN = to_b(lambda a, b, s, t, n, at: a[at] + number(2))
OF_ITSELF = to_b(lambda a, b, s, t, n, at: b[at] + a[at])
#: Which elements may be computed once more, a tile later.
AGAIN = {
    "of its place": ([PLAIN], True),
    "and of one number": ([to_b(lambda a, b, s, t, n, at: a[at] + s[0])], True),
    "and of its lane": ([to_b(lambda a, b, s, t, n, at: a[at] + s[n])], False),
    "and of its tile": ([to_b(lambda a, b, s, t, n, at: a[at] + s[t])], False),
    "and of its number": ([to_b(lambda a, b, s, t, n, at: a[at] + n.astype("float32"))], False),
    "and of itself": ([OF_ITSELF], False),
    "stored twice": ([PLAIN, OF_ITSELF], False),
    "of what changes": (
        [to_b(lambda a, b, s, t, n, at: a[at] + s[0]),
         lambda a, b, s, t, n, at: tirx.BufferStore(s, s[n] + number(1), [n])], False),
    "of another place": ([to_b(lambda a, b, s, t, n, at: a[at + 0] + a[ELEMENTS - 1 - at])], False),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
def test_elements_computed_again(name):
    stores, again = AGAIN[name]
    (expected, _), (found, text) = both(kernel(*stores))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (scalar_additions(text) == 0) == again


@pytest.mark.parametrize(("operator", "columns"), covering(["softmax", "mean", "max", "norm"], [17, 31, 33, 100, 197]))
def test_rows_that_are_no_whole_vectors(operator, columns):
    scale, bias = np.linspace(0.5, 1.5, columns, dtype="float32"), np.linspace(-1, 1, columns, dtype="float32")

    def body(builder, x):
        if operator == "norm":
            return builder.emit(relax.op.nn.layer_norm(x, relax.const(scale), relax.const(bias), [-1], 1e-5))
        made = {"softmax": relax.op.nn.softmax, "mean": relax.op.mean, "max": relax.op.max}[operator]
        return builder.emit(made(x, -1))

    given = np.random.default_rng(columns).standard_normal((5, columns)).astype("float32") - 3
    (found,) = run(build(module(body, given.shape), WIDE), given)
    above = np.exp(given - given.max(-1, keepdims=True))
    centred = given - given.mean(-1, keepdims=True)
    expected = {
        "softmax": above / above.sum(-1, keepdims=True), "mean": given.mean(-1), "max": given.max(-1),
        "norm": centred / np.sqrt(given.var(-1, keepdims=True) + 1e-5) * scale + bias,
    }[operator]  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert np.isfinite(found).all()


def test_a_kernels_own_row_has_room_for_whole_vectors():
    """Squares of a row, their sums in lanes, and the row again: nothing is computed element by element."""
    a, b = (tirx.decl_buffer((ELEMENTS,), "float32", name=name) for name in "ab")
    s, row = tirx.decl_buffer((LANES,), "float32", name="s"), tirx.decl_buffer((ELEMENTS,), "float32", name="row")
    sums = tirx.decl_buffer((LANES,), "float32", name="sums")

    def over(made):
        t, n = tirx.Var("t", "int32"), tirx.Var("n", "int32")
        at = t * LANES + n
        return loop(t, TILES, loop(n, LANES, tirx.IfThenElse(at < ELEMENTS, made(n, at), None)))

    n = tirx.Var("n", "int32")
    body = [
        tirx.AllocBuffer(row), tirx.AllocBuffer(sums),
        over(lambda n, at: tirx.BufferStore(row, a[at] * a[at] + number(1), [at])),
        loop(n, LANES, tirx.IfThenElse(n < ELEMENTS, tirx.BufferStore(sums, number(0), [n]), None)),
        over(lambda n, at: tirx.BufferStore(sums, sums[n] + row[at], [n])),
        over(lambda n, at: tirx.BufferStore(b, row[at] + sums[0], [at])),
        over(lambda n, at: tirx.IfThenElse(at < LANES, tirx.BufferStore(s, sums[at], [at]), None)),
    ]
    func = tirx.PrimFunc([a, b, s], tirx.SeqStmt(body)).with_attrs({"global_symbol": "main", "tirx.noalias": True})
    (_, _), ((given, found, sums_found), text) = both(tvm.IRModule({"main": func}))
    squares = given * given + 1
    expected = np.array([squares[n::LANES].sum() for n in range(LANES)])
    np.testing.assert_allclose(sums_found, expected, rtol=1e-5)
    np.testing.assert_allclose(found, squares + expected[0], rtol=1e-5)
    assert scalar_additions(text) == 0
