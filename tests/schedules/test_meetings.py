"""Factors exchanged between parts of one sum: the sets of elements are the same, the kernel is wrong."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402

from .mutants import answer, is_wrong, mutants  # noqa: E402
from .sums_of_products import PRODUCTS  # noqa: E402
from .test_mutants import lowered_tensors  # noqa: E402


def inputs(x, y, u, v, one, two):
    return lambda i: x[i] * u[i] + y[i] * v[i], lambda i: x[i] * v[i] + y[i] * u[i]


def constants(x, y, u, v, one, two):
    return lambda i: x[i] * one + y[i] * two, lambda i: x[i] * two + y[i] * one


def elements(x, y, u, v, one, two):
    return lambda i: x[i] * u[i] + x[47 - i] * u[47 - i], lambda i: x[i] * u[47 - i] + x[47 - i] * u[i]


@pytest.mark.parametrize(("values", "right"), [(inputs, "proven"), (constants, "proven"), (elements, "undecided")])
@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_exchanged_factors_are_not_proven(values, right, name):
    from tvm import te, tirx

    given = [te.placeholder((48,), name=n) for n in "xyuv"]
    computed = values(*given, tirx.const(0.25, "float32"), tirx.const(0.5, "float32"))
    (func, reference), (wrong, _) = (
        lowered_tensors([*given, te.compute((48,), value, name="z")], name) for value in computed
    )
    assert prove_lowered(func, reference).answer == right
    assert prove_lowered(wrong, reference).answer == "undecided"


def written(value, dtype="float32"):
    """A function of one loop that writes a value of places and of elements of two inputs."""
    from tvm import tirx

    i = tirx.Var("i", "int64")
    x, y = (tirx.decl_buffer([64], name=name) for name in "xy")
    z = tirx.decl_buffer([48], dtype, name="z")
    stored = value(lambda at: tirx.BufferLoad(x, [at]), lambda at: tirx.BufferLoad(y, [at]), i, tirx)
    return tirx.PrimFunc([x, y, z], tirx.For(i, 0, 48, tirx.ForKind.SERIAL, tirx.BufferStore(z, stored, [i])))


def less(x, y, i, tir):
    return tir.Select(x(i) < y(i), x(i), y(i))


def more(x, y, i, tir):
    return tir.Select(x(i) < y(i), y(i), x(i))


def leaky(x, y, i, tir):
    return tir.Select(x(i) > 0, x(i), x(i) * tir.const(0.1, "float32"))


def leaky_below(x, y, i, tir):
    return tir.Select(x(i) > 0, x(i) * tir.const(0.1, "float32"), x(i))


def weighted(first, second, function=lambda value: value):
    return lambda x, y, i, tir: sum(
        function(x(i + n)) * tir.const(w, "float32") for n, w in enumerate((first, second))
    )  # fmt: skip


def scaled(more):
    return lambda x, y, i, tir: x(i) * tir.Cast("float32", i + more)


def halves(at):
    one, two = (0.5, 2.0)
    return lambda x, y, i, tir: tir.Select(i < at, x(i) * tir.const(one, "float32"), x(i) * tir.const(two, "float32"))


@pytest.mark.parametrize(("right", "wrong"), [
    (less, more), (leaky, leaky_below), (weighted(0.25, 0.5), weighted(0.5, 0.25)), (scaled(0), scaled(1)),
    (halves(5), halves(7)),
])  # fmt: skip
def test_choices_constants_and_places_exchanged_are_not_proven(right, wrong):
    assert prove_lowered(written(wrong), written(right)).answer == "undecided"


@pytest.mark.parametrize("value", [less, leaky])
def test_choices_by_values_are_proven(value):
    assert prove_lowered(written(value), written(value)).answer == "proven"


def test_stages_that_double_what_they_read_end_soon():
    from tvm import te

    def stage(read, name):
        return te.compute((48,), lambda i: read[i] * te.exp(read[i]), name=name)

    given = value = te.placeholder((48,), name="x")
    for n in range(16):
        value = stage(value, f"stage{n}")
    func, reference = lowered_tensors([given, value], "avx2")
    proof = prove_lowered(func, reference)
    assert proof.answer == "undecided" and "values meet" in str(proof)


@pytest.mark.parametrize("made", PRODUCTS.values(), ids=list(PRODUCTS))
@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_factors_with_another_partner_are_not_proven(made, name):
    func, reference = lowered_tensors(made(), name)
    right = answer(reference)
    wrong = {kind: mutant for kind, mutant in mutants(func) if kind.startswith("factor") and is_wrong(mutant, right)}
    told = {kind: prove_lowered(mutant, reference).answer for kind, mutant in wrong.items()}
    assert len(told) > 1 and "proven" not in told.values(), told
    assert all(answer == "refuted" for kind, answer in told.items() if not kind.startswith("factors exchanged")), told
