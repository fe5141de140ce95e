"""torch beside the kit: every operator called so that its result has the right shape, its times in the report."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from roller_bench.kit.cases import RTASKS, Case, all_cases
from roller_bench.kit.measure import LEAST, WARM_UP
from roller_bench.kit.reference import reference_of
from roller_bench.kit.torch_side import call_of, time_case
from roller_tvm.ir.operators import parse_params

from .made_up_kit import make_kit
from .test_run import driver, run  # noqa: F401

STAND_IN = Path(__file__).with_name("stand_in")
OPERATORS = Path(__file__).resolve().parents[2] / "python" / "roller_osdi22_operators.csv"
AWKWARD = [
    Case("X0", "conv2d_nchw", "n=1 c=4 h=6 w=5 f=8 kh=3 kw=2 stride=2 padding=SAME groups=2", "float16"),
    Case("X1", "depthwise_conv2d_nchw", "n=1 c=3 h=6 w=6 k=3 stride=2 padding=SAME multiplier=2", "float32"),
    Case("X2", "max_pool2d_nchw", "n=1 c=3 h=6 w=6 k=3 stride=2 padding=SAME", "float32"),
    Case("X3", "batch_matmul", "b=2 m=3 n=4 k=5 layout=TN", "float32"),
    Case("X4", "reduce_sum", "shape=2x3x4", "float32"),
]


@pytest.fixture
def torch():
    spec = importlib.util.spec_from_file_location("stand_in_torch", STAND_IN / "torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_operator_has_the_shape_that_is_due(torch):
    cases = [*all_cases(OPERATORS), *AWKWARD]
    graphs = [case for case in cases if case.operator == RTASKS]
    for case in graphs:
        (result,) = time_case(torch, case, None, 100.0)
        assert "graph" in result["why"]
    for case in cases:
        if case in graphs:
            continue
        reference = reference_of(case.operator, parse_params(case.params))
        assert call_of(torch, case, reference)().shape == reference.output, case
    assert len(cases) > 119


def test_float32_is_timed_in_full_and_on_tensor_cores(torch):
    flush = torch.empty(8, torch.uint8, "cuda")
    found = {r["mode"]: r["us"]["median"] for r in time_case(torch, AWKWARD[3], flush, 100.0)}
    assert found == {"float32": 20.0, "tfloat32": 5.0}
    assert [r["mode"] for r in time_case(torch, AWKWARD[2], flush, 100.0)] == ["float32"]
    assert len(torch.waits) >= 3 * (WARM_UP + LEAST), "every sample but the first waits in the card's queue"


def test_in_the_report(driver, tmp_path):  # noqa: F811
    kit = make_kit(tmp_path / "kit", {"E1": ["right us=40", "right us=10"]})
    code, said, results = run(kit, tmp_path / "out", driver, torch=True, PYTHONPATH=str(STAND_IN))
    assert code == 0 and results["torch"]["cudnn"] == 90000, said
    assert json.dumps(results["operators"]["E1.float32"]["torch"]["float32"]["us"]["median"]) == "20.0"
    table = (tmp_path / "out/table.md").read_text()
    assert "torch 0.0 (stand-in), CUDA 13.0" in table and "| 20.0 |  | 2.00 |" in table


def test_without_torch_it_says_so(driver, tmp_path):  # noqa: F811
    broken = tmp_path / "torch.py"
    broken.write_text("raise ImportError('no such file: libtorch.so')")
    kit = make_kit(tmp_path / "kit", {"E1": ["right us=40"]})
    code, _, results = run(kit, tmp_path / "out", driver, torch=True, PYTHONPATH=str(tmp_path))
    assert code == 0 and results["torch"] == {"why": "torch cannot be imported: no such file: libtorch.so"}
    assert "torch: torch cannot be imported" in (tmp_path / "out/table.md").read_text()
