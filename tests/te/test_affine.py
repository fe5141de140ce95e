"""Index arithmetic read from TVM, against evaluating it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.te
tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from roller_tvm.te import read_te  # noqa: E402

from ..sampling import examples  # noqa: E402

tir = tvm.tir if hasattr(tvm, "tir") else tvm.tirx  # the Relax line renamed it
EXTENTS = (6, 8, 4)


def trees():
    """Index arithmetic as nested tuples: (operator, left, right)."""
    variable = st.tuples(st.just("var"), st.integers(0, 2))
    leaf = st.one_of(variable, st.tuples(st.just("int"), st.integers(0, 9)))

    def grow(children):
        return st.one_of(
            st.tuples(st.just("+"), children, children),
            st.tuples(st.just("-"), children, children),
            st.tuples(st.just("*"), children, st.integers(1, 8)),
            st.tuples(st.just("//"), children, st.sampled_from([2, 3, 4, 8])),
            st.tuples(st.just("%"), children, st.sampled_from([2, 3, 4, 8])),
        )

    return st.recursive(leaf, grow, max_leaves=5)


def apply(tree, variables, floordiv, floormod):
    kind, *rest = tree
    if kind == "var":
        return variables[rest[0]]
    if kind == "int":
        return rest[0]
    left = apply(rest[0], variables, floordiv, floormod)
    right = rest[1] if isinstance(rest[1], int) else apply(rest[1], variables, floordiv, floormod)
    if kind == "//":
        return floordiv(left, right)
    if kind == "%":
        return floormod(left, right)
    return {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right}[kind]()


def read_index(tree):
    data = te.placeholder((10_000,), name="data")
    return read_te(
        te.compute(EXTENTS, lambda *v: data[apply(tree, v, te.floordiv, te.floormod)], name="out")
    )


def check(tree, reading):
    """True if the index is known everywhere; then it must agree everywhere."""
    stage = reading.expression.output
    (access,) = stage.reads
    (index,) = access.indices
    if index.opaque or index.clamped:
        return False
    parts = list(reading.axes["out"].values())
    strides = {a.name: a.part_of[1] if a.part_of else 1 for a in stage.axes}
    for point in itertools.product(*map(range, EXTENTS)):
        values = {
            name: v // strides[name] % stage.extents[name]
            for v, names in zip(point, parts, strict=True)
            for name in names
        }
        assert index.value(values) == apply(tree, point, lambda a, b: a // b, lambda a, b: a % b)
    return True


@pytest.mark.one_line("relax")
@settings(max_examples=examples(150), deadline=None)
@given(trees())
def test_affine_forms_agree_with_the_arithmetic(tree):
    check(tree, read_index(tree))


A, B, C = ("var", 0), ("var", 1), ("var", 2)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (("//", ("+", ("*", A, 8), B), 8), "i"),
        (("%", ("+", ("*", A, 8), B), 8), "j"),
        (("//", B, 4), "j//4"),
        (("%", B, 4), "j.i"),
        (("%", ("//", B, 2), 2), "j.m"),
        (("//", ("+", ("*", A, 8), B), 4), "(8*i + j)//4"),
        (("//", ("+", ("*", B, 4), C), 16), "(4*j + k)//16"),
        (("-", ("int", 7), B), "-j + 7"),
        (("//", ("+", A, ("int", 8)), 2), "(i + 8)//2"),
        (("//", A, 4), "i//4"),
        (("//", ("+", A, B), 2), "(i + j)//2"),
        (("-", ("int", 3), ("//", B, 3)), "(-j + 11)//3"),
    ],
)
def test_axes_are_split_where_remainders_are_taken(tree, text):
    reading = read_index(tree)
    # te names axes as it likes: put our own names in their place
    names = {}
    for own, parts in zip("ijk", reading.axes["out"].values(), strict=True):
        names.update({p: own + p[p.index(".") :] if "." in p else own for p in parts})
    (index,) = reading.expression.output.reads[0].indices
    assert str(type(index).of({names[n]: c for n, c in index.terms}, index.const, index.divisor)) == text
    assert check(tree, reading)


@pytest.mark.parametrize("tree", [("%", ("//", B, 3), 2), ("+", ("//", A, 4), ("//", B, 3)), ("*", ("//", A, 4), 3)])
def test_what_is_neither_is_clamped_or_the_whole_dimension(tree):
    (index,) = read_index(tree).expression.output.reads[0].indices
    assert index.opaque or index.clamped


def test_splits_that_clash_leave_the_later_index_a_quotient():
    data = te.placeholder((10, 10, 10), name="data")
    out = te.compute((12,), lambda i: data[te.floormod(i, 4), te.floordiv(i, 4), te.floordiv(i, 6)], name="out")
    assert [str(x) for x in read_te(out).expression.output.reads[0].indices] == ["i.i", "i.o", "(4*i.o + i.i)//6"]


def indices(body, *extents):
    data = te.placeholder((8,) * len(extents), name="data")
    out = te.compute(extents, lambda *i: data(*body(*i)), name="out")
    return [str(x) for x in read_te(out).expression.output.reads[0].indices]


def test_borders_follow_the_interior():
    assert indices(lambda i: [te.max(te.min(i - 1, 7), 0)], 10) == ["clamp(i0 - 1)"]
    assert indices(lambda i: [te.max(te.min(te.floordiv(i, 2), 7), 0)], 16) == ["i0//2"]  # never out of bounds
    mirrored = tir.if_then_else  # as topi.nn.mirror_pad writes it
    assert indices(lambda i: [mirrored(i >= 9, 14 - (i - 1), mirrored(i < 1, 1 - i, i - 1))], 10) == ["clamp(i0 - 1)"]


@pytest.mark.parametrize("scale", [0.5, 0.3, 8 / 13, 1.7])
def test_indices_in_floating_point_are_read_by_their_values(scale):
    expected = np.floor(np.float32(scale) * (np.arange(12, dtype=np.float32) + np.float32(0.5)))
    data = te.placeholder((64,), name="data")
    half, by = tir.const(0.5, "float32"), tir.const(scale, "float32")
    out = te.compute((12,), lambda i: data[te.floor(by * (i.astype("float32") + half)).astype("int32")], name="out")
    (index,) = read_te(out).expression.output.reads[0].indices
    assert [index.value({"i": x}) for x in range(12)] == list(expected)
