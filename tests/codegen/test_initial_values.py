"""Initial values that loops set in their first trip: set before them, where nothing can tell."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import tirx  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.rewrites.initial_values import with_initial_values_first  # noqa: E402

TRIPS, LANES, TERMS = 5, 4, 18


def number(value):
    return tirx.const(value, "float32")


def loop(variable, extent, body):
    return tirx.For(variable, 0, extent, tirx.ForKind.SERIAL, body)


def sums(steps=1, read=0, shift=0, first=0, named=False, told="", inner=1):
    """18 terms added up in 4 lanes, 2 of which have one term less; what may not be taken apart by its arguments.

    Parameters
    ----------
    steps : int
        From a lane's sum to the next one's.
    read : int
        From a lane's sum to the one that is read with the term.
    shift : int
        Of a sum's place in every trip.
    first : int
        The trip that sets it.
    named : bool
        What is read has a name, before it is set.
    told : str
        What depends on the sums: a 'check' around, or the 'place' of another store.
    inner : int
        Trips of a loop within whose first trip it is set.
    """
    a, c = tirx.decl_buffer((TERMS,), "float32", name="a"), tirx.decl_buffer((LANES * 2 + 8,), "float32", name="c")
    k, r, n = (tirx.Var(name, "int32") for name in "krn")
    at, of = n * steps + k * shift, k * LANES + n
    seen = tirx.BufferLoad(c, [at + read])
    name = tirx.Var("name", "float32")
    condition = k == first if inner == 1 else tirx.And(k == first, r == 0)
    body = [tirx.IfThenElse(condition, tirx.BufferStore(c, number(3), [at]), None)]
    body += [tirx.BufferStore(c, tirx.BufferLoad(a, [of]) + (name if named else seen), [at])]
    if told == "place":
        body.append(tirx.BufferStore(a, number(0), [seen.astype("int32")]))
    whole = tirx.SeqStmt([*([tirx.Bind(name, seen)] if named else []), *body])
    check = of < TERMS if told != "check" else seen > number(0)
    lanes = loop(n, LANES, tirx.IfThenElse(check, whole, None))
    return a, c, loop(k, TRIPS, lanes if inner == 1 else loop(r, inner, lanes))


def answer(a, c, body):
    func = tirx.PrimFunc([a, c], body)
    mod = tvm.IRModule({"main": func.with_attr({"global_symbol": "main", "s_tir": True})})
    given = np.random.default_rng(0).standard_normal(TERMS).astype("float32")
    out = tvm.runtime.tensor(np.full([int(n) for n in c.shape], 7, "float32"))
    tvm.compile(mod, "llvm")["main"](tvm.runtime.tensor(given), out)
    return out.numpy(), given


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("inner", [1, 3])
def test_they_are_set_before_the_loop(steps, inner):
    a, c, body = sums(steps, inner=inner)
    made = with_initial_values_first(body, dialect_here())
    assert type(made).__name__ == "SeqStmt" and "k == 0" not in str(made)
    (before, given), (after, _) = answer(a, c, body), answer(a, c, made)
    expected = [3 + inner * sum(given[n::LANES]) for n in range(LANES)]
    np.testing.assert_allclose(after[: LANES * steps : steps], expected, rtol=1e-6)
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    "told",
    [{"read": 1}, {"shift": 1}, {"first": 1}, {"steps": 0}, {"named": True}, {"told": "check"}, {"told": "place"}],
    ids=["another's sum is read", "each trip has its own", "in a later trip", "lanes share a sum", "it has a name",
         "a check reads it", "a place is read"],
)  # fmt: skip
def test_what_could_tell_stays(told):
    assert with_initial_values_first(sums(**told)[2], dialect_here()) is None


def independent(second, reads=None):
    """Two unrolled rows of four sums each, of which the second begins at `second`.

    With `reads` it is in memory of its own, and the first row's work reads from there on what lies there.
    """
    a, c = tirx.decl_buffer((TERMS,), "float32", name="a"), tirx.decl_buffer((LANES * 2 + 8,), "float32", name="c")
    d = c if reads is None else tirx.decl_buffer((LANES * 2 + 8,), "float32", name="d")
    k, rows = tirx.Var("k", "int32"), []
    for row, (memory, start) in enumerate(((c, 0), (d, second))):
        n = tirx.Var(f"n{row}", "int32")
        at, term = n + start, tirx.BufferLoad(a, [k * LANES + n])
        if row == 0 and reads is not None:
            term = term + tirx.BufferLoad(d, [n + reads])
        first = tirx.IfThenElse(k == 0, tirx.BufferStore(memory, number(row + 3), [at]), None)
        work = tirx.BufferStore(memory, tirx.BufferLoad(memory, [at]) + term * number(row + 1), [at])
        rows.append(loop(n, LANES, tirx.IfThenElse(k * LANES + n < TERMS, tirx.SeqStmt([first, work]), None)))
    return a, c, loop(k, TRIPS, tirx.SeqStmt(rows))


@pytest.mark.parametrize("second", [4, 9])
def test_rows_of_an_unrolled_loop_are_set_before_it(second):
    a, c, body = independent(second)
    made = with_initial_values_first(body, dialect_here())
    assert type(made).__name__ == "SeqStmt" and "k == 0" not in str(made)
    (before, given), (after, _) = answer(a, c, body), answer(a, c, made)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(
        after[second : second + 4], [4 + 2 * sum(given[n::LANES]) for n in range(LANES)], rtol=1e-6
    )


@pytest.mark.parametrize(("second", "reads"), [(0, None), (3, None), (4, 3), (4, 7)])
def test_rows_that_touch_what_a_later_one_sets_stay(second, reads):
    assert with_initial_values_first(independent(4, 9)[2], dialect_here()) is not None, "where it is not touched"
    assert with_initial_values_first(independent(second, reads)[2], dialect_here()) is None
