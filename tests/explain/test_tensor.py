"""A plan on tensor cores is held against what these can do, and against shared memory that a block can opt in to."""

from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct
from roller_tvm.planner.explain import explain
from roller_tvm.roller.features import Features


def test_roofline_and_limits_are_those_of_the_units_used():
    device = load_device("a100")
    expression = operator("matmul", m=2048, n=2048, k=2048, dtype="float16")
    found = construct(expression, device, 3, Features.of_tensor_ir(device))
    text = explain(found, device)
    assert "at 312 TFLOP/s" in text and "at 78 TFLOP/s" not in text
    assert "of 163 KiB" in text and "buffers of each" in text
    reached = float(text.split("% of the roofline")[0].rsplit(" ", 1)[1])
    assert 30 < reached <= 100
    plain = explain(construct(expression, device, 3), device)
    assert "at 78 TFLOP/s" in plain and "of 48 KiB" in plain
