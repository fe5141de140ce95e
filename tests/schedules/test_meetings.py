"""Factors exchanged between parts of one sum: the sets of elements are the same, the kernel is wrong."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402

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
