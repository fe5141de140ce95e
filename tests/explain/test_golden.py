"""Explanations of stored plans: any change of the text is seen in a diff. Not a test of the model."""

import json
from pathlib import Path

import pytest

from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.planner.construction import Construction, RankedPlan
from roller_tvm.planner.explain import explain
from roller_tvm.roller.alignment import Rejection

PLANS = Path(__file__).parent / "plans"


def stored(name):
    data = json.loads((PLANS / f"{name}.json").read_text())
    construction = Construction(
        tuple(map(RankedPlan.from_json, data["plans"])), tuple(Rejection(**r) for r in data["rejections"]),
        data["eps"], data["considered"])  # fmt: skip
    if data["device"] == "cpu":
        return construction, DeviceSpec.from_json((PLANS / "cpu_device.json").read_text())
    return construction, load_device(data["device"])


@pytest.mark.parametrize("name", ["conv_h200", "matmul_nt_v100", "split_h200", "softmax_h200", "conv_cpu"])
def test_text(golden, name):
    construction, device = stored(name)
    golden(name, explain(construction, device, steps=name == "matmul_nt_v100"))


def test_one_plan_has_no_runners_up_or_rejections():
    construction, device = stored("conv_h200")
    text = explain(construction.best, device)
    assert "runners-up" not in text and "considered" not in text and "latency bound" in text
