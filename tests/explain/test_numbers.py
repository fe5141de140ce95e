"""Explanations of what is constructed now: numbers of every kind that a report tells, of each kind of nest and device.

They change with the model: ``--update-golden``, and read the difference. What is said of stored plans: test_golden.
"""

import pytest

from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner import construct
from roller_tvm.planner.explain import explain
from roller_tvm.roller.features import Features

from ..plan.devices import device

CASES = {
    "matmul m=512 n=512 k=512 bias=1": ("v100", "avx512"),
    "matmul m=1021 n=127 k=509": ("a100", "avx2"),
    "matmul m=16 n=32 k=16384": ("h200", "avx512"),
    "matmul m=256 n=256 k=256 dtype=float16": ("h100",),
    "conv2d_nchw n=1 c=64 h=28 w=28 f=64 k=3 padding=1 relu=1": ("t4", "avx2"),
    "depthwise_conv2d_nchw n=1 c=96 h=56 w=56 k=3 stride=2 padding=1": ("mi50", "avx512"),
    "softmax shape=64x1000": ("rtx4090", "avx2"),
    "transpose shape=1024x768": ("k80", "avx512"),
    "add shape=1x3": ("v100", "avx2"),
}


@pytest.mark.parametrize("words", CASES, ids=lambda words: words.split()[0] + words[-4:])
def test_explanations(golden, words):
    told = []
    for on in CASES[words]:
        spec = device(on)
        found = construct(parse_operator(words.split()), spec, 10, Features.of_tensor_ir(spec))
        told.append(explain(found, spec, runners_up=9, steps=True))
    golden("now_" + words.replace(" ", "_").replace("=", ""), "\n".join(told))
