"""Convolutions and poolings whose rows and columns are open, against TVM's own kernels of the same module."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402

from roller_tvm.planner.family_blocks import SQUARES  # noqa: E402
from roller_tvm.relax.layout_cost import LayoutCosts  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, schedule  # noqa: E402
from roller_tvm.te.numbering import PARALLEL  # noqa: E402
from roller_tvm.tir.open_merged import merged_axes  # noqa: E402
from roller_tvm.tir.open_places import loops as loops_of  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

#: Around the tiles of 4 and 8 rows and of 4 to 28 columns; one pixel; primes.
SIZES = ((1, 1), (1, 9), (2, 4), (3, 3), (4, 5), (5, 8), (7, 13), (8, 14), (9, 15), (13, 29), (16, 33))


def sides():
    return tvm.tirx.Var("h", "int64"), tvm.tirx.Var("w", "int64")


def convolution(channels, outputs, kernel, stride=1, groups=1, images=1):
    weight, bias = values(outputs, channels // groups, kernel, kernel), values(1, outputs, 1, 1)

    def body(b, x):
        y = relax.op.nn.conv2d(x, relax.const(weight), strides=stride, padding=kernel // 2, groups=groups)
        return b.emit(relax.op.nn.relu(b.emit(relax.op.add(b.emit(y), relax.const(bias)))))

    return module(body, (images, channels, *sides()))


def pooling(op, channels, kernel, stride):
    return module(
        lambda b, x: b.emit(op(x, (kernel, kernel), (stride, stride), kernel // 2)), (1, channels, *sides())
    )  # fmt: skip


def planned(mod):
    """The module built, every one of its functions planned."""
    _, report = schedule(prepare(mod, LLVM), LLVM)
    assert not report.left, str(report)
    return build(mod, LLVM)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def same(mod, shapes, least=1):
    """All functions are planned; they compute what TVM's own do."""
    executable, plain = planned(mod), tvm.compile(mod, tvm.target.Target("llvm"))
    channels, images = (int(mod["main"].params[0].ty.shape[n]) for n in (1, 0))
    for h, w in shapes:
        if min(h, w) >= least:
            x = values(images, channels, h, w)
            close(run(executable, x)[0], run(plain, x)[0])


@pytest.mark.parametrize("stride", sampled([2, 1], 2))
def test_a_convolution_of_any_picture(stride):
    same(convolution(16, 32, 3, stride), SIZES)


@pytest.mark.parametrize("arranged, tile, images", sampled([("NHWC", 4, 1), ("blocked", 2, 2), ("NHWC", 2, "n")], 3))
def test_winograds_algorithm_of_any_picture(arranged, tile, images, monkeypatch):
    """Squares over the edge, and pictures smaller than one; unequal padding; a bias behind it."""
    monkeypatch.setattr(LayoutCosts, "tile", lambda _self, conv, own: tile if own is not None and conv.tiles else 0)
    weight, bias = values(16, 16, 3, 3), values(1, 16, 1, 1)
    count = tvm.tirx.Var("n", "int64") if images == "n" else images

    def body(b, x):
        y = relax.op.nn.conv2d(x, relax.const(weight), padding=[1, 0, 2, 1])
        return b.emit(relax.op.nn.relu(b.emit(relax.op.add(b.emit(y), relax.const(bias)))))

    mod = module(body, (count, 16, *sides()))
    made = prepare(mod, LLVM, arranged=arranged)
    _, report = schedule(made, LLVM)
    assert not report.left, str(report)
    (squares,) = (note for note in report.notes if "winograd_squares" in note.name)
    assert all(f"tile t={size}" in squares.plan for size in SQUARES), "blocks of squares"
    executable, plain = build(made, LLVM), tvm.compile(mod, tvm.target.Target("llvm"))
    # Around blocks of 4 and 16 squares of 2 or 4 pixels; many blocks.
    for h, w in ((1, 2), (1, 9), (3, 3), (4, 5), (5, 8), (7, 13), (9, 29), (13, 14), (16, 18), (17, 15), (37, 61)):
        x = values(3 if images == "n" else images, 16, h, w)
        close(run(executable, x)[0], run(plain, x)[0])


def test_one_channel_for_each():
    same(convolution(32, 32, 3, groups=32), SIZES)


@pytest.mark.parametrize("groups", sampled([32, 1], 2))
def test_padding_is_copied_a_tile_at_a_time(groups):
    """No load within a window asks where the picture ends: but in tiles of one pixel, which reuse nothing."""
    _, report = schedule(prepare(convolution(32, 32, 5, groups=groups), LLVM), LLVM)
    (plan,) = {note.plan for note in report.notes if "conv2d" in note.name}
    rules = [rule for rule in plan.split("; ") if not rule.endswith("=1 xx=1")]
    assert rules and not [rule for rule in rules if ": cpu.direct" not in rule]


def test_rows_of_a_picture_are_shared_among_the_cores():
    made, _ = schedule(prepare(module(lambda b, x: b.emit(relax.op.exp(x)), (1, *sides(), 24)), LLVM), LLVM)
    loops = [
        str(loop.loop_var.name) for func in made.functions.values() if isinstance(func, tvm.tirx.PrimFunc)
        for loop in loops_of(func.body) if int(loop.kind) == PARALLEL
    ]  # fmt: skip
    assert loops and set(loops) == {"t_i1"}, "columns would be shared, each a step through memory"


def test_a_convolution_of_single_pixels():
    same(convolution(32, 16, 1), SIZES)


@pytest.mark.parametrize("channels, outputs", sampled([(24, 96), (48, 40), (16, 3)], 3))
def test_pixels_are_one_axis(channels, outputs):
    """A product of all pixels, to which a picture is added, in runs of one size; inputs lie anywhere in memory."""
    weight = values(outputs, 1, 1, channels)
    h, w = sides()

    def body(b, x, other):
        y = relax.op.nn.conv2d(x, relax.const(weight), data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")
        return b.emit(relax.op.nn.relu(b.emit(relax.op.add(b.emit(y), other))))

    mod = module(body, (1, h, w, channels), (1, h, w, outputs))
    _, report = schedule(prepare(mod, LLVM), LLVM)
    (note,) = report.notes
    tiles = sorted({int(rule.rsplit("=", 1)[1]) for rule in note.plan.split("; ")})
    assert tiles[0] == 1 and len(tiles) > 1 and " and " not in note.plan
    executable = planned(mod)
    counts = {n + more for n in tiles for more in (-1, 0, 1)} | {2 * tiles[-1] + 1, 113}
    for high, wide in [(1, n) for n in sorted(counts) if n] + [(n, 3) for n in tiles] + [(7, 13), (37, 29)]:
        x, other = anywhere(1, high, wide, channels), anywhere(1, high, wide, outputs)
        wanted = np.maximum(x.astype("float64") @ weight[:, 0, 0].T.astype("float64") + other, 0)
        close(run(executable, x, other)[0], wanted)


def anywhere(*shape):
    """Values that are aligned to their elements alone."""
    size = int(np.prod(shape))
    return values(size + 1).reshape(-1)[1:].reshape(shape)


@pytest.mark.parametrize("read, merges", [
    (lambda x, row, i, j, k: x[i, j, k], True),
    (lambda x, row, i, j, k: x[i, j, k] * row[j, k], False),  # a tensor of columns alone
    (lambda x, row, i, j, k: x[i, te.min(j + 1, x.shape[1] - 1), k], False),
])  # fmt: skip
def test_axes_are_merged_where_all_tensors_have_both(read, merges):
    (h, w), k = sides(), te.reduce_axis((0, 8), "k")
    x, row = te.placeholder((h, w, 8), name="x"), te.placeholder((w, 8), name="row")
    out = te.compute((h, w), lambda i, j: te.sum(read(x, row, i, j, k), [k]), name="out")
    merged = merged_axes(te.create_prim_func([x, row, out], index_dtype_override="int64"))
    assert (merged is not None) == merges
    if merged is not None:
        assert [len(p.shape) for p in merged.made.params] == [2, 2, 1]


def test_a_pooling_of_any_picture():
    same(pooling(relax.op.nn.max_pool2d, 16, 3, 2), SIZES, least=2)


def test_features_join_at_twice_their_size():
    """The neck of a text detector: smaller features, repeated, added to larger ones."""
    h, w = sides()

    def body(b, x, larger):
        large = relax.op.image.resize2d(x, (h * 2, w * 2), None, "NCHW", "nearest_neighbor", "asymmetric", "floor")
        return b.emit(relax.op.add(b.emit(large), larger))

    mod = module(body, (1, 16, h, w), (1, 16, h * 2, w * 2))
    executable = planned(mod)
    for high, wide in SIZES:
        x, larger = values(1, 16, high, wide), values(1, 16, 2 * high, 2 * wide)
        close(run(executable, x, larger)[0], x.repeat(2, 2).repeat(2, 3) + larger)


@pytest.mark.parametrize("arranged", sampled([None, "NHWC", "blocked"], 3))
def test_a_transposed_convolution_of_any_picture(arranged):
    """Its squares are of pixels in the arrangement of the convolutions around it, with what comes next."""
    first, weight = values(16, 16, 1, 1), values(16, 32, 3, 2)

    def body(b, x):
        y = b.emit(relax.op.nn.conv2d(x, relax.const(first)))
        y = b.emit(relax.op.nn.conv2d_transpose(y, relax.const(weight), strides=(3, 2)))
        return b.emit(relax.op.negative(b.emit(relax.op.nn.relu(y))))

    mod = module(body, (1, 16, *sides()))
    made = prepare(mod, LLVM, arranged=arranged)
    names = [str(var.name_hint) for var in made.functions]
    assert any("squares" in name and "relu" in name for name in names), names
    if arranged is not None:
        moves = [name for name in names if "transpose" in name or "layout_transform" in name]
        assert len(moves) <= 2, "of the input and of the result alone"
    _, report = schedule(made, LLVM)
    assert not report.left, str(report)
    executable = build(made, LLVM)
    for high, wide in SIZES:
        x = values(1, 16, high, wide)
        y = np.einsum("ncij,oc->noij", x, first[:, :, 0, 0])
        expected = np.einsum("ncij,coab->noiajb", y, weight).reshape(1, 32, 3 * high, 2 * wide)
        close(run(executable, x)[0], -np.maximum(expected, 0))


@pytest.mark.parametrize("stride", sampled([3, 2], 2))
def test_a_transposed_convolution_of_one_picture(stride):
    """Without overlaps it is a product of pixels too, whose window need not be square."""
    weight, bias = values(16, 8, stride, 2), values(1, 8, 1, 1)

    def body(b, x):
        y = b.emit(relax.op.nn.conv2d_transpose(x, relax.const(weight), strides=(stride, 2)))
        return b.emit(relax.op.nn.relu(b.emit(relax.op.add(y, relax.const(bias)))))

    mod = module(body, (2, 16, 5, 7))
    _, report = schedule(prepare(mod, LLVM), LLVM)
    assert not report.left and all("dilated" not in note.recipe for note in report.notes)
    x = values(2, 16, 5, 7)
    expected = np.einsum("ncij,coab->noiajb", x, weight).reshape(2, 8, 5 * stride, 14)
    close(run(build(mod, LLVM), x)[0], np.maximum(expected + bias, 0))


def test_a_transposed_convolution_keeps_the_dtype_of_its_result():
    """Products of float16 whose sums exceed it."""
    weight = np.full((16, 4, 2, 2), 200, "float16")

    def body(b, x):
        return b.emit(relax.op.nn.conv2d_transpose(x, relax.const(weight), strides=2, out_dtype="float32"))

    (result,) = run(build(module(body, (1, 16, 3, 3), dtype="float16"), LLVM), np.full((1, 16, 3, 3), 200, "float16"))
    assert result.dtype == "float32" and (result == 16 * 200 * 200).all()


@pytest.mark.parametrize("arranged", ["NHWC", "blocked"])
def test_a_call_without_inputs_beside_a_convolution(arranged):
    weight = values(16, 16, 1, 1)

    def body(b, x):
        filled = b.emit_te(lambda: te.compute((1, 16, 4, 4), lambda n, c, h, w: (c + h).astype("float32")))
        return b.emit(relax.op.add(b.emit(relax.op.nn.conv2d(x, relax.const(weight))), filled))

    x, filled = values(1, 16, 4, 4), np.arange(16)[:, None, None] + np.arange(4)[:, None] + np.zeros(4)
    made = prepare(module(body, (1, 16, 4, 4)), LLVM, arranged=arranged)
    close(run(build(made, LLVM), x)[0], np.einsum("ncij,oc->noij", x, weight[:, :, 0, 0]) + filled)


def drawn(case):
    channels, outputs, kernel, stride, images, shapes = case
    same(convolution(channels, outputs, kernel, stride, images=images), shapes)


cases = st.tuples(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3, 5]), st.integers(1, 2), st.integers(1, 2),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=5),
)  # fmt: skip


@pytest.mark.nightly
@given(cases)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_drawn_convolutions(case):
    drawn(case)


@given(cases)
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_drawn_convolution(case):
    drawn(case)
