"""References three times: `support.cu` executed on this CPU, the elements in Python, and numpy."""

from __future__ import annotations

import itertools
import zipfile
from math import prod
from pathlib import Path

import numpy as np
import pytest

from roller_bench.kit.archive import KitOperator
from roller_bench.kit.cases import Case
from roller_bench.kit.inputs import TYPES, decoded, seed_of, value
from roller_bench.kit.measure import Bench, _make_reference
from roller_bench.kit.reference import disagreement, reference_of, spots
from roller_bench.kit.support import ARCHIVE, own_sources
from roller_tvm.device.cpu_bench import find_compiler
from roller_tvm.errors import UnsupportedOperator

from .emulated_card import EmulatedCard

CASES = {
    "same, strided": ("conv2d_nchw", "n=2 c=3 h=6 w=5 f=4 kh=3 kw=2 stride=2 padding=SAME"),
    "dilated, one side padded": ("conv2d_nchw", "n=1 c=2 h=7 w=6 f=3 kh=2 kw=3 dilation=2 padding=0x1x2x0"),
    "groups": ("conv2d_nchw", "n=1 c=4 h=4 w=4 f=6 kh=1 kw=3 groups=2 padding=VALID"),
    "depthwise": ("depthwise_conv2d_nchw", "n=2 c=3 h=5 w=6 k=3 stride=2 padding=SAME"),
    "two for each channel": ("depthwise_conv2d_nchw", "n=1 c=2 h=4 w=4 k=3 multiplier=2 padding=1"),
    "matmul": ("matmul", "m=3 n=5 k=7"),
    "matmul, both turned": ("matmul", "m=3 n=4 k=5 layout=TT"),
    "batch": ("batch_matmul", "b=2 m=3 n=2 k=4 layout=NT"),
    "mean": ("avg_pool2d_nchw", "n=1 c=2 h=6 w=5 k=3 stride=2 padding=SAME"),
    "largest": ("max_pool2d_nchw", "n=1 c=2 h=5 w=7 k=2 stride=3 padding=1"),
    "relu": ("relu", "shape=3x5"),
    "sum": ("reduce_sum", "shape=2x3x4x5"),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The kit's own kernels, on this CPU."""
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    kit = tmp_path_factory.mktemp("kit")
    (kit / "sm_90").mkdir()
    with zipfile.ZipFile(kit / "sm_90" / ARCHIVE, "w") as archive:
        for name in own_sources():
            archive.writestr(f"{name}.cubin", name)
    return Bench(EmulatedCard({name.encode(): text for name, text in own_sources().items()}), kit, "sm_90")


def inputs(reference):
    return [
        np.array([value(i, seed_of(n)) for i in range(prod(shape))]).reshape(shape)
        for n, shape in enumerate(reference.inputs)
    ]


def by_numpy(reference, given):
    d = reference.sizes
    if reference.kernel == "relu":
        return np.maximum(given[0], 0)
    if reference.kernel == "sum_last":
        return given[0].reshape(-1, d[0]).sum(1).reshape(reference.output)
    if reference.kernel == "matmul":
        a, b = (g.reshape(d[0], *g.shape[-2:]) for g in given)
        return ((a.swapaxes(1, 2) if d[4] else a) @ (b.swapaxes(1, 2) if d[5] else b)).reshape(reference.output)
    if reference.kernel == "pool2d":
        windows = cut(given[0], d[2:4], d[4:6], d[6:8], d[8:10], d[10:12])
        return (np.nanmean if d[12] else np.nanmax)(windows, axis=(-2, -1))
    n, c, h, w, f, kh, kw, oh, ow, *rest, groups = d
    windows = np.nan_to_num(cut(given[0], (kh, kw), (oh, ow), rest[0:2], rest[2:4], rest[4:6]))
    windows = windows.reshape(n, groups, c // groups, oh, ow, kh, kw)
    weight = given[1].reshape(groups, f // groups, c // groups, kh, kw)
    return np.einsum("ngcyxrq,gfcrq->ngfyx", windows, weight).reshape(reference.output)


def cut(image, kernel, out, stride, dilation, before):
    """Every window, what is outside as NaN."""
    padded = np.pad(image, [(0, 0), (0, 0), (before[0], 40), (before[1], 40)], constant_values=np.nan)
    along = zip(out, stride, kernel, dilation, strict=True)
    rows, columns = ((np.arange(o) * s)[:, None] + (np.arange(k) * e)[None] for o, s, k, e in along)
    return padded[:, :, rows[:, None, :, None], columns[None, :, None, :]]


@pytest.mark.parametrize(("name", "dtype"), [*itertools.product(CASES, TYPES)])
def test_reference(bench, name, dtype):
    operator, params = CASES[name]
    reference = reference_of(operator, dict(w.split("=") for w in params.split()))
    expected = by_numpy(reference, inputs(reference))
    assert expected.shape == reference.output
    case = KitOperator(Case("X0", operator, params, dtype), "sm_90", "h200", reference, ())
    size, card = TYPES[dtype][0], bench.card
    addresses = [card.alloc(prod(s) * size) for s in (*reference.inputs, reference.output)]
    _make_reference(bench, Path(), case, addresses[:-1], addresses[-1])
    got = card.read(addresses[-1], reference.elements * size)
    elements = {i: got[i * size : (i + 1) * size] for i in range(reference.elements)}
    assert disagreement(reference, dtype, elements) == "", "Python"
    numbers = np.array([decoded(e, dtype) for e in elements.values()]).reshape(reference.output)
    step = TYPES[dtype][1]
    assert np.abs(numbers - expected).max() <= step * np.abs(expected).max()
    if dtype == "float32" and reference.kernel != "pool2d":
        assert (numbers == expected).all(), "sums of these inputs are exact, whatever the order"


def test_a_wrong_reference_is_noticed():
    reference = reference_of("matmul", {"m": 3, "n": 4, "k": 5})
    right = np.float32([reference.element(i) for i in range(12)])
    assert disagreement(reference, "float32", {i: right[i].tobytes() for i in spots(reference)}) == ""
    assert "element 0" in disagreement(reference, "float32", {0: np.float32(right[0] + 0.01).tobytes()})
    assert "nan" in disagreement(reference, "float32", {0: np.float32(np.nan).tobytes()})


def test_what_has_no_reference():
    with pytest.raises(UnsupportedOperator, match="softmax") as found:
        reference_of("softmax", {"shape": "4x4"})
    assert "support.cu" in found.value.remedy
    with pytest.raises(UnsupportedOperator, match="axes"):
        reference_of("reduce_sum", {"shape": "4x4x4", "axis": "0"})


def test_compare(bench):
    """Values that differ, are lost, or are NaN on both sides."""
    card = bench.card
    got, due = np.float32([1, 2, 3, 4]), np.float32([1, 2, 3, -4])
    a, b = card.alloc(16), card.alloc(16)
    card.write(b, due.tobytes())
    for change, gap, differing, words in (
        (4, 8.0, 1, "off by 8 at element 3"), (-4, 0.0, 0, ""), (np.nan, None, 1, "1 of 4")
    ):  # fmt: skip
        got[3] = change
        card.write(a, got.tobytes())
        found = bench.compared(a, b, 4, "float32")
        assert (found["error"], found["differing"]) == (gap, differing) and words in found.get("why", "")
        assert ("why" in found) == bool(words) and found["scale"] == 4
    got[3] = np.float32(-4) * (1 + np.float32(2**-22))
    card.write(a, got.tobytes())
    assert "why" not in bench.compared(a, b, 4, "float32"), "a last rounding is let pass"


def test_an_element_is_judged_by_its_own_size(bench):
    """A bfloat16 element that misses one term of a long sum: less than a rounding of the largest element."""
    card, words = bench.card, np.float32([300, 1.5, 0.25, -8]).view(np.uint32) >> 16
    a, b = card.alloc(8), card.alloc(8)
    card.write(b, words.astype(np.uint16).tobytes())
    for change, off in ((np.float32([300, 1.5, 0.25, -8]), 0), (np.float32([302, 1.5, 0.25, -8]), 0),
                        (np.float32([300, 1.25, 0.25, -8]), 1), (np.float32([300, 1.25, 0.125, -8]), 2)):  # fmt: skip
        card.write(a, (change.view(np.uint32) >> 16).astype(np.uint16).tobytes())
        told = bench.compared(a, b, 4, "bfloat16").get("why", "")
        assert told.endswith(f"; {off} of 4 are off by more" if off else "") and bool(told) == bool(off), told
        assert "why" not in bench.compared(a, b, 4, "bfloat16", 4), "sums that are not exact: by the largest"


def test_the_first_and_the_last_element_are_checked():
    for params in ({"m": 128, "n": 1000, "k": 512}, {"m": 3, "n": 4, "k": 5}):
        reference = reference_of("matmul", params)
        assert {0, reference.elements - 1} <= set(spots(reference))
