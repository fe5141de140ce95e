"""ResultsInPlace: a kernel overwrites an operand that dies there; the same answers, a tensor less."""

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.concat_in_place import ConcatInPlace  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, schedule  # noqa: E402
from roller_tvm.relax.results_in_place import ResultsInPlace  # noqa: E402
from roller_tvm.tir.overwritten import overwritable  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, default, module, run, values  # noqa: E402

OP = relax.op
CPU = device("avx512")


def product(builder, x, columns=32):
    weights = relax.const(values(int(x.ty.shape[-1]), columns))
    return builder.emit(OP.tanh(builder.emit(OP.matmul(x, weights))))


def residual(builder, x, added=None):
    """A product with a tensor added; by default what it was computed from."""
    weights = relax.const(values(int(x.ty.shape[-1]), 32))
    sums = builder.emit(OP.matmul(x, weights))
    return builder.emit(OP.nn.relu(builder.emit(OP.add(sums, x if added is None else added))))


def once(builder, x):
    a, b = product(builder, x), product(builder, x, 48)
    return product(builder, residual(builder, b, added=a))


def twice(builder, x):
    """The second overwrites what the first has overwritten."""
    a, b = product(builder, x), product(builder, x, 48)
    first = residual(builder, b, added=a)
    return product(builder, residual(builder, product(builder, first, 48), added=first))


def of_its_own_sums(builder, x):
    a = product(builder, x)
    return product(builder, residual(builder, a))


def read_afterwards(builder, x):
    a, b = product(builder, x), product(builder, x, 48)
    first = residual(builder, b, added=a)
    return product(builder, builder.emit(OP.matmul(builder.emit(OP.permute_dims(first)), a)))


def an_input(builder, x):
    return product(builder, residual(builder, product(builder, x, 48), added=x))


def a_result(builder, x):
    a, b = product(builder, x), product(builder, x, 48)
    return relax.Tuple([a, product(builder, residual(builder, b, added=a))])


def seen_as_another_shape(builder, x):
    a, b = product(builder, x), product(builder, x, 48)
    view = builder.emit(OP.reshape(a, (32, 16)))
    first = product(builder, residual(builder, b, added=a))
    return relax.Tuple([first, product(builder, view)])


def a_result_seen_as_another_shape(builder, x):
    a, b = product(builder, x), product(builder, x, 48)
    return product(builder, builder.emit(OP.reshape(residual(builder, b, added=a), (32, 16))))


def beside_others(builder, x):
    """A part of a concatenation; what is added to it is no part."""
    a, b = product(builder, x), product(builder, x, 48)
    return product(builder, builder.emit(OP.concat([residual(builder, b, added=a), b], axis=1)))


def changed(mod):
    """The module before and after the pass."""
    mod, _ = schedule(prepare(mod, LLVM, device=CPU), LLVM, device=CPU)
    passes = relax.transform
    steps = [passes.ToNonDataflow(), passes.RemovePurityChecking(), passes.CallTIRRewrite(), ConcatInPlace()]
    mod = tvm.transform.Sequential(steps)(mod)
    return mod, ResultsInPlace()(mod)


def overwrites(before, after):
    """Number of tensors fewer that a function allocates."""
    counts = []
    for mod in (before, after):
        bindings = [b.value for block in mod["main"].body.blocks for b in block.bindings]
        names = [getattr(getattr(value, "op", None), "name", "") for value in bindings]
        counts.append(names.count("relax.builtin.alloc_tensor"))
    return counts[0] - counts[1]


@pytest.mark.parametrize(("body", "fewer"), [
    (once, 1), (twice, 2), (of_its_own_sums, 0), (read_afterwards, 0), (an_input, 0), (a_result, 0),
    (seen_as_another_shape, 0), (a_result_seen_as_another_shape, 1), (beside_others, 0),
])  # fmt: skip
def test_operands_that_die_are_overwritten_and_no_others(body, fewer):
    mod, x = module(body, (16, 32)), values(16, 32)
    assert overwrites(*changed(mod)) == fewer
    executable, wanted = build(mod, LLVM, device=CPU), default(mod, x)
    for _ in range(2):  # the second time in memory that holds the first one's values
        for got, expected in zip(run(executable, x), wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 32, 13, 11), pytest.param((2, 32, 8, 12), marks=pytest.mark.nightly)])
def test_a_residual_block_of_convolutions(shape, monkeypatch):
    """Bit by bit as without: direct and by Winograd's algorithm, tiles over an edge."""

    def block(builder, x):
        def conv(y, filters, size):
            weight = relax.const(values(filters, int(y.ty.shape[1]), size, size))
            return builder.emit(OP.nn.conv2d(y, weight, padding=size // 2))

        def relu(y):
            return builder.emit(OP.nn.relu(y))

        kept = relu(conv(x, 64, 1))
        first = relu(builder.emit(OP.add(conv(relu(conv(kept, 32, 3)), 64, 3), kept)))
        return relu(conv(relu(builder.emit(OP.add(conv(relu(conv(first, 32, 1)), 64, 1), first))), 16, 1))

    mod, x = module(block, shape), values(*shape)
    assert overwrites(*changed(mod)) == 1  # pixels of the other are merged: a view of it is read
    in_place = run(build(mod, LLVM, device=CPU), x)[0]
    monkeypatch.setattr("roller_tvm.relax.pipeline.ResultsInPlace", lambda: tvm.transform.Sequential([]))
    np.testing.assert_array_equal(in_place, run(build(mod, LLVM, device=CPU), x)[0])


def test_vectors_over_an_edge_are_not_computed_twice():
    """A row's last vector may begin before its tile: not where it would read its own result."""

    def body(builder, x):
        def sums(y, columns):
            return builder.emit(OP.matmul(y, relax.const(values(int(y.ty.shape[1]), columns))))

        kept, other = builder.emit(OP.tanh(sums(x, 621))), sums(x, 50)
        first = builder.emit(OP.nn.relu(builder.emit(OP.add(sums(other, 621), kept))))
        return sums(first, 8)

    mod, x = module(body, (31, 24)), values(31, 24)
    assert overwrites(*changed(mod)) == 1
    np.testing.assert_allclose(run(build(mod, LLVM, device=CPU), x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-3)


def added(read, where=None):
    """An element-wise sum whose second operand is read at ``read(i, j)``, also by a block before with `where`."""
    from tvm import te

    a, r = te.placeholder((16, 16), name="a"), te.placeholder((16, 16), name="r")
    first = te.compute((16, 16), lambda i, j: a[i, j] + (r[where(i, j)] if where else 0.0), name="first")
    last = te.compute((16, 16), lambda i, j: first[i, j] * 2.0 + r[read(i, j)], name="last")
    return te.create_prim_func([a, r, last])


@pytest.mark.parametrize(("read", "where", "found"), [
    (lambda i, j: (i, j), None, {1}),
    (lambda i, j: (j, i), None, set()),  # another element than that which is stored
    (lambda i, j: (i, (j + 1) % 16), None, set()),
    (lambda i, j: (i, j), lambda i, j: (i, j), set()),  # read by another block, before or after
])  # fmt: skip
def test_only_what_is_read_for_its_own_element_may_be_overwritten(read, where, found):
    assert overwritable(added(read, where)) == found


def test_sums_overwrite_nothing():
    from tvm import te

    a, r, k = te.placeholder((16, 16), name="a"), te.placeholder((16,), name="r"), te.reduce_axis((0, 16), name="k")
    total = te.compute((16,), lambda i: te.sum(a[i, k] * r[i], axis=k), name="total")
    assert overwritable(te.create_prim_func([a, r, total])) == set()
