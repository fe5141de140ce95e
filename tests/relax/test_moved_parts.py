"""Parts of what is permuted, moved one by one: the same values; where others read the whole, nothing changes."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.relax, pytest.mark.optimised]

from tvm import relax  # noqa: E402

from roller_tvm.relax import FoldScales, MovedParts  # noqa: E402
from roller_tvm.relax.pipeline import prepare  # noqa: E402

from . import modules as M  # noqa: E402

T, H, D = 7, 2, 4


def attention(parts="take", indices=(0, 1, 2), more=None):
    """Queries, keys and values of one tensor, as exporters write them, and their products."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, T, 3 * H * D), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            whole = builder.emit(relax.op.exp(x))  # read by all parts
            split = builder.emit(relax.op.reshape(whole, (1, T, 3, H, D)))
            turned = builder.emit(relax.op.permute_dims(split, [2, 0, 3, 1, 4]))
            q, k, v = (builder.emit(_part(builder, turned, parts, n)) for n in indices)
            scores = builder.emit(relax.op.matmul(q, builder.emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
            out = builder.emit(relax.op.matmul(scores, v))
            if more is not None:
                out = builder.emit(relax.op.add(out, builder.emit(more(turned))))
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    return builder.get()


def _part(builder, turned, parts, n):
    if parts == "slice":
        return relax.op.squeeze(builder.emit(relax.op.strided_slice(turned, [0], [n], [n + 1])), [0])
    index = relax.const(n, "int64")
    if parts == "index by arithmetic":  # as ONNX's importer writes a Gather
        shape = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(turned))))
        extent = builder.emit(relax.op.take(shape, relax.const(0, "int64"), axis=0))
        below = builder.emit(relax.op.less(index, relax.const(0, "int64")))
        index = builder.emit(relax.op.where(below, builder.emit(relax.op.add(index, extent)), index))
    return relax.op.take(turned, index, axis=0)


def count(mod, name):
    found = []

    @relax.expr_functor.visitor
    class Seen(relax.PyExprVisitor):
        def visit_call_(self, op):
            found.extend([op] if getattr(op.op, "name", "") == f"relax.{name}" else [])

    Seen().visit_expr(mod["main"])
    return len(found)


def check(mod, made):
    x = np.random.default_rng(2).uniform(-1, 1, (1, T, 3 * H * D)).astype("float32")
    np.testing.assert_allclose(M.answer(made, x), M.answer(mod, x), rtol=1e-6)


@pytest.mark.parametrize("parts", ["take", "slice", "index by arithmetic"])
def test_each_part_has_the_moves_to_itself(parts):
    mod = attention(parts)
    made = MovedParts()(FoldScales()(mod))
    assert count(made, "permute_dims") == 3 + 1 and count(made, "reshape") == 3 and count(made, "exp") == 1
    assert count(made, "take") == 0 and count(made, "strided_slice") == 3
    check(mod, made)
    kernels = [name for name in (v.name_hint for v in prepare(mod, M.TARGET).get_global_vars()) if "slice" in name]
    assert len(kernels) == 3 and all("reshape" in name and "transpose" in name for name in kernels)


def test_parts_of_what_others_read_whole_stay_where_they_are():
    mod = attention("slice", more=lambda turned: relax.op.sum(turned))
    made = MovedParts()(mod)
    assert count(made, "permute_dims") == 2 and count(made, "reshape") == 1
    check(mod, made)


def test_parts_that_are_more_than_the_whole_stay():
    """The first third three times over, and the rest: moved apart they would be read more than once."""
    mod = attention("slice", (0, 0, 2), more=lambda turned: relax.op.sum(relax.op.strided_slice(turned, [0], [0], [3])))
    made = MovedParts()(mod)
    assert count(made, "permute_dims") == 2
    check(mod, made)


def split(x, sections, axis=1, taken=None):
    """Parts of a tensor, each with work of its own."""
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(relax.op.split(builder.emit(relax.op.exp(x)), sections, axis))
            taken = range(len(parts.ty.fields)) if taken is None else taken
            made = [builder.emit(relax.op.negative(builder.emit(relax.TupleGetItem(parts, n)))) for n in taken]
            out = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(out)
    return builder.get()


def tensor(*shape):
    return relax.Var("x", relax.TensorType(shape, "float32"))


def parts_of(mod, x):
    machine = relax.VirtualMachine(tvm.compile(mod, target=M.TARGET), tvm.cpu())
    return [part.numpy() for part in machine["main"](tvm.runtime.tensor(x))]


@pytest.mark.parametrize("sections, axis, taken", [
    (3, 1, None), ([2, 3], 1, None), ([2, 3], -1, [2, 0]), (4, 1, [0, 0, 3]), ([2], 0, [1, 0]),
])  # fmt: skip
def test_parts_of_a_split_are_slices(sections, axis, taken):
    """Of 7 or 8 columns three or four parts, the last one shorter; parts that nothing reads; one that is read twice."""
    mod = split(tensor(3, 7, 8), sections, axis, taken)
    made = MovedParts()(mod)
    assert count(made, "split") == 0 and count(made, "strided_slice") == count(mod, "negative")
    x = np.random.default_rng(3).uniform(-1, 1, (3, 7, 8)).astype("float32")
    for got, wanted in zip(parts_of(made, x), parts_of(mod, x), strict=True):
        np.testing.assert_array_equal(got, wanted)
    kernels = [str(v.name_hint) for v in prepare(mod, M.TARGET).get_global_vars() if "slice" in v.name_hint]
    assert kernels and all("negative" in name for name in kernels), "each slice is one kernel with its reader"


@pytest.mark.parametrize("taken, slices", [([0, 1, 0], 0), ([1], 1)])
def test_a_split_of_a_concatenation_is_one_kernel_with_it(taken, slices):
    """As ShuffleNet mixes channels; a part that nothing reads is not computed."""
    x, builder = tensor(1, 6, 4), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            both = builder.emit(relax.op.concat([builder.emit(relax.op.exp(x)), x], axis=1))
            apart = builder.emit(relax.op.reshape(both, (1, 2, 6, 4)))
            turned = builder.emit(relax.op.permute_dims(apart, [0, 2, 1, 3]))
            parts = builder.emit(relax.op.split(builder.emit(relax.op.reshape(turned, (1, 12, 4))), 2, 1))
            made = [builder.emit(relax.op.negative(builder.emit(relax.TupleGetItem(parts, n)))) for n in taken]
            out = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(out)
    mod, given = builder.get(), np.random.default_rng(4).uniform(-1, 1, (1, 6, 4)).astype("float32")
    made = MovedParts()(mod)
    assert count(made, "strided_slice") == slices and count(made, "split") == 1 - slices
    for got, wanted in zip(parts_of(made, given), parts_of(mod, given), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_split_of_an_open_extent_and_one_out_of_order_stay():
    n = tvm.tirx.Var("n", "int64")
    assert count(MovedParts()(split(tensor(3, n), 3)), "strided_slice") == 0
    assert count(MovedParts()(split(tensor(n, 6), 3)), "strided_slice") == 3, "its rows are open"
    assert count(MovedParts()(split(tensor(3, 6), [4, 2])), "strided_slice") == 0


def test_an_index_out_of_bounds_and_one_that_is_not_known_stay_takes():
    builder = relax.BlockBuilder()
    x, n = relax.Var("x", relax.TensorType((3, 4), "float32")), relax.Var("n", relax.TensorType((), "int64"))
    with builder.function("main", [x, n]):
        with builder.dataflow():
            known = builder.emit(relax.op.take(x, n, axis=0))
            beyond = builder.emit(relax.op.take(x, relax.const(5, "int64"), axis=0, mode="clip"))
            out = builder.emit_output(relax.op.add(known, beyond))
        builder.emit_func_output(out)
    assert count(MovedParts()(builder.get()), "take") == 2
