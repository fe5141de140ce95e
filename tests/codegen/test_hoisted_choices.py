"""Choices between tensors before the loops over them, on either TVM line: values, and what stays in its loop."""

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import CHOICE, called, kind_of, parts_of, statements, values_of  # noqa: E402
from roller_tvm.codegen.rewrites import whole_vectors  # noqa: E402
from roller_tvm.codegen.rewrites.hoisted_choices import with_hoisted_choices  # noqa: E402
from roller_tvm.roller.steps import Inline, Parallel, Split, Vectorize  # noqa: E402

from .kernels import built  # noqa: E402

PIXELS, LANES = 24, 8
RNG = np.random.default_rng(4)


def joined(parts, at, name="y"):
    """A concatenation along the first axis as a chain of choices, the last part first: as TVM's topi has it."""
    begins = np.cumsum([0, *(int(p.shape[0]) for p in parts)])

    def of(c, *rest):
        value = parts[0][(c, *rest)]
        for part, begin in zip(parts[1:], begins[1:], strict=False):
            value = dialect_here().tir.if_then_else(c >= int(begin), part[(c - int(begin), *rest)], value)
        return at(value, c, *rest)

    return te.compute((int(begins[-1]), *parts[0].shape[1:]), of, name=name)


def tensors(*channels):
    return [te.placeholder((c, PIXELS, LANES), name=f"x{n}") for n, c in enumerate(channels)]


def given(parts):
    return [RNG.standard_normal(tuple(int(e) for e in p.shape)).astype("float32") for p in parts]


@pytest.fixture
def hoisted(monkeypatch):
    """Statements that the rewrite made, None where it made none."""
    made = []

    def recorded(body, dialect):
        made.append(with_hoisted_choices(body, dialect))
        return made[-1]

    others = [one for one in whole_vectors.REWRITINGS if one is not with_hoisted_choices]
    monkeypatch.setattr(whole_vectors, "REWRITINGS", (*others, recorded))
    return made


@pytest.mark.parametrize("channels", [(3, 2), (2, 1, 3, 1, 1, 2)])
def test_each_tensor_has_a_loop_of_its_own(channels, hoisted):
    parts = tensors(*channels)
    y = joined(parts, lambda value, c, p, v: value * 2.0)
    axes = [axis.var.name for axis in y.op.axis]
    own = built([*parts, y], [Parallel("y", axes[0]), Vectorize("y", axes[-1])], ("edge_vectors",))
    values = given(parts)
    expected = np.concatenate(values) * 2
    np.testing.assert_array_equal(own(expected.shape, *values), expected)
    (made,) = hoisted
    loops = [node for node in statements(made) if kind_of(node) == "For" and int(node.extent) == PIXELS]
    assert len(loops) == len(channels)
    computed = [value for loop in loops for node in statements(loop) for value in values_of(node)]
    assert not any(called(part) == CHOICE for value in computed for part in parts_of(value))


def test_a_choice_by_the_loop_itself_stays(hoisted):
    """Rows of pixels side by side: which tensor it is changes within the loop over them."""
    x, z = te.placeholder((5, LANES), name="x"), te.placeholder((7, LANES), name="z")
    y = joined([x, z], lambda value, p, v: value + 1.0)
    kernel = built([x, z, y], [Vectorize("y", y.op.axis[-1].var.name)], ("edge_vectors",))
    values = given([x, z])
    np.testing.assert_array_equal(kernel((12, LANES), *values), np.concatenate(values) + 1)
    assert hoisted == [None]


def test_a_choice_by_data_stays(hoisted):
    x, z = te.placeholder((3, PIXELS), name="x"), te.placeholder((3, PIXELS), name="z")
    which = te.placeholder((3,), "int32", name="which")
    choice = dialect_here().tir.if_then_else
    y = te.compute((3, PIXELS), lambda c, p: choice(which[c] > 0, x[c, p], z[c, p]), name="y")
    steps = [Split("y", "p", (LANES,), ("o", "i")), Parallel("y", "c"), Vectorize("y", "i")]
    kernel = built([x, z, which, y], steps, ("edge_vectors",))
    values, flags = given([x, z]), np.array([1, 0, 1], "int32")
    np.testing.assert_array_equal(kernel((3, PIXELS), *values, flags), np.where(flags[:, None] > 0, *values))
    assert hoisted == [None]


def test_two_long_concatenations_side_by_side_stay(hoisted):
    """13 times 12 loops would be too much code."""
    parts, others = tensors(1, *[2] * 11, 1), [te.placeholder((2, PIXELS, LANES), name=f"z{n}") for n in range(12)]
    second = joined(others, lambda value, c, p, v: value, "z")
    y = joined(parts, lambda value, c, p, v: value - second[c, p, v])
    axes = [axis.var.name for axis in y.op.axis]
    steps = [Inline("z"), Parallel("y", axes[0]), Vectorize("y", axes[-1])]
    kernel = built([*parts, *others, y], steps, ("edge_vectors",))
    values = given([*parts, *others])
    expected = np.concatenate(values[:13]) - np.concatenate(values[13:])
    np.testing.assert_array_equal(kernel(expected.shape, *values), expected)
    assert hoisted == [None]
