"""PlanLayout: what is arranged, what is left plain, where tensors are transformed, and that it computes the same."""

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402

from roller_tvm.relax.arrangement import Arrangement, Convolution  # noqa: E402
from roller_tvm.relax.arranging import Convolutions  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.layout_cost import LayoutCosts  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402
from roller_tvm.relax.sums import SumsAsAdditions  # noqa: E402
from roller_tvm.te.winograd import POINTS, transformed_weights  # noqa: E402
from roller_tvm.tir.nodes import structurally_equal  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from .networks import LLVM, default, module, operators, run, values  # noqa: E402

OP = relax.op
CPU = device("avx512")
ARRANGEMENTS = ("NHWC", "blocked")


def const(*shape):
    return relax.const(values(*shape))


def arranged(body, *shapes, only):
    """The module arranged, after its answers were compared."""
    mod, inputs = module(body, *shapes), [values(*shape) for shape in shapes]
    plan = PlanLayout(LLVM, CPU, only)
    result = plan(mod)
    for got, wanted in zip(default_of(result, *inputs), default(mod, *inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    return result, plan.report


def default_of(mod, *inputs):
    return run(relax.build(mod, tvm.target.Target("llvm")), *inputs)


def residual(builder, x):
    """Convolutions with everything between them that can stay arranged."""
    emit = builder.emit
    a = emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv2d(x, const(32, 3, 3, 3), padding=1)), const(1, 32, 1, 1)))))
    b = emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv2d(a, const(32, 32, 3, 3), padding=1)), const(32, 1, 1)))))
    b = emit(OP.nn.max_pool2d(emit(OP.add(a, b)), pool_size=(3, 3), strides=(2, 2), padding=(1, 1)))
    d = emit(OP.clip(emit(OP.nn.conv2d(b, const(32, 1, 3, 3), padding=1, groups=32)), 0, 6))
    g = emit(OP.multiply(emit(OP.concat([d, b], axis=1)), relax.const(0.5, "float32")))
    squeezed = emit(OP.mean(g, axis=[2, 3], keepdims=True))
    gate = emit(OP.sigmoid(emit(OP.nn.conv2d(squeezed, const(64, 64, 1, 1)))))
    g = emit(OP.nn.avg_pool2d(emit(OP.multiply(g, gate)), pool_size=(2, 2), strides=(2, 2)))
    f = emit(OP.nn.conv2d(g, const(16, 64, 1, 1), strides=(2, 2)))
    return emit(OP.nn.adaptive_avg_pool2d(f, (1, 1)))


@pytest.mark.parametrize("only", ARRANGEMENTS)
@pytest.mark.nightly
def test_a_network_is_arranged_from_end_to_end(only):
    mod, report = arranged(residual, (1, 3, 16, 16), only=only)
    assert report.convolutions == 5
    # A network's input alone is transformed; blocks are read from three plain channels.
    assert report.transformations == (only == "NHWC")
    left = operators(mod)
    assert left.count("layout_transform") + left.count("permute_dims") == report.transformations


@pytest.mark.parametrize("only", ARRANGEMENTS)
def test_what_needs_plain_tensors_gets_them(only):
    def body(builder, x, y):
        emit = builder.emit
        a = emit(OP.nn.conv2d(x, const(32, 32, 3, 3), padding=1))
        grouped = emit(OP.nn.conv2d(a, const(32, 8, 3, 3), padding=1, groups=4))
        wide = emit(OP.multiply(emit(OP.nn.conv2d(grouped, const(32, 32, 3, 3), padding=1)), relax.const(0.01)))
        wide = emit(OP.add(wide, y))
        return emit(OP.nn.softmax(wide, axis=3))

    mod, report = arranged(body, (1, 32, 8, 8), (1, 32, 8, 8), only=only)
    # x, y, into softmax; in blocks, into and out of what is grouped, too.
    assert (report.convolutions, report.transformations) == {"NHWC": (3, 3), "blocked": (2, 5)}[only]
    assert "nn.softmax" in operators(mod)


@pytest.mark.parametrize("only", ARRANGEMENTS)
def test_means_of_images_are_plain(only):
    def body(builder, x):
        y = builder.emit(OP.nn.conv2d(x, const(32, 16, 1, 1)))
        y = builder.emit(OP.mean(y, axis=[2, 3]))
        return builder.emit(OP.matmul(y, const(32, 5)))

    _, report = arranged(body, (2, 16, 6, 6), only=only)
    assert report.transformations == 1


@pytest.mark.parametrize("only", ARRANGEMENTS)
def test_what_is_arranged_stays_in_its_block_of_bindings(only):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 16, 6, 6), "float32"))
    with builder.function("main", [x]):
        between = x
        for _ in range(2):
            with builder.dataflow():
                y = builder.emit(OP.nn.conv2d(between, const(16, 16, 3, 3), padding=1))
                y = builder.emit(OP.add(builder.emit(OP.nn.relu(y)), x))
                between = builder.emit_output(builder.emit(OP.nn.relu(y)))
            between = builder.emit(OP.tanh(between))  # outside, or the blocks are made one
        builder.emit_func_output(between)
    mod, inputs = builder.get(), values(1, 16, 6, 6)
    changed = PlanLayout(LLVM, CPU, only)(mod)
    relax.analysis.well_formed(changed)  # raises
    np.testing.assert_allclose(default_of(changed, inputs)[0], default(mod, inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("only", ARRANGEMENTS)
def test_parts_of_channels_stay_arranged(only):
    """Parts as of a split, of rows, and one that begins within a block."""
    def body(builder, x, bounds=((1, 0, 16), (1, 16, 48), (1, -16, 99), (1, 8, 40))):
        emit = builder.emit
        y = emit(OP.nn.conv2d(x, const(64, 16, 1, 1)))
        parts = [emit(OP.strided_slice(y, [axis], [first], [last])) for axis, first, last in bounds]
        parts.append(emit(OP.strided_slice(y, [2, 1], [1, 0], [5, 32], [2, 1])))
        a, b, c, d, e = (emit(OP.nn.conv2d(part, const(16, int(part.ty.shape[1]), 1, 1))) for part in parts)
        rows = emit(OP.strided_slice(emit(OP.add(emit(OP.add(a, b)), emit(OP.add(c, d)))), [2, 3], [1, 2], [3, 5]))
        return emit(OP.add(rows, emit(OP.strided_slice(e, [3], [3], [6]))))

    mod, report = arranged(body, (1, 16, 6, 6), only=only)
    assert report.convolutions == 6
    # x, the result; what is read in steps, from what is made plain for it; in blocks what begins within one too
    assert report.transformations == (5 if only == "blocked" else 4)


def test_channels_that_are_no_whole_blocks_stay_plain():
    def body(builder, x):
        y = builder.emit(OP.nn.conv2d(x, const(24, 16, 1, 1)))
        return builder.emit(OP.nn.conv2d(y, const(16, 24, 1, 1)))

    _, report = arranged(body, (1, 16, 6, 6), only="blocked")
    assert report.convolutions == 1  # from 24 plain channels into a block
    _, report = arranged(body, (1, 16, 6, 6), only="NHWC")
    assert report.convolutions == 2


def test_the_model_decides_and_the_best_of_its_predictions_is_taken():
    def body(builder, x):
        for _ in range(3):
            x = builder.emit(OP.nn.relu(builder.emit(OP.nn.conv2d(x, const(64, 64, 3, 3), padding=1))))
        return x

    _, report = arranged(body, (1, 64, 7, 7), only=None)  # rows of 7 pixels fill no vector
    assert report.chosen != "NCHW" and report.convolutions == 3
    assert report.predicted[report.chosen] == min(report.predicted.values())


def test_a_convolution_that_gains_less_than_its_transformations_cost_is_left():
    mod = module(lambda b, x: b.emit(OP.nn.conv2d(x, const(16, 16, 1, 1))), (1, 16, 64, 64))
    plan = PlanLayout(LLVM, CPU)
    changed = plan(mod)
    found = Convolutions()
    found.visit_expr(mod["main"])
    (conv,) = found.found.values()
    costs, blocks = LayoutCosts(CPU), Arrangement(16)
    gain = costs.convolution(conv, None) - costs.convolution(conv, blocks)
    moved = 2 * costs.transformation((1, 16, 64, 64), blocks)
    assert (gain > moved) == (not structurally_equal(changed, mod)), plan.report


@pytest.mark.parametrize("only", [*ARRANGEMENTS, None])
def test_weights_that_are_no_constants_and_other_devices_change_nothing(only):
    mod = module(lambda b, x, w: b.emit(OP.nn.conv2d(x, w)), (1, 16, 8, 8), (16, 16, 1, 1))
    assert structurally_equal(PlanLayout(LLVM, CPU, only)(mod), mod)
    mod = module(lambda b, x: b.emit(OP.nn.conv2d(x, const(16, 16, 1, 1))), (1, 16, 8, 8))
    assert structurally_equal(PlanLayout({"kind": "cuda", "arch": "sm_80"}, "a100", only)(mod), mod)


@pytest.mark.parametrize("only", sampled(["NCHW", *ARRANGEMENTS], 3))
def test_scheduled_with_packed_weights_it_computes_the_same(only):
    mod, x = module(residual, (1, 3, 16, 16)), values(1, 3, 16, 16)
    np.testing.assert_allclose(
        run(build(PlanLayout(LLVM, CPU, only)(mod), LLVM), x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-4
    )


def test_a_sum_over_a_stack_is_additions():
    def body(builder, x, y, z):
        parts = [builder.emit(OP.broadcast_to(t, (1, 4, 5))) for t in (x, y, z)]
        return builder.emit(OP.sum(builder.emit(OP.stack(parts, axis=0)), axis=[0]))

    shapes = ((1, 4, 5), (1, 4, 5), (4, 1))
    mod, inputs = module(body, *shapes), [values(*shape) for shape in shapes]
    changed = SumsAsAdditions()(mod)
    assert operators(changed) == ["broadcast_to", "add", "add"]
    np.testing.assert_allclose(default(changed, *inputs)[0], sum(inputs), rtol=1e-6)


def test_single_channels_put_side_by_side():
    """Each is a block of one where it is a factor; put side by side they are not."""

    def body(builder, x, *maps):
        y = builder.emit(OP.nn.conv2d(x, const(32, 16, 3, 3), padding=1))
        for one in maps:
            y = builder.emit(OP.multiply(y, one))
        beside = builder.emit(OP.concat(list(maps), axis=1))
        return relax.Tuple([builder.emit(OP.nn.conv2d(y, const(32, 32, 3, 3), padding=1)), beside])

    arranged(body, (1, 16, 28, 28), *[(1, 1, 28, 28)] * (CPU.vector_bytes // 4), only="blocked")


#: Data, filters and padding: odd images, tiles over the edge, several images, padding that differs from side to side.
WINDOWS = [((1, 16, 8, 8), 16, (1, 1, 1, 1)), ((2, 16, 7, 10), 32, (1, 1, 1, 1)), ((1, 32, 9, 5), 16, (0, 2, 1, 0))]


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("shape, filters, padding", WINDOWS)
def test_winograd_computes_the_convolution(shape, filters, padding, tile, block):
    rng = np.random.default_rng(tile)
    conv = Convolution(
        shape, (filters, shape[1], 3, 3), (1, 1), padding, (1, 1), 1, "float32", "float32",
    )  # fmt: skip
    x, w = (rng.standard_normal(s).astype("float32") for s in (conv.data, conv.weights))
    arrangement = Arrangement(block)
    inputs, out = conv.compute(arrangement, tile)
    kernel = tvm.compile(tvm.IRModule({"main": te.create_prim_func([*inputs, out])}), "llvm")["main"]
    top, left, bottom, right = padding
    padded = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)])
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    wanted = arrangement.array(np.einsum("ncyxpq,ocpq->noyx", views, w, optimize=True))
    result = tvm.runtime.tensor(np.zeros(wanted.shape, "float32"))
    kernel(*map(tvm.runtime.tensor, (arrangement.array(x), transformed_weights(w, tile))), result)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


def test_winograd_is_chosen_where_it_pays_and_can_be_switched_off():
    def body(builder, x):
        y = builder.emit(OP.nn.relu(builder.emit(OP.nn.conv2d(x, const(64, 64, 3, 3), padding=1))))
        return builder.emit(OP.nn.conv2d(y, const(16, 64, 3, 3), strides=2, padding=1))

    mod, x = module(body, (1, 64, 28, 28)), values(1, 64, 28, 28)
    plan, direct = (PlanLayout(LLVM, CPU, "blocked", winograd) for winograd in (True, False))
    changed = plan(mod)
    assert (plan.report.convolutions, plan.report.winograd) == (2, 1)  # the strided one is computed directly
    assert any("winograd" in var.name_hint for var in changed.get_global_vars())
    assert not any("winograd" in var.name_hint for var in direct(mod).get_global_vars())
    assert direct.report.winograd == 0
    prepared = prepare(changed, LLVM, device=CPU)
    assert any("winograd_relu" in var.name_hint for var in prepared.get_global_vars())  # with what follows it
    got, wanted = run(build(prepared, LLVM, device=CPU), x)[0], default(mod, x)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


def test_winograd_leaves_halves_alone():
    conv = Convolution((1, 16, 8, 8), (16, 16, 3, 3), (1, 1), (1,) * 4, (1, 1), 1, "float16", "float16")
    assert not conv.tiles


@pytest.mark.parametrize("channels, side", [(16, 56), (64, 28), (256, 14), (512, 7)])
def test_tiles_of_winograd_that_are_not_asked_for_would_not_be_faster(channels, side):
    shapes, dtypes = ((1, channels, side, side), (channels, channels, 3, 3)), ("float32", "float32")
    conv = Convolution(*shapes, (1, 1), (1,) * 4, (1, 1), 1, *dtypes)
    costs, seconds = LayoutCosts(CPU), {}
    for tile, arrangement in itertools.product(POINTS, (Arrangement(), Arrangement(CPU.vector_bytes // 4))):
        inputs, output = conv.compute(arrangement, tile)
        seconds.setdefault(tile, []).append(costs._seconds([*inputs, output], constants=inputs[1:]))
    assert min(map(min, seconds.values())) == min(min(seconds[tile]) for tile in conv.tiles)
    assert all(np.isclose(nhwc, blocked, rtol=0.03) for nhwc, blocked in seconds.values())  # one is asked of both
