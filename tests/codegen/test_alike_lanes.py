"""Conditions that have one outcome for all lanes of a vector, on either TVM line."""

from itertools import product

import numpy as np
import pytest

pytestmark = pytest.mark.te
tvm = pytest.importorskip("tvm")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tvm import te  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import Sum, kind_of, statements  # noqa: E402
from roller_tvm.codegen.rewrites.flat_vectors import is_alike  # noqa: E402
from roller_tvm.codegen.rewrites.padded_vectors import with_padded_vectors  # noqa: E402
from roller_tvm.roller.steps import Split, Vectorize  # noqa: E402
from tests.sampling import examples  # noqa: E402

from .kernels import built, recording  # noqa: E402

TIR = dialect_here().tir
LANE, *OTHERS = (TIR.Var(name, "int32") for name in ("lane", "x", "y"))
#: Values of the other variables that reach both sides of 0 at each distance that their multiples have.
REACH = range(-14, 15)


@given(
    st.sampled_from([2, 4, 8, 32]), st.sampled_from([-2, -1, 1, 2]), st.integers(-70, 70),
    st.lists(st.sampled_from([8, -16, 24, 32, 48]), max_size=2),
)  # fmt: skip
@settings(max_examples=examples(300), deadline=None)
def test_it_is_told_exactly(lanes, step, number, counts):
    below = Sum(number)
    for variable, count in zip((LANE, *OTHERS), (step, *counts), strict=False):
        below.add(Sum(0, {hash(variable): (variable, 1)}), count)
    places = {number + sum(c * x for c, x in zip(counts, at, strict=True)) for at in product(REACH, repeat=len(counts))}
    alike = all(len({place + step * lane < 0 for lane in range(lanes)}) == 1 for place in places)
    assert is_alike(below, LANE, lanes) == alike


@pytest.mark.optimised
@pytest.mark.relax
@pytest.mark.parametrize("widths", [(32, 64, 32), (64, 32, 32, 32, 32, 32, 32)])
def test_a_concatenation_is_in_vectors_though_the_simplifier_leaves_its_choice(widths, monkeypatch):
    """Builds of models leave out a pass after which TVM itself compares the vector's number."""
    seen = recording(with_padded_vectors, monkeypatch)
    rows, begins = 6, np.cumsum([0, *widths])
    parts = [te.placeholder((rows, width), name=f"x{n}") for n, width in enumerate(widths)]

    def of(i, c):
        value = parts[0][i, c]
        for part, begin in zip(parts[1:], begins[1:], strict=False):
            value = TIR.if_then_else(c >= int(begin), part[i, c - int(begin)], value)
        return value + 1.0

    y = te.compute((rows, int(begins[-1])), of, name="y")
    last = y.op.axis[-1].var.name
    steps = [Split("y", last, (32,), ("c.o", "c.v")), Vectorize("y", "c.v")]
    with tvm.transform.PassContext(disabled_pass=["s_tir.RenormalizeSplitPattern"]):
        kernel = built([*parts, y], steps, ("edge_vectors",))
    values = [np.random.default_rng(n).standard_normal((rows, w)).astype("float32") for n, w in enumerate(widths)]
    np.testing.assert_array_equal(kernel((rows, int(begins[-1])), *values), np.concatenate(values, 1) + 1)
    ((_, made),) = seen
    loops = [int(node.extent) for node in statements(made) if kind_of(node) == "For"]
    assert loops == [rows, sum(widths) // 32]
