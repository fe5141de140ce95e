"""Random small TE programs, scheduled by the first plans, against numpy: odd extents, any axes, any order."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, example, given, note, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tvm import te  # noqa: E402

from roller_tvm.relax.candidates import make_candidates  # noqa: E402
from roller_tvm.relax.devices import device_of  # noqa: E402
from roller_tvm.relax.record_lines import check_replay  # noqa: E402
from roller_tvm.relax.tasks import normalized  # noqa: E402
from roller_tvm.tuning.numerics import difference  # noqa: E402

from ..sampling import NIGHTLY  # noqa: E402

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
#: Extents at and beside the widths of vectors, and primes.
EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33])
CHECKED = settings(
    max_examples=40 if NIGHTLY else 5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PLANS = 2

#: Element-wise stages: what te computes, and what numpy does.
POINTWISE = {
    "relu": (lambda x: tvm.tirx.max(x, tvm.tirx.const(0.0, "float32")), lambda x: np.maximum(x, 0)),
    "twice": (lambda x: x * tvm.tirx.const(2.0, "float32"), lambda x: x * 2),
    "square": (lambda x: x * x, np.square),
    "sigmoid": (lambda x: te.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
}


def stage(function, tensor):
    return lambda *index: function(tensor[index])


class Program:
    """A TE program beside its meaning."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.inputs, self.values = [], []

    def input(self, *shape):
        name = f"in{len(self.inputs)}"
        self.inputs.append(te.placeholder(shape, name=name))
        self.values.append(self.rng.standard_normal(shape).astype("float32"))
        return self.inputs[-1], self.values[-1]

    def after(self, tensor, value, chain):
        """Element-wise stages behind a tensor."""
        for n, name in enumerate(chain):
            of_te, of_numpy = POINTWISE[name]
            tensor = te.compute(tensor.shape, stage(of_te, tensor), name=f"{name}{n}")
            value = of_numpy(value)
        return tensor, value

    def check(self, tensor, expected, terms, constants=()):
        mod = normalized(te.create_prim_func([*self.inputs, tensor], index_dtype_override="int64"))
        note(mod.script(show_meta=False))
        found = make_candidates(mod["main"], device_of(None, TARGET), PLANS, constants)
        assert not found.reason, found.reason
        done = list(found.schedules())
        assert done and not found.failures, found.failures
        for candidate, schedule in done:
            note(str(candidate.ranked.plan))
            out = tvm.runtime.tensor(np.full(expected.shape, np.nan, "float32"))
            tvm.compile(schedule.mod, TARGET)["main"](*(tvm.runtime.tensor(v) for v in self.values), out)
            assert not difference(out.numpy(), expected.astype("float32"), terms)
            check_replay(mod, schedule, TARGET, "random")


#: Whether weights are known when the module is built, so that plans may lay them out.
constants = st.sampled_from([(), (1,)])
chains = st.lists(st.sampled_from(sorted(POINTWISE)), max_size=2)


@CHECKED
@given(EXTENTS, EXTENTS, EXTENTS, st.booleans(), st.booleans(), st.booleans(), chains, constants)
@example(17, 16, 8, False, False, False, ["relu"], (1,))  # register tiles over the edge of the rows
@example(31, 16, 8, True, False, False, [], ())
def test_products(m, n, k, batched, flip_a, flip_b, chain, known):
    program = Program()
    batch = (3,) if batched else ()
    a, left = program.input(*batch, *((k, m) if flip_a else (m, k)))
    b, right = program.input(*batch, *((n, k) if flip_b else (k, n)))
    r = te.reduce_axis((0, k), name="r")

    def product(*index):
        *outer, i, j = index
        return te.sum(
            a[(*outer, *((r, i) if flip_a else (i, r)))] * b[(*outer, *((j, r) if flip_b else (r, j)))], axis=r
        )

    made = te.compute((*batch, m, n), product, name="product")
    value = (np.swapaxes(left, -1, -2) if flip_a else left) @ (np.swapaxes(right, -1, -2) if flip_b else right)
    program.check(*program.after(made, value, chain), k, known)


@CHECKED
@given(
    st.sampled_from([5, 7, 9, 12]), st.sampled_from([1, 3, 4, 16]), st.sampled_from([1, 5, 16]),
    st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.sampled_from([0, 1]), st.booleans(), chains,
    constants,
)  # fmt: skip
def test_windows(size, channels, filters, kernel, stride, padding, depthwise, chain, known):
    program = Program()
    data, x = program.input(1, channels, size, size)
    weights, w = program.input(channels if depthwise else filters, 1 if depthwise else channels, kernel, kernel)
    filters = channels if depthwise else filters
    padded = te.compute(
        (1, channels, size + 2 * padding, size + 2 * padding),
        lambda n, c, h, v: te.if_then_else(
            te.all(h >= padding, h < size + padding, v >= padding, v < size + padding),
            data[n, c, h - padding, v - padding], tvm.tirx.const(0.0, "float32"),
        ),
        name="padded",
    )  # fmt: skip
    out = (size + 2 * padding - kernel) // stride + 1
    axes = [te.reduce_axis((0, kernel), name="kh"), te.reduce_axis((0, kernel), name="kw")]
    if not depthwise:
        axes.insert(0, te.reduce_axis((0, channels), name="rc"))

    def window(n, f, h, v):
        *rc, kh, kw = axes
        return te.sum(
            padded[n, rc[0] if rc else f, h * stride + kh, v * stride + kw] * weights[f, rc[0] if rc else 0, kh, kw],
            axis=axes,
        )

    made = te.compute((1, filters, out, out), window, name="window")
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    value = np.zeros((1, filters, out, out))
    for kh in range(kernel):
        for kw in range(kernel):
            part = x[:, :, kh : kh + out * stride : stride, kw : kw + out * stride : stride][:, :, :out, :out]
            value += part * w[:, 0, kh, kw][None, :, None, None] if depthwise else np.einsum(
                "nchw,fc->nfhw", part, w[:, :, kh, kw])  # fmt: skip
    terms = kernel * kernel * (1 if depthwise else channels)
    program.check(*program.after(made, value, chain), terms, known)


@CHECKED
@given(st.lists(EXTENTS, min_size=1, max_size=3), st.data())
def test_reductions_over_any_axes(shape, data):
    program = Program()
    x, value = program.input(*shape)
    reduced = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    kind = data.draw(st.sampled_from(["sum", "max", "min"]))
    axes = {at: te.reduce_axis((0, shape[at]), name=f"r{at}") for at in reduced}
    kept = [at for at in range(len(shape)) if at not in axes]

    def reduction(*index):
        own = iter(index)
        point = [axes[at] if at in axes else next(own) for at in range(len(shape))]
        return getattr(te, kind)(x[tuple(point)], axis=list(axes.values()))

    made = te.compute(
        tuple(shape[at] for at in kept) or (1,), reduction if kept else lambda _: reduction(), name="made"
    )
    value = getattr(value.astype("float64"), kind)(axis=tuple(reduced)).reshape(made_shape(made))
    program.check(*program.after(made, value, data.draw(chains)), int(np.prod([shape[at] for at in reduced])))


@CHECKED
@given(st.lists(EXTENTS, min_size=1, max_size=4), st.data())
def test_elements_moved_and_changed(shape, data):
    program = Program()
    x, value = program.input(*shape)
    order = data.draw(st.permutations(range(len(shape))))
    moved = te.compute(
        tuple(shape[at] for at in order),
        lambda *i: x[tuple(i[order.index(at)] for at in range(len(shape)))],
        name="moved",
    )
    program.check(*program.after(moved, value.transpose(order), data.draw(chains)), 1)


@CHECKED
@given(EXTENTS, EXTENTS, chains)
def test_rows(rows, columns, chain):
    """Softmax: two reductions of the same rows, and what stands between them."""
    program = Program()
    x, value = program.input(rows, columns)
    a, b = (te.reduce_axis((0, columns), name=n) for n in "ab")
    top = te.compute((rows,), lambda i: te.max(x[i, a], axis=a), name="top")
    power = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - top[i]), name="power")
    total = te.compute((rows,), lambda i: te.sum(power[i, b], axis=b), name="total")
    made = te.compute((rows, columns), lambda i, j: power[i, j] / total[i], name="made")
    value = np.exp(value - value.max(1, keepdims=True))
    program.check(*program.after(made, value / value.sum(1, keepdims=True), chain), columns)


def made_shape(tensor):
    return tuple(int(e) for e in tensor.shape)
