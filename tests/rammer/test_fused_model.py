"""What is told and drawn of a plan."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml

import pytest

from roller_tvm.device import load_device
from roller_tvm.rammer import DataFlowGraph, FusionPlan, Phase, RKernel, ROperator, draw, explain_fusion, plan_graph

V100 = load_device("v100")


def branches() -> DataFlowGraph:
    one = RKernel("plan 0", (Phase(20, 4e-6, 2e-6, 128, 40, 2048),), 4e-6)
    two = RKernel("plan 0", (Phase(30, 2e-6, 1e-6, 64, 32), Phase(4, 1e-6, 1e-6, 32, 32)), 3e-6)
    return DataFlowGraph((
        ROperator("stem", (one,)), *(ROperator(f"branch{n}", (two,), ("stem",)) for n in range(3)),
        ROperator("a <b> & c", (one,), tuple(f"branch{n}" for n in range(3))),
    ))  # fmt: skip


def test_words() -> None:
    plan = plan_graph(branches(), V100)
    text = explain_fusion(plan)
    (part,) = plan.parts
    assert part.program is not None
    assert f"5 operators in 1 kernels instead of 8 on v100, launched from a stream: {part.seconds * 1e6:.1f} us" in text
    assert "7 launches of 2.6 us saved" in text
    assert f"{part.program.barriers} barriers" in text and "vEUs wait" in text
    assert "  wave 1: branch0, branch1, branch2" in text and "  wave 2: a <b> & c" in text
    assert "branch1: plan 0" in text and "a <b> & c ends last" in text
    assert "the device has to have 80 units; name the card where it has fewer" in text
    assert "leave" in explain_fusion(plan_graph(branches(), V100, "wavefront"))
    told = re.findall(r"^    (.+): plan 0, ([\d.]+) to ([\d.]+) us", text, re.MULTILINE)
    (stem, *middle, last) = [(float(start), float(end)) for _, start, end in told]
    assert [name for name, *_ in told] == ["stem", "branch0", "branch1", "branch2", "a <b> & c"]
    assert 0 == stem[0] < stem[1] and all(stem[1] < start < end <= last[0] for start, end in middle)
    assert last[0] < last[1] < part.seconds * 1e6


def test_before_fusion_is_by_the_fastest_kernels_whatever_the_plan_chose() -> None:
    """Eight operators whose efficient kernels were chosen, together: one by one they are the fast ones."""
    fast = RKernel("fast", (Phase(320, 4e-6, 4e-6, 256, 64), Phase(10, 1e-6, 1e-6)), 17e-6)
    efficient = RKernel("efficient", (Phase(40, 16e-6, 16e-6, 256, 64),), 20e-6)
    plan = plan_graph(DataFlowGraph(tuple(ROperator(f"op{n}", (fast, efficient)) for n in range(8))), V100, "wavefront")
    (part,) = plan.parts
    assert {k.name for _, k in part.kernels} == {"efficient"} and {k.name for _, k in part.plain} == {"fast"}
    assert part.sequential_seconds == pytest.approx(8 * (17e-6 + 2 * 2.6e-6)) and part.sequential_launches == 16
    words = draw(plan, V100)
    assert f"one by one: 16 kernels, {plan.sequential_seconds * 1e6:.1f} us predicted" in words
    assert "op0, 320 rTasks" in words and "op0, 40 rTasks" in words
    assert "15 launches of 2.6 us saved" in explain_fusion(plan)
    assert FusionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_picture() -> None:
    plan = plan_graph(branches(), V100)
    root = xml.fromstring(draw(plan, V100))
    space = "{http://www.w3.org/2000/svg}"
    titles = [t.text for t in root.iter(f"{space}title")]
    assert titles.count("launch") == 5 + 1  # before: one rectangle an operator; after: one kernel
    assert titles.count("a <b> & c, 20 rTasks") >= 2
    assert {"branch0, 30 rTasks", "branch0, 4 rTasks"} <= set(titles)
    assert "a <b> & c" in titles  # of the legend, which cuts long names
    words = [t.text for t in root.iter(f"{space}text")]
    assert any(w.startswith("one by one: 8 kernels") for w in words if w)
    assert any(w.startswith("fused: 1 kernels") for w in words if w)
    width = float(root.get("viewBox").split()[2])
    for box in root.iter(f"{space}rect"):
        x = float(box.get("x", 0))
        assert 0 <= x <= x + float(box.get("width")) <= width + 0.1
