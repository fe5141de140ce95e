"""Open extents planned: each kernel against a reference at sizes around the bounds of its ranges, and at drawn ones."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, schedule  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

#: First, last and one beyond of each range of the tiles below, 1, primes.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49, 97, 128, 211)


def var(name="n"):
    return tvm.tirx.Var(name, "int64")


def planned(mod):
    """The module built, every one of its functions planned."""
    _, report = schedule(prepare(mod, LLVM), LLVM)
    assert not report.left, str(report)
    return build(mod, LLVM)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


WEIGHT, BIAS = values(24, 96), values(96)


def dense(builder, x):
    y = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, relax.const(WEIGHT))), relax.const(BIAS)))
    return builder.emit(relax.op.nn.relu(y))


def test_a_product_at_every_bound():
    executable = planned(module(dense, (var(), 24)))
    for size in SIZES:
        x = values(size, 24)
        close(run(executable, x)[0], np.maximum(x @ WEIGHT + BIAS, 0))


def test_a_size_of_nothing():
    executable = planned(module(dense, (var(), 24)))
    assert run(executable, values(0, 24))[0].shape == (0, 96)


def test_its_weights_are_packed_once():
    mod = module(lambda b, x: b.emit(relax.op.matmul(x, relax.const(values(256, 512)))), (var(), 256))
    scheduled, report = schedule(prepare(mod, LLVM), LLVM)
    (note,) = report.scheduled
    assert note.plan.count("tile") > 1  # several ranges
    (call,) = [b.value for block in scheduled["main"].body.blocks for b in block.bindings if hasattr(b.value, "args")
               and len(b.value.args) > 1]  # fmt: skip
    arrays = [field.value.numpy() for field in call.args[1].fields if hasattr(field, "value")]
    assert [a.size for a in arrays] == [256 * 512]


def test_several_open_axes_of_a_product():
    """Scores of attention: rows and columns."""
    executable = planned(module(
        lambda b, q, k: b.emit(relax.op.matmul(q, k)), (3, var("n"), 16), (3, 16, var("m"))
    ))  # fmt: skip
    for n, m in [(1, 1), (1, 40), (3, 15), (4, 16), (5, 17), (8, 47), (9, 48), (13, 49), (50, 31), (7, 7)]:
        q, k = values(3, n, 16), values(3, 16, m)
        close(run(executable, q, k)[0], q @ k)


def test_a_product_along_an_open_axis():
    along = var("m")
    mod = module(lambda b, p, v: b.emit(relax.op.matmul(p, v)), (3, var("n"), along), (3, along, 16))
    executable = planned(mod)
    for n, m in [(1, 1), (2, 5), (4, 16), (6, 251), (7, 252), (13, 31)]:
        p, v = values(3, n, m), values(3, m, 16)
        close(run(executable, p, v)[0], p @ v)


@pytest.mark.parametrize("shape", [("n", 40), (2, "n", 8), (5, "n"), ("n", "m"), ("n", 3, "m")])
def test_elementwise(shape):
    open_vars = {name: var(name) for name in ("n", "m")}

    def body(b, x):
        return b.emit(relax.op.add(b.emit(relax.op.nn.relu(x)), b.emit(relax.op.multiply(x, x))))

    executable = planned(module(body, tuple(open_vars.get(e, e) for e in shape)))
    for n, m in ((1, 1), (3, 15), (16, 16), (17, 33), (31, 2)):
        x = values(*({"n": n, "m": m}.get(e, e) for e in shape))
        close(run(executable, x)[0], np.maximum(x, 0) + x * x)


def test_positions_are_those_of_the_whole_tensor():
    """A mask compares indices: a tile's are not from 0."""
    mod = module(lambda b, x: b.emit(relax.op.triu(x, 1)), (var("n"), var("m")))
    executable = planned(mod)
    for n, m in ((1, 1), (5, 16), (17, 17), (33, 40), (40, 33)):
        x = values(n, m)
        close(run(executable, x)[0], np.triu(x, 1))


def test_norms_and_transposes():
    scale = np.ones(48, "float32")

    def body(b, x):
        y = b.emit(relax.op.nn.rms_norm(x, relax.const(scale), axes=[-1], epsilon=1e-5))
        y = b.emit(relax.op.reshape(y, (1, x.ty.shape[1], 4, 12)))
        return b.emit(relax.op.permute_dims(y, [0, 2, 3, 1]))

    executable = planned(module(body, (1, var(), 48)))
    for size in (1, 15, 16, 17, 37):
        x = values(1, size, 48)
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        close(run(executable, x)[0], y.reshape(1, size, 4, 12).transpose(0, 2, 3, 1))


@pytest.mark.parametrize("kind", ["softmax", "sum", "max"])
def test_rows_along_an_open_axis(kind):
    """Reductions along it: each element counts once, however long the last vector is."""
    op = {"softmax": lambda x: relax.op.nn.softmax(x, axis=-1), "sum": lambda x: relax.op.sum(x, axis=-1),
          "max": lambda x: relax.op.max(x, axis=-1)}[kind]  # fmt: skip
    executable = build(module(lambda b, x: b.emit(op(x)), (3, var("n"), var("m"))), LLVM)
    for n, m in ((1, 1), (2, 3), (3, 8), (5, 15), (5, 16), (5, 17), (7, 31), (2, 32), (4, 33), (2, 100), (1, 251)):
        x = values(3, n, m)
        e = np.exp(x)
        expected = {"softmax": e / e.sum(-1, keepdims=True), "sum": x.sum(-1), "max": x.max(-1)}[kind]
        close(run(executable, x)[0], expected)


@pytest.mark.parametrize("shape", [("n",), (1, "n"), (1, "n", 1), (2, "n"), (1, "n", 3)])
@pytest.mark.parametrize("kind", ["softmax", "sum", "max", "variance"])
def test_few_rows_along_an_open_axis(kind, shape):
    """A reduction without rows to share among the cores is not shared along itself."""
    op = {"softmax": relax.op.nn.softmax, "sum": relax.op.sum, "max": relax.op.max, "variance": relax.op.variance}[kind]
    axis = shape.index("n")
    open_shape = tuple(var() if extent == "n" else extent for extent in shape)
    executable = build(module(lambda b, x: b.emit(op(x, axis=axis)), open_shape), LLVM)
    for size in (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257):
        x = values(*(size if extent == "n" else extent for extent in shape))
        e = np.exp(x)
        expected = {"softmax": e / e.sum(axis, keepdims=True), "sum": x.sum(axis), "max": x.max(axis),
                    "variance": x.var(axis)}[kind]  # fmt: skip
        close(run(executable, x)[0], expected)


def test_softmax_is_planned():
    planned(module(lambda b, x: b.emit(relax.op.nn.softmax(x, axis=-1)), (3, var("n"), var("m"))))


def drawn(rows, columns, inner, sizes):
    weight = values(inner, columns)
    mod = module(lambda b, x: b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(x, relax.const(weight))))),
                 (rows, var(), inner))  # fmt: skip
    executable = build(mod, LLVM)
    for size in sizes:
        x = values(rows, size, inner)
        close(run(executable, x)[0], np.maximum(x @ weight, 0))


shapes = st.tuples(
    st.integers(1, 4), st.integers(1, 130), st.integers(1, 64), st.lists(st.integers(1, 60), min_size=3, max_size=6)
)


@given(shapes)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_drawn_shapes(shape):
    drawn(*shape)


@pytest.mark.nightly
@given(shapes)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_drawn_shapes(shape):
    drawn(*shape)


def test_what_computes_with_its_size_is_planned():
    """Flipped: the index is counted from the end, which a tile's start moves."""
    mod = module(lambda b, x: b.emit(relax.op.flip(x, axis=0)), (var(), 6))
    executable = planned(mod)
    for size in (1, 2, 7, 16, 33):
        x = values(size, 6)
        close(run(executable, x)[0], x[::-1])


def test_what_is_left_is_told_once_and_an_error_if_it_must_not_be():
    """No silent fallback: a warning with a table, the report, and strict."""
    import warnings

    import roller_tvm
    from roller_tvm.errors import NotPlanned, UnplannedWarning

    def body(b, x):
        return b.emit(relax.op.sort(b.emit(relax.op.matmul(x, relax.const(values(6, 6)))), axis=1))

    mod = module(body, (var(), 6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = roller_tvm.compile(mod)
    (told,) = [str(w.message) for w in caught if w.category is UnplannedWarning]
    assert "1 of 2 kernels" in told and "sort" in told
    assert told in str(model.report())
    with pytest.raises(NotPlanned, match="sort"):
        roller_tvm.compile(mod, strict=True)
    planned_whole = module(lambda b, x: b.emit(relax.op.nn.relu(x)), (var(), 6))
    roller_tvm.compile(planned_whole, strict=True)


def test_bounds_are_kept_and_a_likely_size_is_planned_for():
    import roller_tvm
    from roller_tvm.errors import BadInput, UsageError

    mod = module(lambda b, x: b.emit(relax.op.matmul(x, relax.const(WEIGHT))), (var(), 24))
    model = roller_tvm.compile(mod, bounds={"n": (2, 16)}, likely={"n": 3})
    x = values(16, 24)
    close(model(x), x @ WEIGHT)
    close(model(x[:2]), x[:2] @ WEIGHT)
    for size in (1, 17):
        with pytest.raises(BadInput, match=f"n = {size}, but .* must hold"):
            model(values(size, 24))
    assert "i0=3" in str(model.report()) or "i0 from 3" in str(model.report()), model.report()
    with pytest.raises(BadInput, match="no open extent 'm'"):
        roller_tvm.compile(mod, bounds={"m": (1, 2)})
    with pytest.raises(UsageError, match="bounds"):
        roller_tvm.compile(mod, bounds={"n": (5, 2)})
    with pytest.raises(UsageError, match="likely"):
        roller_tvm.compile(mod, likely={"n": 0})


def test_a_reduction_shared_among_cores_is_refused():
    from tvm.script import tirx as T

    from roller_tvm.tir.open_tiles import _require_whole_sums

    def total(kind):
        @T.prim_func(s_tir=True)
        def main(x: T.Buffer((64, 64), "float32"), y: T.Buffer((64,), "float32")):
            for i in kind[0](64):
                for k in kind[1](64):
                    with T.sblock("sum"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        with T.init():
                            y[vi] = T.float32(0)
                        y[vi] = y[vi] + x[vi, vk]

        return main.body.block.body

    _require_whole_sums(total((T.parallel, T.serial)))
    with pytest.raises(MeasureError, match="'sum' shares its reduction along 'vk' among cores"):
        _require_whole_sums(total((T.serial, T.parallel)))


def test_convolutions_with_open_sides_are_planned_as_the_layout_pass_writes_them():
    first, second = values(32, 16, 1, 1), values(32, 32, 3, 3, low=-0.1, high=0.1)

    def body(b, x):
        y = b.emit(relax.op.nn.conv2d(x, relax.const(first)))
        return b.emit(relax.op.nn.relu(b.emit(relax.op.nn.conv2d(y, relax.const(second), padding=1))))

    mod = module(body, (1, 16, var("h"), var("w")))
    cpu = device("avx512")
    _, report = schedule(prepare(mod, LLVM, device=cpu, arranged="blocked"), LLVM, device=cpu)
    assert not report.left and "conv2d_blocked" in {note.name for note in report.scheduled}, str(report)
    executable = build(mod, LLVM, device=cpu)
    for high, wide in ((7, 5), (20, 33)):
        x = values(1, 16, high, wide)
        y = np.einsum("ncyx,oc->noyx", x.astype("float64"), first[:, :, 0, 0])
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(y, [(0, 0)] * 2 + [(1, 1)] * 2), (3, 3), (2, 3))
        close(run(executable, x)[0], np.maximum(np.einsum("ncyxpq,ocpq->noyx", windows, second, optimize=True), 0))


def test_the_last_row_of_any_number_is_planned():
    """Its place is open, its result is not."""
    n = var()
    mod = module(lambda b, x: b.emit(relax.op.strided_slice(x, [0], [n - 1], [n])), (n, 96))
    executable = planned(mod)
    for rows in (1, 2, 33):
        x = values(rows, 96)
        close(run(executable, x)[0], x[-1:])
