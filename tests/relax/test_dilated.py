"""Dilated convolutions as undilated ones of pictures put apart, or of parts without padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.arrangement import Convolution  # noqa: E402
from roller_tvm.relax.arranging import convolution_of  # noqa: E402
from roller_tvm.relax.dilated import PARTS, DilatedForms, _Rewriter, apart, in_parts, parts_along  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.layout_cost import LayoutCosts  # noqa: E402
from roller_tvm.relax.modules import changed_by  # noqa: E402
from roller_tvm.relax.pipeline import build  # noqa: E402
from roller_tvm.relax.pixel_moves import APART  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import covering  # noqa: E402
from .networks import LLVM, default, module, operators, run, values  # noqa: E402


def conv_of(data, channels, window, dilation, padding):
    padding = padding if len(padding) == 4 else padding * 2
    return Convolution(data, (channels, data[1], *window), (1, 1), padding, dilation, 1, "float32", "float32")


def module_of(conv, *more):
    weights = relax.const(values(*conv.weights))

    def body(builder, x):
        y = builder.emit(relax.op.nn.conv2d(x, weights, [1, 1], list(conv.padding), list(conv.dilation)))
        for _ in more:
            y = builder.emit(relax.op.nn.relu(y))
        return y

    return module(body, conv.data)


CASES = [
    conv_of((1, 16, 12, 12), 16, (3, 3), (2, 2), (2, 2)),
    conv_of((2, 16, 7, 9), 32, (3, 3), (2, 4), (2, 4)),  # sides that the dilation does not divide
    conv_of((1, 16, 9, 9), 16, (3, 3), (6, 6), (6, 6)),  # most taps meet padding
    conv_of((1, 16, 9, 8), 16, (2, 5), (3, 1), (3, 2, 0, 2)),  # one side alone, other padding at the ends
    conv_of((1, 16, 11, 11), 16, (3, 3), (2, 2), (0, 0)),
]


@pytest.mark.parametrize(("conv", "form"), covering(CASES, [APART, PARTS]))
def test_both_forms_compute_the_same(conv, form):
    mod, x = module_of(conv, "relu"), values(*conv.data)
    made = changed_by(_Rewriter(mod, {conv: form}), mod)
    assert made.script() != mod.script()
    wanted = default(mod, x)[0]
    np.testing.assert_allclose(default(made, x)[0], wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run(build(made, LLVM), x)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", [APART, PARTS])
def test_of_an_open_batch(form):
    batch = tvm.tirx.Var("n", "int64")
    weights, fixed = values(*CASES[1].weights), CASES[1]
    options = {"padding": list(fixed.padding), "dilation": list(fixed.dilation)}

    def body(builder, x):
        return builder.emit(relax.op.nn.conv2d(x, relax.const(weights), **options))

    mod = module(body, (batch, *fixed.data[1:]))
    (call,) = (b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call))
    built = build(changed_by(_Rewriter(mod, {convolution_of(call): form}), mod), LLVM)
    for size in (1, 3):
        x = values(size, *fixed.data[1:])
        np.testing.assert_allclose(run(built, x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("conv", [
    conv_of((1, 16, 12, 12), 16, (3, 3), (1, 1), (1, 1)),
    conv_of((1, 16, 12, 12), 16, (3, 3), (2, 2), (1, 1)),  # its padding does not divide
])  # fmt: skip
def test_no_pictures_apart(conv):
    assert apart(conv) is None


def test_windows_outside_of_the_picture_have_no_parts():
    assert in_parts(conv_of((1, 16, 4, 4), 16, (1, 1), (2, 2), (1, 1))) == []


def test_the_cheaper_form_is_taken(monkeypatch):
    conv, spec = CASES[0], device("avx512")
    own, parts = apart(conv), [one for row in in_parts(conv) for *_, one in row]

    def taken(price):
        monkeypatch.setattr(LayoutCosts, "ask", lambda *_: None)
        monkeypatch.setattr(LayoutCosts, "convolution", lambda _, one, __: price.get(one, 1.0))
        monkeypatch.setattr(LayoutCosts, "transformation", lambda *_: 0.0)
        return operators(DilatedForms(LLVM, spec)(module_of(conv)))

    assert taken({own: 0.5}).count("call_tir") == 2  # apart and together
    assert "concat" in taken(dict.fromkeys(parts, 0.05))
    assert taken({}) == operators(module_of(conv))


def test_the_arrangement_stays_while_pixels_move():
    mod = module_of(CASES[0])
    made = changed_by(_Rewriter(mod, {CASES[0]: APART}), mod)
    arranged = PlanLayout(LLVM, device("avx512"), only="NHWC")(made)
    assert operators(arranged).count("permute_dims") == 2, arranged.script()


@settings(deadline=None)
@given(*(st.integers(1, most) for most in (12, 5, 8)), *(st.integers(0, 12) for _ in range(2)))
def test_parts_meet_what_the_windows_meet(extent, taps, dilation, before, after):
    results = extent + before + after - (taps - 1) * dilation
    if results < 1:
        return
    picture = np.arange(1.0, extent + 1)
    padded = np.pad(picture, (before, after))
    weights = np.arange(1.0, taps + 1) ** 3
    wanted = [sum(weights[t] * padded[at + t * dilation] for t in range(taps)) for at in range(results)]
    found = []
    for part in parts_along(extent, results, taps, dilation, before):
        met = picture[part.begin : part.begin + part.met(dilation)]
        assert part.begin >= 0 and len(met) == part.met(dilation)
        own = weights[part.first : part.first + part.taps]
        found += [sum(own[t] * met[at + t * dilation] for t in range(part.taps)) for at in range(part.results)]
    assert found in ([], wanted)
