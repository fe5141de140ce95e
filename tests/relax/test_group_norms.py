"""Group normalisation as means of channels: right answers, and images stay arranged through it."""

from functools import partial

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax import FoldScales, GroupNorms  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.pipeline import build  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, default, module, operators, run, values  # noqa: E402

OP = relax.op
C = 32


def norm(builder, x, gamma, beta, groups=1, **options):
    axes = list(range(2, len(x.ty.shape)))
    told = {"num_groups": groups, "channel_axis": 1, "axes": axes, **options}
    return builder.emit(OP.nn.group_norm(x, gamma, beta, **told))


def exact(x, groups, gamma, beta, epsilon=1e-5):
    rows = x.astype(np.float64).reshape(len(x), groups, -1)
    rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + epsilon)
    one = (-1, *[1] * (x.ndim - 2))
    return rows.reshape(x.shape) * gamma.reshape(one) + beta.reshape(one)


@pytest.mark.parametrize("shape, groups", [
    ((1, C, 6, 5), 1), ((1, C, 6, 5), 4), ((3, C, 6, 5), 1), ((2, C, 7), C), ((1, 6, 2, 3, 4), 2),
])  # fmt: skip
def test_it_computes_the_same(shape, groups):
    """Far from zero too, where the difference of two sums of squares would have no digits left."""
    x = values(*shape) + np.float32(100)
    gamma, beta = values(shape[1]), values(shape[1])
    mod = module(partial(norm, groups=groups), shape, gamma.shape, beta.shape)
    (got,) = run(build(mod, LLVM), x, gamma, beta)
    np.testing.assert_allclose(got, exact(x, groups, gamma, beta), rtol=1e-3, atol=2e-3)
    assert "nn.group_norm" not in operators(GroupNorms()(mod))


def instance_norm(builder, x, groups, scale, shift, view=True):
    """As ONNX's importer writes InstanceNormalization of a view, and exporters of torch a GroupNorm."""
    emit, shape = builder.emit, [int(e) for e in x.ty.shape]
    y = emit(OP.reshape(x, (shape[0], groups, -1))) if view else x
    axes = list(range(2, len(y.ty.shape)))
    apart = emit(OP.subtract(y, emit(OP.mean(y, axes, keepdims=True))))
    spread = emit(OP.add(emit(OP.variance(y, axes, keepdims=True)), relax.const(1e-5)))
    z = emit(OP.divide(apart, emit(OP.sqrt(spread))))
    one = (-1, *[1] * len(axes))
    z = emit(OP.multiply(z, emit(OP.reshape(relax.const(scale), one))))
    z = emit(OP.add(z, emit(OP.reshape(relax.const(shift), one))))
    return emit(OP.reshape(z, shape)) if view else z


@pytest.mark.parametrize("groups, alike", [(1, True), (4, True), (4, False), (C, True)])
def test_an_instance_norm_of_a_view_is_a_group_norm(groups, alike):
    """The view ends where scales differ from group to group."""
    scale, shift = (np.full(groups, 1.5, "float32") if alike else values(groups) for _ in range(2))
    x = values(2, C, 6, 5) + np.float32(100)
    mod = module(lambda builder, x: instance_norm(builder, x, groups, scale, shift), x.shape)
    (got,) = run(build(mod, LLVM), x)
    wanted = exact(x, groups, np.repeat(scale, C // groups), np.repeat(shift, C // groups))
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=2e-3)
    made = operators(FoldScales()(GroupNorms()(mod)))
    assert "variance" not in made and made.count("divide") == 0
    wide = [b.value for block in FoldScales()(GroupNorms()(mod))["main"].body.blocks for b in block.bindings
            if len(getattr(b.value.ty, "shape", ())) == 3 and int(b.value.ty.shape[2]) > C]  # fmt: skip
    assert (not wide) == alike, "no view of the image is left"


def test_instance_norms_themselves():
    scale, shift = values(C), values(C)
    x = values(2, C, 6, 5)
    mod = module(lambda builder, x: instance_norm(builder, x, C, scale, shift, view=False), x.shape)
    assert "variance" not in operators(GroupNorms()(mod))
    np.testing.assert_allclose(run(build(mod, LLVM), x)[0], exact(x, C, scale, shift), rtol=1e-3, atol=1e-4)


def test_a_view_that_crosses_channels_is_an_image_of_its_own():
    """Of 6 channels 4 groups: a group is a channel and a half."""
    scale, shift, x = np.ones(4, "float32"), np.zeros(4, "float32"), values(2, 6, 4, 4)
    mod = module(lambda builder, x: instance_norm(builder, x, 4, scale, shift), x.shape)
    assert "variance" not in operators(GroupNorms()(mod))
    np.testing.assert_allclose(run(build(mod, LLVM), x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-5)


def test_without_its_scale_or_shift():
    gamma, beta, x = values(C), values(C), values(1, C, 4, 4)
    for name in ("scale", "center"):
        mod = module(partial(norm, groups=4, **{name: False}), x.shape, gamma.shape, beta.shape)
        wanted = exact(x, 4, np.ones(C) if name == "scale" else gamma, np.zeros(C) if name == "center" else beta)
        np.testing.assert_allclose(run(build(mod, LLVM), x, gamma, beta)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"channel_axis": 3, "axes": [1, 2]}, {"axes": [2]}], ids=str)
def test_others_stay(options):
    mod = module(partial(norm, **options), (1, 4, 4, 4), (4,), (4,))
    assert "nn.group_norm" in operators(GroupNorms()(mod))


def test_halves_stay():
    mod = module(norm, (1, 4, 4, 4), (4,), (4,), dtype="float16")
    assert "nn.group_norm" in operators(GroupNorms()(mod))


@pytest.mark.parametrize("only", ["NHWC", "blocked"])
@pytest.mark.parametrize("groups", [1, 4])
def test_images_stay_arranged(only, groups):
    def body(builder, x):
        emit = builder.emit
        y = emit(OP.nn.conv2d(x, relax.const(values(C, C, 1, 1))))
        y = emit(OP.add(norm(builder, y, relax.const(values(C)), relax.const(values(C)), groups), x))
        return emit(OP.nn.conv2d(y, relax.const(values(C, C, 1, 1))))

    mod, x = module(body, (1, C, 8, 8)), values(1, C, 8, 8)
    plan = PlanLayout(LLVM, device("avx512"), only)
    made = plan(GroupNorms()(mod))
    assert plan.report.convolutions == 2 and plan.report.transformations == 2, "of the input and of the result"
    np.testing.assert_allclose(default(made, x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)
